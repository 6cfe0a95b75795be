"""Compiled forward and backward give eager's results and gradients, op by op and module by module."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def whole(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high))


class Tripled(torch.autograd.Function):
    """A gradient that no formula of PyTorch's would give."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * gradient


def write_rows(h: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    h = h * 2
    h[1:3, :] = rows
    h[0].mul_(3)
    return h


def without_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        factor = x.exp()
    return x * factor


def views_of_one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = x @ x.t()
    return h[0], h.t(), h.detach()


def activations(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x) + F.hardswish(x) + F.mish(x) + F.softplus(x) + F.elu(x) + F.leaky_relu(x) + F.gelu(x)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


HEADS = (normal(2, 2, 5, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 8))

FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "add": (lambda a, b: a + b, normal(4, 6), normal(6)),
    "mul_div": (lambda a, b: a * b / (b.abs() + 1), normal(4, 6), normal(6)),
    "pow": (lambda a: (a.abs() + 1) ** 1.5, normal(4, 6)),
    "activations": (activations, normal(4, 6)),
    "tanh_sigmoid": (lambda a: a.tanh() * a.sigmoid(), normal(4, 6)),
    "matmul": (lambda a, b: torch.einsum("bij,bjk->bik", a, b), normal(2, 3, 4), normal(2, 4, 5)),
    "softmax": (lambda a: F.softmax(a, -1) * 2, normal(6, 5)),
    "logsumexp": (lambda a: a.logsumexp(1), normal(6, 5)),
    "attention": (attention, *HEADS),
    "cross_entropy": (lambda a, t: F.cross_entropy(a, t), normal(6, 5), whole(5, 6)),
    "binary_loss": (lambda a, t: F.binary_cross_entropy_with_logits(a, t.sigmoid()), normal(6, 5), normal(5, 6).t()),
    "mse": (lambda a, t: F.mse_loss(a, t), normal(6, 5), normal(6, 5)),
    "sum_mean": (lambda a: (a.sum(0), a.mean(1), a.std(1)), normal(4, 6)),
    "max": (lambda a: (a.max(1).values, a.amax(0), a.topk(2, 1).values), normal(4, 6)),
    "cumsum_sort": (lambda a: (a.cumsum(1), a.sort(1).values), normal(4, 6)),
    "norm": (lambda a: a.norm(dim=1), normal(4, 6)),
    "where_clamp": (lambda a, b: torch.where(a > 0, a, b * 2).clamp(-0.5, 0.5), normal(4, 6), normal(4, 6) + 1),
    "masked_fill": (lambda a: a.masked_fill(a > 0, 1.0).exp(), normal(4, 6)),
    "cat_split": (lambda a, b: [t.exp() for t in torch.cat([a, b], 1).split(2, 1)], normal(2, 3), normal(2, 5)),
    "glu": (lambda a: F.glu(a), normal(3, 4)),
    "index": (lambda a: (a[:, [0, 2]] * 2, a[1:, None, ::2]), normal(4, 6)),
    "gather_scatter": (lambda a, i: a.gather(1, i).scatter_add(1, i, a[:, :3]), normal(3, 6), whole(3, 3, 3)),
    "pad_roll": (lambda a: F.pad(a, (1, 2)).roll(1, 0).sin(), normal(4, 6)),
    "expand_stack": (lambda a: torch.stack([a.expand(3, 4, 6), a.repeat(3, 1, 1)]).mean(0), normal(4, 6)),
    "tril": (lambda a: a.tril() @ a.t(), normal(4, 4)),
    "in_place": (lambda a: a.clone().mul_(2).add_(a).relu_(), normal(4, 6)),
    "in_place_views": (write_rows, normal(4, 6), normal(6)),
    "written_argument": (lambda a, b: (a * 1).mul_(b).exp(), normal(4, 6), normal(6)),
    "aliasing_outputs": (views_of_one, normal(4, 6)),
    "argument_views": (lambda a: (a.view(-1), a.exp(), a), normal(4, 6)),
    "detached": (lambda a: (a.detach() * a, a.exp().detach()), normal(4, 6)),
    "no_grad_region": (without_grad, normal(4, 6)),
    "unused_argument": (lambda a, b: a * 2, normal(4, 6), normal(3)),
    "whole_numbers": (lambda a, i: (a * i, i + 1), normal(4, 6), whole(9, 6)),
    "custom_function": (lambda a: Tripled.apply(a) * 2, normal(4, 4)),
    "resampled": (lambda a: F.interpolate(a, size=(5, 7), mode="bilinear"), normal(1, 2, 4, 4)),
    "layout": (lambda a: F.relu(a.to(memory_format=torch.channels_last) * 2), normal(1, 2, 4, 4)),
}

