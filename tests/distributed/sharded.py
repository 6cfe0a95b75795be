"""Training with sharded parameters, as plain Python and compiled."""

from __future__ import annotations

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

import firebrick


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Three blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        x = self.start(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def _shard(net, mesh):
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)


def _parallelize(net, mesh):
    for block in net.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


WRAPPERS = {"fsdp": _shard, "tensor": _parallelize}


def _train(rank: int, wrapper: str, how: str, steps: int, state: bytes | None = None):
    torch.manual_seed(0)
    net, mesh = Net(), init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    WRAPPERS[wrapper](net, mesh)
    if how == "blocks":
        net.blocks = nn.ModuleList([firebrick.compile(block) for block in net.blocks])
    run = firebrick.compile(net) if how == "module" else net
    optimizer = torch.optim.AdamW(run.parameters(), lr=0.01)

    def step(x, y):
        loss = F.mse_loss(run(x), y)
        loss.backward()
        return loss.detach()

    call = firebrick.compile(step) if how == "step" else step
    data = torch.Generator().manual_seed(rank if wrapper == "fsdp" else 0)
    for _ in range(steps):
        call(torch.randn(8, 8, generator=data), torch.randn(8, 4, generator=data))
        optimizer.step()
        optimizer.zero_grad()
    return run, optimizer


def _whole(net: nn.Module) -> dict[str, torch.Tensor]:
    state = net.state_dict()
    return {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in state.items()}


def compare(rank: int, wrapper: str, how: str, steps: int = 20) -> int:
    """Train as plain Python and compiled; the number of graphs."""
    expected = _whole(_train(rank, wrapper, "eager", steps)[0])
    before = firebrick.graphs_compiled()
    torch.testing.assert_close(_whole(_train(rank, wrapper, how, steps)[0]), expected, rtol=1e-4, atol=1e-5)
    return firebrick.graphs_compiled() - before


def save_and_load(rank: int, folder: str) -> None:
    """A distributed checkpoint of a compiled module goes into one that is not compiled, and back."""
    compiled, optimizer = _train(rank, "fsdp", "module", 2)
    plain, plain_optimizer = _train(rank, "fsdp", "eager", 1)
    for number, (source, target) in enumerate(
        [((compiled, optimizer), (plain, plain_optimizer)), ((plain, plain_optimizer), (compiled, optimizer))]
    ):
        model_state, optimizer_state = get_state_dict(*source)
        dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=f"{folder}/{number}")
        expected = _whole(source[0])
        with torch.no_grad():
            for parameter in source[0].parameters():
                parameter.add_(1)  # what is loaded is what was saved
        model_state, optimizer_state = get_state_dict(*target)
        dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=f"{folder}/{number}")
        set_state_dict(*target, model_state_dict=model_state, optim_state_dict=optimizer_state)
        torch.testing.assert_close(_whole(target[0]), expected)
        x = torch.ones(2, 8)
        # All weights are about one, so that what is normalized is nearly its mean: rounding counts a hundredfold.
        torch.testing.assert_close(compiled(x), compiled._orig_mod(x), rtol=1e-4, atol=1e-4)
