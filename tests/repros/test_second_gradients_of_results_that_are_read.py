"""The backward of `y = x.tanh()` reads y, through which a second gradient flows to y: a compiled graph had none of it,
so that `grad(..., [y])`, hooks of y and `y.retain_grad()` gave other numbers than in eager mode."""

import pytest
import torch

import firebrick


def tanh(x, w):
    return ((x @ w).tanh(),)


def chained(x, w):
    y = (x @ w).exp()
    return y, y.sigmoid(), y.sum()


def norms(x, w):
    return (x @ w).norm(dim=1), (x @ w).softmax(-1)


def factors(x, w):
    return tuple(torch.linalg.qr(w))


def viewed(x, w):
    y = (x @ w).exp()
    return y, y[0], (x @ w).tanh().t()


def in_place(x, w):
    y = x @ w
    y.exp_()
    return y, (y * x).sum()


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * (y / x + x)


def custom(x, w):
    return (Squared.apply(x @ w),)


FUNCTIONS = [tanh, chained, norms, factors, viewed, in_place, custom]


def leaves():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 4, generator=generator, dtype=torch.float64).mul_(0.5).requires_grad_() for _ in range(2)]


def asked(results, w):
    """First, second and third gradients of everything."""
    found, total, rows = [], sum(r.square().sum() for r in results), [*results, w]
    for _ in range(3):
        gradients = torch.autograd.grad(total, rows, create_graph=True, allow_unused=True)
        found += gradients
        total = sum(g.sin().sum() for g in gradients if g is not None)
    return found


def hooked(results, w):
    """What hooks see in a backward through gradients, and what they make of it."""
    seen = []
    (first,) = torch.autograd.grad(sum(r.square().sum() for r in results), w, create_graph=True)
    for i, r in enumerate(results):
        r.register_hook(lambda g, i=i: seen.append((i, g.detach().clone())) or g * (i + 2))
        r.retain_grad()
    first.sin().sum().backward()
    return [*[g for _, g in sorted(seen, key=lambda row: row[0])], *[r.grad for r in results], w.grad]


@pytest.mark.parametrize("ask", [asked, hooked])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_second_gradients_for_results(function, ask):
    outcomes = []
    for run in (firebrick.compile(function), function):
        x, w = leaves()
        outcomes.append(ask(run(x, w), w))
    assert len(outcomes[0]) == len(outcomes[1])
    for mine, plain in zip(*outcomes, strict=True):
        assert (mine is None) == (plain is None)
        torch.testing.assert_close(mine, plain)


def test_under_saved_tensor_hooks():
    outcomes = []
    for run in (firebrick.compile(tanh), tanh):
        x, w = leaves()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            results = run(x, w)
        (first,) = torch.autograd.grad(results[0].sum(), w, create_graph=True)
        outcomes.append(torch.autograd.grad(first.square().sum(), w))
    torch.testing.assert_close(*outcomes)


def test_results_die_with_the_last_reference():
    import gc
    import weakref

    gc.disable()
    try:
        x, w = leaves()
        results = firebrick.compile(tanh)(x, w)
        (first,) = torch.autograd.grad(results[0].sum(), w, create_graph=True)
        alive = weakref.ref(results[0])
        del results, first
        assert alive() is None
    finally:
        gc.enable()
