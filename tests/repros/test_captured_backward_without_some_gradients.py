"""A captured backward met a gradient that is None, sizes that vary, sparse gradients, and kernels of eager mode."""

import warnings

import pytest
import torch
from torch import nn

import firebrick


class Gives(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, a, b):
        return a * 2, None


def doubled(gradient):
    return gradient if gradient is None else gradient * 2


def plain(w, v):
    return sum(r.sum() for r in Gives.apply(w.sin(), v.cos()))


def beside_another(w, v):
    z = v.cos()
    return sum(r.sum() for r in Gives.apply(w.sin(), z)) + z.exp().sum()


def hooked(w, v):
    z = v.cos()
    z.register_hook(doubled)
    return sum(r.sum() for r in Gives.apply(w.sin(), z))


def hooked_beside_another(w, v):
    z = v.cos()
    z.register_hook(doubled)
    return sum(r.sum() for r in Gives.apply(w.sin(), z)) + z.exp().sum()


def hook_of_a_node(w, v):
    z = v.cos()
    z.grad_fn.register_hook(lambda out, row: None)
    z.grad_fn.register_prehook(lambda row: None)
    return sum(r.sum() for r in Gives.apply(w.sin(), z))


def of_a_leaf(w, v):
    v.register_post_accumulate_grad_hook(lambda leaf: None)
    v.register_hook(doubled)
    return sum(r.sum() for r in Gives.apply(w, v))


def through_two(w, v):
    return sum(r.sum() for r in Gives.apply(*Gives.apply(w.sin(), v.cos())))


def into_several(w, v):
    a, b = v.cos().chunk(2)
    return sum(r.sum() for r in Gives.apply(w.sin()[:2], a)) + b.sum()


@pytest.mark.compiler
@pytest.mark.parametrize(
    "fn",
    [plain, beside_another, hooked, hooked_beside_another, hook_of_a_node, of_a_leaf, through_two, into_several],
)
def test_functions_may_give_none(fn):
    found = []
    for captured in (False, True):
        torch.manual_seed(0)
        leaves = [torch.randn(4, requires_grad=True) for _ in range(2)]
        for _ in range(2):
            if captured:
                with firebrick.compiled_backward():
                    fn(*leaves).backward()
            else:
                fn(*leaves).backward()
        found.append([leaf.grad for leaf in leaves])
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        torch.testing.assert_close(one, other)


@pytest.mark.compiler
def test_sizes_may_vary():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    compiled = firebrick.compile(model)
    for size in (3, 5, 7, 3):
        x, grads = torch.randn(size, 4), []
        for run, block in ((compiled, firebrick.compiled_backward()), (model, torch.enable_grad())):
            model.zero_grad()
            with block:
                run(x).square().mean().backward()
            grads.append(model.weight.grad)
        torch.testing.assert_close(*grads)


@pytest.mark.compiler
def test_sparse_gradients_are_left_to_the_engine_of_torch():
    grads = []
    for block in (firebrick.compiled_backward(), torch.enable_grad()):
        torch.manual_seed(0)
        table = nn.Embedding(6, 4, sparse=True)
        with block, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table(torch.tensor([1, 2, 2])).square().sum().backward()
        grads.append(table.weight.grad)
    assert grads[0].is_sparse
    torch.testing.assert_close(grads[0].to_dense(), grads[1].to_dense())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_graphs_of_a_captured_backward_run_on_eager_kernels(backend):
    torch.manual_seed(0)
    x = torch.randn(3, requires_grad=True)
    with firebrick.compiled_backward(backend=backend):
        firebrick.compile(lambda x: x.sin(), backend="aot_eager")(x).square().sum().backward()
    torch.testing.assert_close(x.grad, (2 * x.sin() * x.cos()).detach())
