"""What is kept for the backward: less with a smaller budget and with checkpoints."""

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import firebrick

pytestmark = pytest.mark.compiler
WIDTH, ROWS = 32, 16


class Block(nn.Module):
    """A residual block."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


WAYS = {
    "plain": lambda block, x: block(x),
    "checkpoint": functools.partial(checkpoint, use_reentrant=False),
}


class Net(nn.Module):
    """Blocks, in a way of saving."""

    def __init__(self, way="plain", blocks=3):
        super().__init__()
        self.way, self.blocks = way, nn.ModuleList([Block() for _ in range(blocks)])

    def forward(self, x):
        for block in self.blocks:
            x = WAYS[self.way](block, x)
        return x


class Convolved(nn.Module):
    """Convolutions with batch norm, whose statistics must change once, and dropout."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = x + nn.functional.dropout(layer(x).relu(), 0.2)
        return x


def run(model, x, **options):
    """Gradients and buffers of one call, and the bytes that it kept."""
    firebrick.reset()
    before = firebrick.stats()["counts"].get("bytes saved for backward", 0)
    model.zero_grad()
    torch.manual_seed(1)
    firebrick.compile(model, fullgraph=True, **options)(x).square().mean().backward()
    kept = firebrick.stats()["counts"]["bytes saved for backward"] - before
    return [p.grad.clone() for p in model.parameters()], [b.clone() for b in model.buffers()], kept


@pytest.mark.parametrize(
    ("make", "shape"),
    [(lambda: Net(), (ROWS, WIDTH)), (lambda: Net(blocks=7), (ROWS, WIDTH)), (Convolved, (2, 4, 8, 8))],
    ids=["blocks", "equal-layers", "convolutions"],
)
def test_a_smaller_budget_never_saves_more(make, shape):
    model, x = make(), torch.randn(shape)
    state = {name: t.clone() for name, t in model.state_dict().items()}
    torch.manual_seed(1)
    model(x).square().mean().backward()
    expected = [p.grad.clone() for p in model.parameters()], [b.clone() for b in model.buffers()]
    kept = []
    for budget in (1, 0.8, 0.5, 0.2, 0):
        model.load_state_dict(state)
        *got, size = run(model, x, options={"memory_budget": budget})
        torch.testing.assert_close(tuple(got), expected, rtol=1e-4, atol=1e-6)
        kept.append(size)
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) >= 4
    assert kept[2] <= kept[-1] + 0.5 * (kept[0] - kept[-1])
    text = str(firebrick.explain(firebrick.compile(model, options={"memory_budget": 0.5}))(x))
    assert f"{kept[2]} bytes saved for the backward" in text


def test_checkpoints_are_computed_again():
    x, sizes, gradients = torch.randn(ROWS, WIDTH, requires_grad=True), {}, {}
    for way in WAYS:
        torch.manual_seed(0)
        model = Net(way)
        gradients[way], _, sizes[way] = run(model, x)
        model.zero_grad()
        model(x).square().mean().backward()
        torch.testing.assert_close(gradients[way], [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-6)
    assert sizes["checkpoint"] <= 3 * WIDTH * ROWS * 4 < sizes["plain"]


def test_saved_tensors_on_the_cpu_of_a_compiled_module():
    model, x, packed = Net(), torch.randn(ROWS, WIDTH, requires_grad=True), []
    expected = run(model, x)[0]
    compiled = firebrick.compile(model)

    def pack(tensor):
        packed.append(tensor)
        return tensor.numpy().copy() if not tensor.requires_grad else tensor

    def unpack(kept):
        return kept if isinstance(kept, torch.Tensor) else torch.from_numpy(kept)

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
    for context in (torch.autograd.graph.save_on_cpu(), hooks):
        model.zero_grad()
        with context:
            result = compiled(x).square().mean()
        result.backward()
        torch.testing.assert_close([p.grad for p in model.parameters()], expected)
    assert len(packed) > 3


@pytest.mark.parametrize("budget", [-1, 2, "much", True])
def test_a_budget_is_a_share(budget):
    with pytest.raises(firebrick.errors.ConfigError, match="from 0 to 1"):
        firebrick.compile(Net(), options={"memory_budget": budget})
