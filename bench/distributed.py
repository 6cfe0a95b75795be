"""Steps of a transformer's training on several processes, compiled and in eager mode, under each wrapper.

    OMP_NUM_THREADS=1 python -m torch.distributed.run --standalone --nproc-per-node 2 bench/distributed.py
    python -m torch.distributed.run --standalone --nproc-per-node 4 bench/distributed.py --device cuda --width 1024

`DDP`: DistributedDataParallel. `FSDP2`: `fully_shard` around each block. `TP`: `parallelize_module` over the attention
and the feed-forward layers. A step is forward, backward and AdamW; contenders take turns, `ms` is the median of the
slowest rank's times. Parameters are compared after all steps. Columns: wrapper, ranks, ms of ours, ms of eager mode, ms
of our first step, graphs, greatest difference of a parameter. With `--device cuda` each rank has a GPU of its own, NCCL
carries what they exchange, and a time ends when the GPU has ended; `--bfloat16` runs the forward under autocast.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import firebrick

WORDS, HEADS = 1000, 8


class Block(nn.Module):
    """Causal attention and a feed-forward layer, both residual; a rank may have some of the heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = width // HEADS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        q, k, v = (m(h).unflatten(-1, (-1, self.head)).transpose(1, 2) for m in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A language model."""

    def __init__(self, width: int, length: int, layers: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.last = nn.Linear(width, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def distribute(model: Model, wrapper: str, mesh: DeviceMesh, compiled: bool) -> nn.Module:
    """The model under a wrapper; compiled as docs/distributed.md says."""
    if wrapper == "FSDP2":
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if compiled:
            model.blocks = nn.ModuleList([firebrick.compile(block) for block in model.blocks])
        return model
    if wrapper == "TP":
        columns, rows = (
            dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel),
            dict.fromkeys(("out", "down"), RowwiseParallel),
        )
        for block in model.blocks:
            parallelize_module(block, mesh, {name: style() for name, style in {**columns, **rows}.items()})
    net = DistributedDataParallel(model) if wrapper == "DDP" else model
    return firebrick.compile(net) if compiled else net


class Contender:
    """One model with its optimizer."""

    def __init__(self, wrapper: str, mesh: DeviceMesh, compiled: bool, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.mesh, self.options = mesh, options
        model = Model(options.width, options.length, options.layers).to(mesh.device_type)
        self.net = distribute(model, wrapper, mesh, compiled)
        foreach = False if wrapper == "TP" else None  # torch 2.11 has no lists of tensors and DTensors on GPUs
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4, foreach=foreach)
        self.data = torch.Generator().manual_seed(0 if wrapper == "TP" else dist.get_rank())
        self.times: list[float] = []

    def wait(self) -> None:
        if self.mesh.device_type == "cuda":
            torch.cuda.synchronize()

    def step(self) -> None:
        device, length = self.mesh.device_type, self.options.length
        tokens = torch.randint(0, WORDS, (self.options.batch, length + 1), generator=self.data).to(device)
        dist.barrier()
        self.wait()
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=self.options.bfloat16):
            loss = F.cross_entropy(self.net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.wait()
        seconds = torch.tensor(time.perf_counter() - begin, device=device)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        self.times.append(seconds.item() * 1e3)

    def parameters(self) -> list[torch.Tensor]:
        return [p.full_tensor() if isinstance(p, DTensor) else p for p in self.net.parameters()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wrappers", nargs="*", default=["DDP", "FSDP2", "TP"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--bfloat16", action="store_true")
    for name, default in {"steps": 20, "width": 256, "length": 128, "layers": 4, "batch": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    else:
        dist.init_process_group("gloo")
    mesh = init_device_mesh(options.device, (dist.get_world_size(),))
    for wrapper in options.wrappers:
        before = firebrick.graphs_compiled()
        eager, ours = (Contender(wrapper, mesh, compiled, options) for compiled in (False, True))
        for _ in range(options.steps):
            eager.step()
            ours.step()
        pairs = zip(eager.parameters(), ours.parameters(), strict=True)
        apart = max((a - b).abs().max().item() for a, b in pairs)
        if dist.get_rank() == 0:
            half = options.steps // 2
            row = [f"{statistics.median(c.times[half:]):.1f}" for c in (ours, eager)]
            row += [f"{ours.times[0]:.0f}", str(firebrick.graphs_compiled() - before), f"{apart:.1e}"]
            print(" | ".join((wrapper, str(dist.get_world_size()), *row)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
