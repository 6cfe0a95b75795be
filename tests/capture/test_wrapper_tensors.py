"""Tensors of classes with a `__torch_dispatch__`: one graph through their dispatch, in training too."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import firebrick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Pair(torch.Tensor):
    """Two tensors; an operator is run on each."""

    @staticmethod
    def __new__(cls, a: Any, b: Any, scale: float = 1.0, requires_grad: bool = False) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device, requires_grad=requires_grad
        )

    def __init__(self, a: Any, b: Any, scale: float = 1.0, requires_grad: bool = False) -> None:
        self.a, self.b, self.scale = a, b, scale

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], (self.scale, self.requires_grad)

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Pair(inner["a"], inner["b"], *context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        scale = next(t.scale for t in tree_leaves(given) if isinstance(t, Pair))

        def part(name: str) -> Any:
            picked, named = tree_map(lambda t: getattr(t, name) if isinstance(t, Pair) else t, given)
            return tree_flatten(func(*picked, **named))

        (firsts, spec), (seconds, _) = part("a"), part("b")
        pairs = zip(firsts, seconds, strict=True)
        made = [Pair(x, y, scale) if isinstance(x, torch.Tensor) else x for x, y in pairs]
        return return_and_correct_aliasing(func, args, kwargs or {}, tree_unflatten(made, spec))

    def scaled(self) -> Any:
        return self * self.scale

    @property
    def total(self) -> Any:
        return self.a + self.b


def pair(*shape: int, scale: float = 2.0) -> Pair:
    return Pair(torch.randn(*shape), torch.randn(*shape), scale)


def plain(value: Any) -> Iterator[Any]:
    """The plain tensors in a value, and the classes of those in which they are."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and hasattr(leaf, "__tensor_flatten__"):
            yield type(leaf)
            names = leaf.__tensor_flatten__()[0]
            yield from plain([getattr(leaf, name) for name in names])
        else:
            yield leaf


def assert_same(got: Any, want: Any) -> None:
    got, want = [*plain(got)], [*plain(want)]
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other


def whole(fn: Callable[..., Any], *args: Any) -> Any:
    """The result of one compiled graph, twice."""
    firebrick.reset()
    before = firebrick.graphs_compiled()
    compiled = firebrick.compile(fn, fullgraph=True)
    compiled(*args)
    result = compiled(*args)
    assert firebrick.graphs_compiled() == before + 1
    return result


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "calls": lambda x: (torch.relu(x @ x.t()) + 1, x.view(16).sum(0) * x.shape[0], torch.cat([x, x * 2]).chunk(2)),
    "attributes and methods": lambda x: (x.scaled(), x.total * x.scale, x.a + 1),
    "made inside": lambda x: Pair(x.a * 2, x.b, 3.0).scaled(),
    "written to inside": lambda x: (x * 2).add_(1),
    "what is in it written to": lambda x: (x * 2, Pair(x.a.clone().add_(1), x.b)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["firebrick", "eager"])
def test_one_graph_through_the_dispatch(name, backend):
    x = pair(4, 4)
    want = PROGRAMS[name](x)
    if backend == "firebrick":
        got = whole(PROGRAMS[name], x)
    else:
        got = firebrick.compile(PROGRAMS[name], fullgraph=True, backend=backend)(x)
    assert_same(got, want)


def test_pairs_in_pairs():
    x = Pair(pair(2, 3), pair(2, 3))
    assert_same(whole(lambda x: torch.tanh(x) * 2, x), torch.tanh(x) * 2)


def test_the_tensor_itself_and_what_is_in_it_stay_what_they_are():
    x = pair(3)
    same, inner, _ = firebrick.compile(lambda x: (x, x.a, x + 1), fullgraph=True)(x)
    assert same is x
    assert inner is x.a


def test_guards_on_class_context_and_inner_tensors():
    fn = firebrick.compile(lambda x: x.scaled() if isinstance(x, Pair) else x * 5, fullgraph=True)
    for x in (pair(3), pair(3, scale=3.0), pair(4), torch.randn(3), Pair(pair(3), pair(3), 4.0), pair(3)):
        assert_same(fn(x), x.scaled() if isinstance(x, Pair) else x * 5)


def test_a_replaced_inner_tensor_of_a_parameter_is_seen():
    layer = nn.Linear(4, 3, bias=False)
    layer.weight = nn.Parameter(pair(3, 4), requires_grad=False)
    compiled, x = firebrick.compile(layer, fullgraph=True), torch.randn(2, 4)
    assert_same(compiled(x), layer(x))
    layer.weight.a = torch.randn(3, 4)
    assert_same(compiled(x), layer(x))


