"""Training under DistributedDataParallel, as plain Python and compiled."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import firebrick


class Normed(nn.Module):
    """Batch norm, dropout and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(16, 32), nn.BatchNorm1d(32)
        self.second, self.last, self.drop = nn.Linear(32, 32), nn.Linear(32, 4), nn.Dropout(0.1)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps.add_(1)
        x = F.relu(self.norm(self.first(x)))
        return self.last(self.drop(torch.tanh(self.second(x))))


class Unused(nn.Module):
    """One of its layers is used by rank 0 alone, one by nobody, one's result by no loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.odd, self.never = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(3, 3)
        self.last, self.ignored = nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x):
        x = F.relu(self.first(x))
        if torch.distributed.get_rank() == 0:
            x = x + self.odd(x)
        return self.last(x), {"ignored": self.ignored(x)}


class Deep(nn.Module):
    """Residual blocks that fill several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()) for _ in range(6)])
        self.start, self.last = nn.Linear(16, 64), nn.Linear(64, 4)

    def forward(self, x):
        x = self.start(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


class Tied(nn.Module):
    """A weight that is used twice and in-place activations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])
        self.layers[3].weight = self.layers[0].weight
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x), inplace=True)
        return self.last(x)


MODELS = {"normed": Normed, "unused": Unused, "deep": Deep, "tied": Tied}


def first_of(output):
    """The tensor that the loss is about."""
    return output[0] if isinstance(output, tuple) else output


def build(model: str, how: str, options: dict) -> nn.Module:
    torch.manual_seed(0)
    module = MODELS[model]()
    if how == "module":
        return DistributedDataParallel(firebrick.compile(module), **options)
    wrapped = DistributedDataParallel(module, **options)
    return firebrick.compile(wrapped) if how == "wrapper" else wrapped


def train(rank: int, model: str, how: str, options: dict, steps: int = 20, accumulate: int = 1):
    """The state of the model after some steps, losses, and how many graphs were compiled."""
    before = firebrick.graphs_compiled()
    net = build(model, how, options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def step(x, y):
        loss = F.mse_loss(first_of(net(x)), y)
        loss.backward()
        return loss.detach()

    run = firebrick.compile(step) if how == "step" else step
    data, losses = torch.Generator().manual_seed(rank), []
    torch.manual_seed(rank)
    for number in range(steps):
        x, y = torch.randn(8, 16, generator=data), torch.randn(8, 4, generator=data)
        last = number % accumulate == accumulate - 1
        with nullcontext() if last else net.no_sync():
            losses.append(run(x, y))
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return net.state_dict(), torch.stack(losses), firebrick.graphs_compiled() - before


def compare(rank: int, model: str, how: str, options: dict, steps: int = 20, accumulate: int = 1) -> int:
    """Train as plain Python and compiled; the number of graphs."""
    state, losses, graphs = train(rank, model, "eager", options, steps, accumulate)
    assert graphs == 0
    compiled, compiled_losses, graphs = train(rank, model, how, options, steps, accumulate)
    torch.testing.assert_close(compiled, state, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled_losses, losses, rtol=1e-4, atol=1e-5)
    return graphs


@torch.library.custom_op("firebrick_tests::mark", mutates_args=())
def mark(x: torch.Tensor) -> torch.Tensor:
    """A copy whose gradient says when it is computed."""
    return x.clone()


@torch.library.custom_op("firebrick_tests::mark_gradient", mutates_args=())
def mark_gradient(x: torch.Tensor) -> torch.Tensor:
    events.append("gradient")
    return x.clone()


events: list[str] = []
mark.register_fake(torch.empty_like)
mark_gradient.register_fake(torch.empty_like)
mark.register_autograd(lambda ctx, gradient: mark_gradient(gradient))


class Marked(Deep):
    """Says when the gradient behind its first layer is computed."""

    def forward(self, x):
        x = mark(self.start(x))
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


MODELS["marked"] = Marked


def order_of_events(rank: int, how: str, cap: float) -> tuple[list[str], int]:
    """What happens in a backward: buckets that are sent, and the gradient of the first layer."""
    net = build("marked", how, {"bucket_cap_mb": cap})

    def hook(state, bucket):
        events.append("bucket")
        return torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])

    net.register_comm_hook(None, hook)
    before = firebrick.graphs_compiled()
    run = firebrick.compile(lambda x: net(x)) if how == "step" else net
    for _ in range(3):
        events.clear()
        run(torch.randn(8, 16)).sum().backward()
    return list(events), firebrick.graphs_compiled() - before


def recompile_apart(rank: int) -> tuple[list[torch.Tensor], list[int]]:
    """Steps in which each rank gets new sizes at another call than the other; parameters and graphs after each."""
    net = build("deep", "wrapper", {"bucket_cap_mb": 0.04})
    optimizer, graphs = torch.optim.SGD(net.parameters(), lr=0.05), []
    for number in range(6):
        rows = 5 if number > 2 * rank else 3
        net(torch.ones(rows, 16)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        graphs.append(firebrick.graphs_compiled())
    return [p.detach() for p in net.parameters()], graphs


def work_of_the_cache(rank: int) -> dict[str, int]:
    """What a rank found in the cache that both share, and what it made."""
    before = firebrick.stats()["counts"]
    torch.distributed.barrier()
    net = build("deep", "wrapper", {"bucket_cap_mb": 0.05})
    net(torch.randn(5, 16)).sum().backward()
    after = firebrick.stats()["counts"]
    names = ("cache hits", "cache misses", "units built")
    return {name: after.get(name, 0) - before.get(name, 0) for name in names}


def build_with_other_shapes(rank: int) -> None:
    """Parameters that differ from rank to rank are refused when they are wrapped."""
    DistributedDataParallel(firebrick.compile(nn.Linear(4, 4 + rank)))
