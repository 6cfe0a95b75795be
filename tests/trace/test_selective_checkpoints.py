"""Policies of selective checkpoints: what is kept for the backward in bytes, and gradients beside those without any."""

import contextlib
import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import firebrick

pytestmark = pytest.mark.compiler
aten = torch.ops.aten
WIDTH, ROWS, BLOCKS = 32, 16, 3
NARROW, WIDE = ROWS * WIDTH * 4, ROWS * 4 * WIDTH * 4
"""Bytes of what a block is called with, and of what is between its layers."""


class Block(nn.Module):
    """A residual block without dropout: eager refuses to save what dropout is written into."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, contexts=None):
        super().__init__()
        self.contexts, self.blocks = contexts, nn.ModuleList([Block() for _ in range(BLOCKS)])

    def forward(self, x):
        for block in self.blocks:
            if self.contexts is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=False, context_fn=self.contexts)
        return x


def chosen(wanted, otherwise):
    """Contexts with a policy of an op's name."""

    def policy(ctx, op, *args, **kwargs):
        return wanted if op is aten.addmm.default else otherwise

    return functools.partial(create_selective_checkpoint_contexts, policy)


def counted():
    """A policy that counts: each second matmul is saved."""
    count = [0]

    def policy(ctx, op, *args, **kwargs):
        count[0] += op is aten.addmm.default
        return op is aten.addmm.default and count[0] % 2 == 0

    return create_selective_checkpoint_contexts(policy)


def run(module, function, *inputs):
    """Gradients, and the bytes that were kept for them."""
    before = firebrick.stats()["counts"].get("bytes saved for backward", 0)
    module.zero_grad()
    torch.manual_seed(1)
    function(*inputs).square().mean().backward()
    return [p.grad for p in module.parameters()], firebrick.stats()["counts"].get(
        "bytes saved for backward", 0
    ) - before


@pytest.mark.parametrize(
    ("contexts", "inside"),
    [
        (chosen(CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.MUST_RECOMPUTE), 0),
        (chosen(CheckpointPolicy.PREFER_RECOMPUTE, CheckpointPolicy.MUST_RECOMPUTE), 0),
        (chosen(CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE), WIDE),
        (functools.partial(create_selective_checkpoint_contexts, [aten.addmm.default]), WIDE),
        (functools.partial(create_selective_checkpoint_contexts, [aten.gelu.default]), WIDE),
        (functools.partial(create_selective_checkpoint_contexts, [aten.gelu.default, aten.addmm.default]), 2 * WIDE),
        (counted, 0),  # the second one is the result of the block, which no gradient reads
    ],
    ids=["nothing", "preferably-nothing", "matmuls", "list", "pointwise", "both", "counted"],
)
def test_what_a_policy_saves_is_kept_and_the_rest_computed_again(contexts, inside):
    model, x = Net(contexts), torch.randn(ROWS, WIDTH, requires_grad=True)
    expected, _ = run(model, model, x)
    gradients, kept = run(model, firebrick.compile(model, fullgraph=True), x)
    torch.testing.assert_close(gradients, expected, rtol=1e-5, atol=1e-6)
    assert kept == (BLOCKS - 1) * NARROW + BLOCKS * inside


def test_what_is_preferably_saved_is_what_a_minimum_cut_keeps():
    model, x = Net(chosen(CheckpointPolicy.PREFER_SAVE, CheckpointPolicy.PREFER_SAVE)), torch.randn(ROWS, WIDTH)
    gradients, kept = run(model, firebrick.compile(model, fullgraph=True), x)
    model.contexts = None
    expected, plain = run(model, firebrick.compile(model, fullgraph=True), x)
    torch.testing.assert_close(gradients, expected)
    assert kept == plain


@pytest.mark.parametrize("budget", [0.5, 0])
def test_a_memory_budget_computes_nothing_again_that_must_be_saved(budget):
    model, x = Net(chosen(CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE)), torch.randn(ROWS, WIDTH)
    compiled = firebrick.compile(model, fullgraph=True, options={"memory_budget": budget})
    assert run(model, compiled, x)[1] >= BLOCKS * WIDE


@pytest.mark.parametrize(
    "ops", [[aten.bernoulli.default], [aten.bernoulli.default, aten.sin.default], [aten.sin.default]]
)
def test_random_numbers_are_those_of_the_first_run(ops):
    """The second run skips draws that were saved, and has to find the others."""
    layer = nn.Linear(WIDTH, WIDTH)

    def body(x):
        first = torch.bernoulli(torch.full_like(x, 0.5)) * layer(x).sin()
        return nn.functional.dropout(first * torch.bernoulli(torch.full_like(x, 0.3)), 0.4).sin() * x

    def selective(x):
        contexts = functools.partial(create_selective_checkpoint_contexts, ops)
        return checkpoint(body, x, use_reentrant=False, context_fn=contexts)

    x = torch.randn(ROWS, WIDTH)
    expected, _ = run(layer, body, x)
    actual, _ = run(layer, firebrick.compile(selective, fullgraph=True), x)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_gradients_of_gradients_under_a_policy():
    layer, x = nn.Linear(6, 6), torch.randn(3, 6, requires_grad=True)

    def penalty(function):
        (grad,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), list(layer.parameters()))

    def selective(x):
        contexts = functools.partial(create_selective_checkpoint_contexts, [aten.addmm.default])
        return checkpoint(lambda x: layer(x).tanh() * x, x, use_reentrant=False, context_fn=contexts)

    torch.testing.assert_close(penalty(firebrick.compile(selective)), penalty(lambda x: layer(x).tanh() * x))


@pytest.mark.filterwarnings("ignore::firebrick.report.FirebrickWarning")
def test_a_saved_result_that_is_written_to_is_an_error_as_in_eager_mode():
    w = torch.randn(3, 3, requires_grad=True)

    def body(x):
        y = x @ w
        y.add_(1)
        return y.sin() * y

    def selective(x):
        contexts = functools.partial(create_selective_checkpoint_contexts, [aten.mm.default])
        return checkpoint(body, x, use_reentrant=False, context_fn=contexts)

    for function in (selective, firebrick.compile(selective, options={"strict": False})):
        with pytest.raises(RuntimeError, match="has been mutated"):
            function(torch.ones(2, 3)).sum().backward()


@pytest.mark.filterwarnings("ignore::firebrick.report.FirebrickWarning")
def test_other_contexts_are_entered_at_each_call():
    entered = []

    @contextlib.contextmanager
    def noted(name):
        entered.append(name)
        yield

    def contexts():
        return noted("forward"), noted("again")

    @firebrick.compile(options={"strict": False})
    def f(x):
        return checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False, context_fn=contexts)

    for _ in range(2):
        f(torch.ones(3, requires_grad=True)).sum().backward()
    assert entered == ["forward", "again"] * 2


def test_another_policy_is_another_graph():
    model, x = Net(chosen(CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE)), torch.randn(ROWS, WIDTH)
    compiled = firebrick.compile(model, fullgraph=True)
    matmuls = run(model, compiled, x)[1]
    model.contexts = chosen(CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
    assert run(model, compiled, x)[1] < matmuls