class Replacing(Pair):
    """A pair that holds other tensors after a write."""

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Replacing(inner["a"], inner["b"], *context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        firsts, seconds = (
            tree_map(lambda t, name=name: getattr(t, name) if isinstance(t, Pair) else t, args) for name in "ab"
        )
        if func is torch.ops.aten.add_.Tensor:
            args[0].a, args[0].b = torch.add(*firsts), torch.add(*seconds)
            return args[0]
        return Replacing(func(*firsts, **(kwargs or {})), func(*seconds, **(kwargs or {})), args[0].scale)


def _under_no_grad(x: Any) -> Any:
    y = x * x.scale
    with torch.no_grad():
        x.add_(1)
    return y, x.sin()


def _by_views(x: Any) -> Any:
    x.detach()[0] = 5.0
    rows = x.view(-1, 1)
    rows.mul_(2)
    return x + 1, rows


WRITES: dict[str, Callable[[Any], Any]] = {
    "by a method": lambda x: x.mul_(2) + 1,
    "by name": lambda x: torch.mul(x, 2, out=x),
    "to what is in it": lambda x: (x.a.mul_(2), x + 1),
    "by views": _by_views,
    "alone": lambda x: x.zero_(),
    "copied": lambda x: x.copy_(x * 3).sum(),
}


def _copied(x: Any) -> Any:
    inner = [t.detach().clone() if isinstance(t, torch.Tensor) else t for t in (x.a, x.b)]
    return type(x)(*inner, x.scale).requires_grad_(x.requires_grad)


def assert_written(fn: Callable[[Any], Any], x: Any, run: Callable[..., Any] = whole) -> None:
    """Whether results, what is written and the counted versions are those of eager mode."""
    y, z = _copied(x), _copied(x)
    want = fn(y)
    firebrick.reset()
    got = firebrick.compile(fn, fullgraph=run is whole)(z)
    assert_same(got, want)
    assert_same(z, y)
    assert z._version >= y._version, "autograd would not notice the write"
    assert (z.requires_grad, z.is_leaf) == (y.requires_grad, y.is_leaf)


@pytest.mark.parametrize("name", WRITES)
def test_one_that_was_given_is_written_to(name):
    assert_written(WRITES[name], pair(3))


def test_a_leaf_is_written_to_without_gradients():
    x = leaf(pair(3))
    assert_written(_under_no_grad, x)
    weights = firebrick.compile(torch.no_grad()(lambda x: x.add_(1) * 2), fullgraph=True)(x)
    assert not weights.requires_grad


def test_a_write_is_noticed_by_what_was_saved_before():
    x, w = pair(3), leaf(pair(3))
    y = x * w
    firebrick.compile(lambda x: x.add_(1), fullgraph=True)(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_writes_that_change_more_run_as_plain_python():
    assert_written(lambda x: x.add_(1) * 2, Replacing(torch.randn(3), torch.randn(3)), run=firebrick.compile)
    w = leaf(pair(3))
    assert_written(lambda x: x.add_(w) * 2, pair(3), run=firebrick.compile)


def test_buffers_are_written_to():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", Pair(torch.zeros(3), torch.ones(3)))

        def forward(self, x: Any) -> Any:
            self.seen.add_(x)
            return self.seen * 2

    x, one, other = torch.randn(3), Counting(), Counting()
    compiled = firebrick.compile(other, fullgraph=True)
    for _ in range(3):
        assert_same(compiled(x), one(x))
    assert_same(other.seen, one.seen)


def leaf(tensor: Any) -> Any:
    return tensor.requires_grad_()


def layers(count: int) -> Any:
    blocks = [nn.Sequential(nn.Linear(6, 6, bias=False), nn.GELU(), nn.LayerNorm(6)).double() for _ in range(count)]
    for block in blocks:
        block[0].weight = nn.Parameter(Pair(torch.randn(6, 6).double(), torch.randn(6, 6).double()))
        block[2].requires_grad_(False)
    return nn.Sequential(*blocks)


def gradients(fn: Callable[..., Any], leaves: list[Any], *args: Any) -> list[Any]:
    for one in leaves:
        one.grad = None
    result = fn(*args)
    result.sum().backward()
    return [result.detach(), *[one.grad for one in leaves]]


def test_gradients_of_an_argument():
    def fn(x: Any, y: Any) -> Any:
        return torch.tanh(x @ y) * x.scale

    x, y = leaf(pair(4, 4)), torch.randn(4, 4)
    want = gradients(fn, [x], x, y)
    assert_same(gradients(firebrick.compile(fn, fullgraph=True), [x], x, y), want)


@pytest.mark.parametrize("count", [1, 7])
def test_training_with_parameters(count):
    model, x = layers(count), torch.randn(5, 6, dtype=torch.float64)
    weights = [one for one in model.parameters() if one.requires_grad]
    want = gradients(model, weights, x)
    before = firebrick.graphs_compiled()
    assert_same(gradients(firebrick.compile(model, fullgraph=True), weights, x), want)
    assert firebrick.graphs_compiled() == before + 1


def test_a_replaced_inner_tensor_of_another_layout_is_seen_in_training():
    layer, x = nn.Linear(4, 4, bias=False), torch.randn(3, 4)
    layer.weight = nn.Parameter(pair(4, 4))
    compiled = firebrick.compile(layer, fullgraph=True)
    for _ in range(2):
        assert_same(gradients(compiled, [layer.weight], x), gradients(layer, [layer.weight], x))
        layer.weight.a = torch.randn(4, 4).t()


def test_a_gradient_that_is_laid_out_otherwise_runs_as_plain_python():
    layer, x = nn.Linear(4, 4), torch.randn(3, 4)  # the gradient of its bias is a pair
    layer.weight = nn.Parameter(pair(4, 4))
    want = gradients(layer, [*layer.parameters()], x)
    assert_same(gradients(firebrick.compile(layer), [*layer.parameters()], x), want)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_around(mode):
    x = pair(3)
    with mode():
        assert_same(whole(lambda x: x.exp(), x), x.exp())


def jagged(grad: bool = False) -> Any:
    rows = [torch.randn(3, 8), torch.randn(5, 8)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=grad)


NESTED: dict[str, Callable[[Any], Any]] = {
    "pointwise": lambda x: torch.relu(x) * 2 + x,
    "reduction": lambda x: x.sum(1) + torch.softmax(x, -1).sum(1),
    "padded": lambda x: torch.nested.to_padded_tensor(x, 0.0) + 1,
    "parts": lambda x: (x.values() * 2, x.offsets() + 1, x.size(-1)),
}


@pytest.mark.parametrize("name", NESTED)
def test_jagged_tensors(name):
    x = jagged()
    assert_same(whole(NESTED[name], x), NESTED[name](x))


ROWS: dict[str, Callable[[Any], Any]] = {
    "unbind": lambda x: [row * 2 for row in x.unbind()],
    "rows": lambda x: [row.sum(0) for row in torch.relu(x)],
    "one row": lambda x: x[1] + 1,
    "a row that is not there": lambda x: x.unbind()[:9],
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_jagged_tensors(name):
    x = jagged()
    assert_same(firebrick.compile(ROWS[name], fullgraph=True)(x), ROWS[name](x))


def test_rows_of_other_lengths_in_training():
    def fn(x: Any) -> Any:
        first, second = torch.unbind(x * 2)
        return first.sum() * second.cos().sum()

    compiled = firebrick.compile(fn, fullgraph=True)
    for lengths in ((3, 5), (6, 2), (1, 7)):
        x, y = (torch.nested.nested_tensor([torch.ones(n, 8) for n in lengths], layout=torch.jagged) for _ in range(2))
        assert_same(gradients(compiled, [leaf(x)], x), gradients(fn, [leaf(y)], y))


def test_rows_of_parts_of_sequences():
    def fn(x: Any) -> Any:
        return x.unbind(), torch.unbind(torch.ones(2, 3), 1)

    lengths = torch.tensor([2, 3])
    x = torch.nested.narrow(torch.randn(2, 4, 3), 1, torch.tensor([0, 1]), lengths, layout=torch.jagged)
    assert_same(firebrick.compile(fn, fullgraph=True)(x), fn(x))
    with pytest.raises(RuntimeError, match="only supported for NestedTensor on dim=0"):
        firebrick.compile(lambda x: x.unbind(1) * 2, fullgraph=True)(jagged())


def test_a_jagged_result_fits_its_argument():
    x = jagged()
    assert_same(whole(lambda x: x * 2, x) + x, x * 2 + x)


def test_jagged_training():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))
    compiled = firebrick.compile(copy.deepcopy(model), fullgraph=True)
    x = jagged(grad=True)
    for one in (model, compiled):
        x.grad = None
        torch.nested.to_padded_tensor(one(x), 0.0).sum().backward()
        one.of_x = x.grad
    assert_same(compiled.of_x, model.of_x)
    assert_same([p.grad for p in compiled.parameters()], [p.grad for p in model.parameters()])


@pytest.fixture
def mesh():
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_distributed_tensors(mesh):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    programs = (
        lambda x: torch.relu(x) @ x.t(),
        lambda x: (x.to_local() * 2, x.full_tensor() + 1),
        lambda x: x.redistribute(mesh, [Replicate()]) * 2,
        lambda x: DTensor.from_local(x.to_local(), mesh, [Shard(0)]) + x,
    )
    x = distribute_tensor(torch.randn(4, 8), mesh, [Shard(0)])
    for fn in programs:
        assert_same(whole(fn, x), fn(x))


def test_a_parallel_module_is_trained(mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x, weights = torch.randn(4, 8), [*model.parameters()]
    want = gradients(model, weights, x)
    assert_same(gradients(firebrick.compile(model, fullgraph=True), weights, x), want)


CONFIGURATIONS = ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Float8WeightOnlyConfig")


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_torchao(name):
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).eval()
    quantization.quantize_(model, getattr(quantization, name)())
    x = torch.randn(5, 64)
    with torch.no_grad():
        torch.testing.assert_close(whole(model, x), model(x), rtol=1e-3, atol=1e-3)
