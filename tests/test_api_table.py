"""Each public name does what its row says, in each of the ways in which it can be used."""

from __future__ import annotations

import asyncio
import copy
import inspect
import io
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firebrick

X = torch.arange(6.0).reshape(2, 3)
ROWS: dict[str, Any] = {}


class Counting:
    """A backend that counts graphs and their calls."""

    def __init__(self) -> None:
        self.graphs = self.calls = 0

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        self.graphs += 1

        def run(*inputs: Any) -> Any:
            self.calls += 1
            return gm.forward(*inputs)

        return run


class Net(nn.Module):
    """A linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: Tensor, *, scale: float = 2.0) -> Tensor:
        """Scaled."""
        self.calls += 1
        return self.linear(x) * scale


def row(function: Any) -> Any:
    """Add a row: the name of the function up to the first double underscore is the public name."""
    ROWS[function.__name__] = function
    return function


def double(x: Tensor, *, by: float = 2.0) -> Tensor:
    """Multiplied."""
    return x * by


def compiled(function: Any, **options: Any) -> tuple[Any, Counting]:
    backend = Counting()
    return firebrick.compile(function, backend=backend, **options), backend


@row
def compile__keeps_what_a_function_is() -> None:
    fn, backend = compiled(double)
    assert torch.equal(fn(X, by=3.0), X * 3)
    assert backend.graphs == 1
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        assert getattr(fn, name) == getattr(double, name)
    assert inspect.signature(fn) == inspect.signature(double)
    assert fn.__wrapped__ is double


@row
def compile__keeps_what_a_module_is() -> None:
    net = Net()
    model, backend = compiled(net)
    assert torch.equal(model(X, scale=1.0), net(X, scale=1.0))
    assert backend.graphs == 1
    assert isinstance(model, Net) and type(model).__name__ == "Net"
    assert model.__doc__ == net.__doc__ and inspect.signature(model.forward) == inspect.signature(net.forward)
    assert list(model.state_dict()) == list(net.state_dict())
    assert model.linear.weight is net.linear.weight
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = Net()
    fresh.load_state_dict(torch.load(file))
    assert torch.equal(fresh(X), net(X))


@row
def compile__copies_and_saves_whole_modules() -> None:
    model, backend = compiled(Net())
    want = model(X)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.linear.weight.zero_()
    assert torch.equal(model(X), want)
    assert not torch.equal(copied(X), want)
    saved, file = firebrick.compile(Net(), backend="eager"), io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(X), saved(X))


KINDS = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


async def later(x: Tensor) -> Tensor:
    return x + 1


def rows(x: Tensor) -> Any:
    yield from x


async def async_rows(x: Tensor) -> Any:
    yield x


class Served:
    async def serve(self, x: Tensor) -> Tensor:
        return x + 1


def kinds_are_kept(wrap: Any) -> None:
    for function in (later, rows, async_rows, Served().serve, double):
        made = wrap(function)
        assert made is not function
        assert [kind(made) for kind in KINDS] == [kind(function) for kind in KINDS]
        assert inspect.signature(made) == inspect.signature(function)
        assert made.__name__ == function.__name__
    assert torch.equal(asyncio.run(wrap(Served().serve)(X)), X + 1)
    assert torch.equal(asyncio.run(wrap(later)(X)), X + 1)
    assert len(list(wrap(rows)(X))) == 2


@row
def compile__keeps_kinds_of_functions() -> None:
    kinds_are_kept(firebrick.compile)


@row
def optimize__as_decorator_and_context() -> None:
    backend = Counting()
    assert torch.equal(firebrick.optimize(backend)(double)(X), X * 2)
    assert backend.graphs == 1
    manager = firebrick.optimize(backend)
    for _ in range(2):
        with manager:
            assert torch.equal(double(X), X * 2)
    assert (backend.graphs, backend.calls) == (2, 3)
    double(X)
    assert backend.calls == 3
    kinds_are_kept(firebrick.optimize("eager"))
    model = firebrick.optimize(backend)(Net())
    model(X)
    assert isinstance(model, Net) and backend.graphs == 3


@row
def optimize__without_python() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(firebrick.errors.Unsupported, match="data-dependent-branch"):
        firebrick.optimize("eager", nopython=True)(f)(X)


@row
def run__as_decorator_and_context() -> None:
    fn, backend = compiled(double)
    with firebrick.run():
        fn(X)
    firebrick.run(fn)(X)
    assert backend.graphs == 0
    fn(X)
    with firebrick.run():
        fn(X)
        fn(X.double())
    assert torch.equal(firebrick.run(fn)(X), X * 2)
    assert (backend.graphs, backend.calls) == (1, 3)
    kinds_are_kept(firebrick.run)
    model, seen = compiled(Net())
    assert torch.equal(firebrick.run(model)(X), model(X))
    assert (seen.graphs, firebrick.run(model).calls) == (1, 2)


@row
def disable__as_decorator_and_context() -> None:
    fn, backend = compiled(double)
    with firebrick.disable():
        assert torch.equal(fn(X), X * 2)
    assert backend.graphs == 0
    plain = firebrick.disable(double)
    outer, seen = compiled(lambda x: plain(x + 1) - 1)
    assert torch.equal(outer(X), (X + 1) * 2 - 1)
    assert seen.graphs == 2
    kinds_are_kept(firebrick.disable)


@row
def disable__of_a_class() -> None:
    @firebrick.disable
    class Plain:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        def go(self, x: Tensor) -> Tensor:
            return x * self.scale

    made = Plain(3.0)
    fn, backend = compiled(lambda x: made.go(x))
    assert torch.equal(fn(X), X * 3)
    assert backend.graphs == 0
    model = firebrick.disable(Net())
    whole, seen = compiled(lambda x: model(x))
    assert torch.equal(whole(X), model(X))
    assert seen.graphs == 0


@row
def reset__forgets_what_was_compiled() -> None:
    fn, backend = compiled(double)
    fn(X)
    firebrick.reset()
    fn(X)
    fn(X)
    assert (backend.graphs, backend.calls) == (2, 3)


@row
def graph_break__parts_a_graph() -> None:
    def f(x: Tensor) -> Tensor:
        y = x + 1
        firebrick.graph_break()
        return y * 2

    firebrick.graph_break()  # of no effect here
    fn, backend = compiled(f)
    assert torch.equal(fn(X), (X + 1) * 2)
    assert backend.graphs == 2
    with pytest.raises(firebrick.errors.Unsupported, match="requested"):
        firebrick.compile(f, backend="eager", fullgraph=True)(X)


@row
def is_compiling__is_true_inside() -> None:
    def f(x: Tensor) -> Tensor:
        return x + (1 if firebrick.is_compiling() else 2)

    assert torch.equal(firebrick.compile(f, backend="eager")(X), X + 1)
    assert torch.equal(f(X), X + 2)


@row
def set_stance__in_its_three_forms() -> None:
    fn, backend = compiled(lambda x: x + torch.compiler.is_compiling())
    with firebrick.set_stance("force_eager"):
        assert torch.equal(fn(X), X)
    decorated = firebrick.set_stance("eager_on_recompile")(lambda x: fn(x))
    assert torch.equal(decorated(X), X)
    firebrick.set_stance("fail_on_recompile")
    with pytest.raises(firebrick.errors.RecompileError, match="nothing was compiled"):
        fn(X)
    firebrick.set_stance()
    assert torch.equal(fn(X), X + 1)
    assert torch.equal(decorated(X), X + 1)
    assert backend.graphs == 1


@row
def assume_constant_result__is_called_once() -> None:
    asked: list[int] = []

    @firebrick.assume_constant_result
    def setting() -> int:
        asked.append(1)
        return 3

    fn, backend = compiled(lambda x: x * setting())
    for _ in range(3):
        assert torch.equal(fn(X), X * 3)
    assert (asked, backend.graphs) == ([1], 1)


@row
def allow_in_graph__is_one_node() -> None:
    @firebrick.allow_in_graph
    def opaque(x: Tensor) -> Tensor:
        return x.sin().cos()

    report = firebrick.explain(lambda x: opaque(x) + 1)(X)
    assert ([graph.ops for graph in report.graphs], report.breaks) == ([2], [])
    assert torch.equal(report.result, X.sin().cos() + 1)


@row
def mark_dynamic__and_static_are_accepted() -> None:
    fn, _ = compiled(double)
    for size in (4, 5, 9):
        tensor = torch.ones(size, 3)
        firebrick.mark_dynamic(tensor, 0)
        firebrick.mark_dynamic(tensor, 1, min=2, max=8)
        firebrick.mark_static(tensor, 1)
        assert torch.equal(fn(tensor), tensor * 2)
    with pytest.raises(firebrick.errors.ConfigError, match="no dimension 2"):
        firebrick.mark_static(tensor, 2)


@row
def explain__runs_the_model_once() -> None:
    net = Net()
    report = firebrick.explain(net)(X)
    assert net.calls == 1
    assert torch.equal(report.result, net(X))
    facts = report.to_dict()
    assert len(facts["graphs"]) == 1 and facts["breaks"] == []
    assert "Net.forward" in str(report)

    def broken(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x

    (found,) = firebrick.explain(broken)(X).to_dict()["breaks"]
    assert "data-dependent-branch" in str(found) and "test_api_table.py" in str(found)


@row
def compiled_backward__is_one_graph() -> None:
    weight = torch.ones(3, requires_grad=True)
    before = firebrick.stats()["counts"].get("graphs of compiled backwards", 0)
    with torch.enable_grad(), firebrick.compiled_backward():
        weight.sin().sum().backward()
    assert torch.allclose(weight.grad, weight.cos())
    assert firebrick.stats()["counts"]["graphs of compiled backwards"] - before == 1


@row
def stats__counts() -> None:
    before = firebrick.stats()
    fn, _ = compiled(lambda x: double(x) * (2 if x.sum() > 0 else 3))
    fn(X)
    fn(X.double())
    after = firebrick.stats()
    grown = {name: after["counts"][name] - before["counts"].get(name, 0) for name in ("graphs", "breaks", "ops")}
    assert grown["graphs"] >= 2 and grown["breaks"] == 2 and grown["ops"] >= 4
    assert any("dtype" in why for why in after["reasons"]["recompile"])
    assert after["seconds"]["capture"] > before["seconds"].get("capture", 0)


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    with torch.no_grad():
        ROWS[name]()


def test_every_switch_and_mark_has_a_row() -> None:
    others = {
        "aot",
        "export",
        "save",
        "load",
        "list_backends",
        "register_backend",
        "Explanation",
        "graphs_compiled",
        "__version__",
    }
    functions = {name for name in firebrick.__all__ if not isinstance(getattr(firebrick, name), types.ModuleType)}
    assert {name.partition("__")[0] for name in ROWS} | {"mark_static"} == functions - others
