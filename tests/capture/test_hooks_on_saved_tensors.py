"""`saved_tensors_hooks` entered in captured code: what they do is part of the graph, in forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import firebrick
from firebrick.errors import Unsupported

torch.manual_seed(0)
X = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
W = nn.Parameter(torch.randn(8, 8).double())
V = nn.Parameter(torch.randn(8, 8).double())
LEAVES = X, W, V


def add(tensor):
    return tensor + 1


def double(tensor):
    return tensor * 2


def same(tensor):
    return tensor


def to_int8(tensor):
    scale = tensor.abs().max() / 127
    return (tensor / scale).round().to(torch.int8), scale, tensor.dtype


def from_int8(packed):
    numbers, scale, dtype = packed
    return numbers.to(dtype) * scale


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


def within(pack, unpack):
    def function(x):
        h = (x @ W).tanh()
        with saved_tensors_hooks(pack, unpack):
            y = torch.nn.functional.gelu((h * x).sin() @ W)
        return (y * h).exp().sum()

    return function


def nested(x):
    with saved_tensors_hooks(add, same):
        a = x.exp()
        with saved_tensors_hooks(double, same):
            b = (a @ W).sin()
        c = b * a
    return (c @ V).sum()


def without_gradients(x):
    with saved_tensors_hooks(add, same), torch.no_grad():
        m = (x @ W).sin()
    return (x * m).sum()


def around_a_checkpoint(x):
    with saved_tensors_hooks(add, same):
        y = checkpoint(lambda t: (t @ W).sin().exp(), x, use_reentrant=False)
        return (y @ V).tanh().sum()


def in_a_checkpoint(x):
    def inner(t):
        with saved_tensors_hooks(add, same):
            t = (t @ W).sin()
        return t.exp()

    return (checkpoint(inner, x, use_reentrant=False) @ V).tanh().sum()


def reading_others(x):
    scale = x.detach().abs().max() + 1
    with saved_tensors_hooks(lambda t: t / scale, lambda t: t * scale + W.mean()):
        return (x @ W).sin().exp().sum()


def writes_that_aliases_see(x):
    with saved_tensors_hooks(same, same):
        h = x @ W
        g = h.sin()
        h.mul_(3)
        return (g * h.cos()).sum()


def writes(x):
    with saved_tensors_hooks(add, same):
        h = (x @ W).exp_()
        h.mul_(x)
        h[0] = h[1] * x[2]
        return h.sigmoid_().sum()


def containers(x):
    def pack(t):
        return {"a": t + 1, "b": [t.sum(), 2.0, t.shape]}

    def unpack(p):
        return p["a"] * p["b"][1] + p["b"][0]

    with saved_tensors_hooks(pack, unpack):
        return torch.nn.functional.layer_norm((x @ W).sin(), (8,), V[0], V[1]).sum()


def parameters_apart(x):
    with saved_tensors_hooks(lambda t: t if isinstance(t, nn.Parameter) else t + 1, same):
        return (x @ W).sin().sum()


def one_tensor_apart(x):
    with saved_tensors_hooks(lambda t: t if t is W else t + 1, same):
        return (x @ W).sin().sum()


def by_history(x):
    with saved_tensors_hooks(lambda t: t + 1 if t.requires_grad and not t.is_leaf else t, same):
        return ((x @ W).sin() * 2).exp().sum()


def counted(x):
    seen = []
    with saved_tensors_hooks(lambda t: (seen.append(t.shape), t + len(seen))[1], same):
        y = (x @ W).sin().exp()
    return y.sum() * len(seen)


def in_a_loop(x):
    for i in range(3):
        with saved_tensors_hooks(lambda t, i=i: t + i, double):
            x = (x @ W).sin()
    return x.sum()


def attention(x):
    q = x.view(1, 2, 2, 8)
    with saved_tensors_hooks(add, same):
        return torch.nn.functional.scaled_dot_product_attention(q @ W, q @ V, q).sum()


def dropout(x):
    with saved_tensors_hooks(lambda t: t * 3, same):
        return torch.nn.functional.dropout(x @ W, 0.5).exp().sum()


def custom(x):
    with saved_tensors_hooks(add, same):
        return Cube.apply(x @ W).sum()


def transposed(x):
    with saved_tensors_hooks(lambda t: t.t().contiguous() if t.ndim == 2 else t, lambda t: t.t() if t.ndim == 2 else t):
        return (x.t().contiguous().t() @ W).sin().sum()


def on_cpu(x):
    with save_on_cpu():
        return (x @ W).sin().exp().sum()


FUNCTIONS = {
    "add": within(add, same),
    "half": within(torch.Tensor.half, torch.Tensor.double),
    "int8": within(to_int8, from_int8),
    **{
        function.__name__: function
        for function in (
            *(nested, without_gradients, around_a_checkpoint, in_a_checkpoint, reading_others, writes),
            *(writes_that_aliases_see, containers, parameters_apart, one_tensor_apart, by_history, counted, in_a_loop),
            *(attention, dropout, custom, transposed, on_cpu),
        )
    },
}


def gradients(function, x=X):
    """A loss and its gradients, of the same random numbers."""
    torch.manual_seed(1)
    loss = function(x)
    return loss.detach(), *grad(loss, (x, W, V), allow_unused=True)


def agree(got, wanted):
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("backend", ["eager", "firebrick"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph(name, backend):
    agree(gradients(firebrick.compile(FUNCTIONS[name], backend=backend, fullgraph=True)), gradients(FUNCTIONS[name]))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_other_backends(backend):
    agree(gradients(firebrick.compile(nested, backend=backend, fullgraph=True)), gradients(nested))


@pytest.mark.parametrize("function", [nested, containers, reading_others, by_history])
def test_sizes_that_vary(function):
    compiled = firebrick.compile(function, fullgraph=True, dynamic=True)
    for rows in (4, 7, 9):
        x = torch.randn(rows, 8, dtype=torch.float64, requires_grad=True)
        agree(gradients(compiled, x), gradients(function, x))


@pytest.mark.parametrize("backend", ["eager", "firebrick"])
def test_gradients_of_gradients(backend):
    def function(x):
        with saved_tensors_hooks(add, same):
            return (x @ W).sin().exp().sum()

    def twice(call):
        (first,) = grad(call(X), X, create_graph=True)
        return first.detach(), *grad(first.square().sum(), (X, W))

    agree(twice(firebrick.compile(function, backend=backend, fullgraph=True)), twice(function))


def test_what_is_packed_is_saved():
    def function(x):
        with saved_tensors_hooks(to_int8, from_int8):
            return (x @ W).sin().sin().sum()

    saved = firebrick.compile(function, fullgraph=True)(X).grad_fn.saved_tensors
    assert sum(t.numel() for t in saved if t.dtype == torch.int8) >= 2 * X.numel()
    assert not [t for t in saved if t.dtype == torch.float64 and t.shape == X.shape]


def test_hooks_are_guarded():
    compiled = firebrick.compile(lambda x, pack: within(pack, same)(x), fullgraph=True)
    for pack in (add, double, same, add, lambda t: t * 5):
        agree(gradients(lambda x, pack=pack: compiled(x, pack)), gradients(within(pack, same)))


def test_nothing_without_gradients():
    compiled = firebrick.compile(nested, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), nested(X))
    with torch.inference_mode():
        torch.testing.assert_close(compiled(X), nested(X))


def inner(t):
    t = (t @ W).sin()
    firebrick.graph_break()
    return (t @ V).sin()


def broken(x):
    with saved_tensors_hooks(add, same):
        y = (x @ W).sin()
        firebrick.graph_break()
        y = (y @ V).exp()
    return (y @ W).tanh().sum()


def broken_within_two(x):
    with saved_tensors_hooks(add, same):
        with saved_tensors_hooks(double, same):
            y = (x @ W).sin()
            firebrick.graph_break()
            y = (y @ V).exp()
        y = (y @ W).sin()
    return (y @ W).tanh().sum()


def broken_in_a_call(x):
    with saved_tensors_hooks(add, same):
        y = inner(x).exp()
    return (y @ W).tanh().sum()


@pytest.mark.parametrize("function", [broken, broken_within_two, broken_in_a_call])
def test_breaks_inside(function):
    warm = firebrick.compile(inner)
    gradients(lambda x: warm(x).sum())  # code for it that is not for where hooks are set
    compiled = firebrick.compile(function)
    for _ in range(2):
        agree(gradients(compiled), gradients(function))
    before = firebrick.graphs_compiled()
    again = firebrick.compile(within(same, same))  # behind it frames are captured again
    agree(gradients(again), gradients(within(same, same)))
    assert firebrick.graphs_compiled() == before + 1


class Box:
    def __init__(self, tensor):
        self.tensor = tensor


KEPT = []


def keeps(x):
    with saved_tensors_hooks(lambda t: (KEPT.append(t), len(KEPT) - 1)[1], lambda i: KEPT[i] + 1):
        return (x @ W).exp().sum()


def boxes(x):
    with saved_tensors_hooks(Box, lambda box: box.tensor + 1):
        return (x @ W).sin().sum()


def late(x):
    factor = 1
    with saved_tensors_hooks(same, lambda t: t * factor):
        y = (x @ W).sin().exp()
    factor = 3
    return y.sum()


def unpack_counts(x):
    seen = []
    with saved_tensors_hooks(add, lambda t: (seen.append(1), t)[1]):
        return (x @ W).sin().sum()


def sparse(x):
    with saved_tensors_hooks(add, same):
        return (torch.nn.functional.embedding(torch.tensor([1, 2, 3]), W, sparse=True).sum(0) * x).sum()


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (keeps, "nested function"),
        (boxes, "Box"),
        (late, "changes before the backward"),
        (unpack_counts, "does more than"),
        (sparse, "the graph is cut"),
        (lambda x: within(lambda t: t.add_(1), same)(x), "does more than"),
        (lambda x: within(add, lambda t: 1)(x), "returns a int"),
    ],
)
def test_what_no_graph_has(function, text):
    with pytest.raises(Unsupported, match=text):
        firebrick.compile(function, fullgraph=True)(X)
    try:
        wanted = gradients(function)
    except (RuntimeError, TypeError) as error:  # eager mode refuses it, and so do we
        with pytest.raises(type(error)):
            gradients(firebrick.compile(function))
    else:
        agree(gradients(firebrick.compile(function)), wanted)
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_disabled_hooks():
    def function(x):
        with torch.autograd.graph.disable_saved_tensors_hooks("none here"), saved_tensors_hooks(add, same):
            return x.exp().sum()

    with pytest.raises(RuntimeError, match="none here"):
        firebrick.compile(function)(X)
