"""Steps of a transformer's training on several processes, compiled and in eager mode, under each wrapper.

    OMP_NUM_THREADS=1 python -m torch.distributed.run --standalone --nproc-per-node 2 bench/distributed.py

`DDP`: DistributedDataParallel. `FSDP2`: `fully_shard` around each block. `TP`: `parallelize_module` over the attention
and the feed-forward layers. A step is forward, backward and AdamW; contenders take turns, `ms` is the median of the
slowest rank's times. Parameters are compared after all steps. Columns: wrapper, ranks, ms of ours, ms of eager mode, ms
of our first step, graphs, greatest difference of a parameter.
"""

from __future__ import annotations

import argparse
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

WORDS, LENGTH, BATCH, WIDTH, HEADS, LAYERS = 1000, 128, 4, 256, 8, 4


class Block(nn.Module):
    """Causal attention and a feed-forward layer, both residual; a rank may have some of the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        q, k, v = (m(h).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for m in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A language model."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.last = nn.Linear(WIDTH, WORDS)

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

    def __init__(self, wrapper: str, mesh: DeviceMesh, compiled: bool) -> None:
        torch.manual_seed(0)
        self.net = distribute(Model(), wrapper, mesh, compiled)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4)
        self.data = torch.Generator().manual_seed(0 if wrapper == "TP" else dist.get_rank())
        self.times: list[float] = []

    def step(self) -> None:
        tokens = torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=self.data)
        dist.barrier()
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        F.cross_entropy(self.net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        self.optimizer.step()
        seconds = torch.tensor(time.perf_counter() - begin)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        self.times.append(seconds.item() * 1e3)

    def parameters(self) -> list[torch.Tensor]:
        return [p.full_tensor() if isinstance(p, DTensor) else p for p in self.net.parameters()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wrappers", nargs="*", default=["DDP", "FSDP2", "TP"])
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for wrapper in options.wrappers:
        before = firebrick.graphs_compiled()
        eager, ours = (Contender(wrapper, mesh, compiled) for compiled in (False, True))
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