torch.manual_seed(0)
MODULES: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "linear": (nn.Linear(4, 5), normal(3, 4)),
    "embedding": (nn.Embedding(10, 6, padding_idx=0), whole(10, 2, 5)),
    "layer_norm": (nn.LayerNorm(8), normal(2, 3, 8)),
    "group_norm": (nn.GroupNorm(2, 8), normal(2, 8, 5)),
    "batch_norm": (nn.BatchNorm1d(5), normal(8, 5)),
    "batch_norm_eval": (nn.BatchNorm1d(5).eval(), normal(8, 5)),
    "convolutions": (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        ),
        normal(2, 3, 8, 8),
    ),
    "transposed": (nn.Sequential(nn.ConvTranspose2d(3, 4, 2, stride=2), nn.AvgPool2d(2)), normal(2, 3, 8, 8)),
    "grouped": (nn.Sequential(nn.Conv1d(4, 8, 3, groups=2), nn.PReLU()), normal(2, 4, 8)),
    "recurrent": (nn.GRUCell(4, 5), normal(3, 4)),
    "lstm": (nn.LSTM(4, 5, 2, bidirectional=True), normal(3, 2, 4)),
    "transformer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), normal(2, 5, 8)),
}


def run(fn: Any, inputs: Any, module: nn.Module | None) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Return results and gradients, of a loss that weighs every element differently."""
    made = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs]
    result = fn(*made)
    flat = [t for r in (result if isinstance(result, (tuple, list)) else [result]) for t in leaves(r)]
    generator = torch.Generator().manual_seed(3)
    loss: Any = sum((t * torch.randn(t.shape, generator=generator).to(t.dtype)).sum() for t in flat if t.requires_grad)
    loss.backward()
    parameters = [] if module is None else list(module.parameters())
    buffers = [] if module is None else list(module.buffers())
    return flat + buffers, [t.grad for t in (*made, *parameters) if t.requires_grad]


def leaves(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in leaves(v)]


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    if not exact.numel():
        return 0.0
    found, exact = found.detach().double(), exact.detach().double()
    return float((found - exact).abs().max() / exact.abs().max().clamp_min(1e-30))


def check(ours: Any, eager: Any, exact: Any) -> None:
    """Our error is at most 1.1 times eager's, or a few units in the last place."""
    for a, b, c in zip((*ours[0], *ours[1]), (*eager[0], *eager[1]), (*exact[0], *exact[1]), strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert (a.dtype, a.shape, a.stride(), a.requires_grad) == (b.dtype, b.shape, b.stride(), b.requires_grad)
            assert error(a, c) <= max(1.1 * error(b, c), 1e-6)


def doubled(inputs: Any) -> list[torch.Tensor]:
    return [t.double() if t.is_floating_point() else t for t in inputs]


@pytest.fixture(params=["firebrick", "aot_eager"])
def backend(request: pytest.FixtureRequest) -> Any:
    before = firebrick.graphs_compiled()
    yield request.param
    assert (firebrick.graphs_compiled() > before) == (request.param == "firebrick")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str, backend: str) -> None:
    fn, *inputs = FUNCTIONS[name]
    ours = run(firebrick.compile(fn, backend=backend), inputs, None)
    check(ours, run(fn, inputs, None), run(fn, doubled(inputs), None))


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str, backend: str) -> None:
    module, given = MODULES[name]
    sides = [copy.deepcopy(module), copy.deepcopy(module), copy.deepcopy(module).double()]
    ours = run(firebrick.compile(sides[0], backend=backend), [given], sides[0])
    check(ours, run(sides[1], [given], sides[1]), run(sides[2], doubled([given]), sides[2]))
