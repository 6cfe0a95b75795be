"""The public functions: compiled objects behave as the originals, and the switches switch."""

from __future__ import annotations

import asyncio
import copy
import inspect
import io
import pickle
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import firebrick
from firebrick import errors

X, W = torch.randn(8, 16), torch.randn(16, 32)


def score(x: Tensor, w: Tensor, *, scale: float = 1.0) -> Tensor:
    """Softmax of scores."""
    return F.gelu(x @ w).softmax(-1) * scale


def toy(a: Tensor, b: Tensor) -> Tensor:
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * self.scale

    def describe(self) -> str:
        return f"net of scale {self.scale}"


class Graphs:
    """A backend that keeps the graphs that it is given."""

    def __init__(self) -> None:
        self.found: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        self.found.append(gm)
        return gm.forward


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def test_compile_function() -> None:
    before = firebrick.graphs_compiled()
    compiled = firebrick.compile(score)
    same(compiled(X, W, scale=3.0), score(X, W, scale=3.0))
    assert firebrick.graphs_compiled() == before + 1
    assert compiled.__name__ == "score"
    assert compiled.__doc__ == score.__doc__
    assert inspect.signature(compiled) == inspect.signature(score)


@pytest.mark.parametrize("decorate", [firebrick.compile, firebrick.compile(), firebrick.compile(backend="eager")])
def test_compile_decorates(decorate: Any) -> None:
    @decorate
    def double(x: Tensor) -> Tensor:
        return x * 2

    same(double(X), X * 2)


def test_compile_decorates_methods() -> None:
    class Scaler:
        factor = 3.0

        @firebrick.compile
        def __call__(self, x: Tensor) -> Tensor:
            return x * self.factor

    same(Scaler()(X), X * 3.0)


def test_compiled_module_is_the_same_kind_of_object() -> None:
    net = Net().eval()
    compiled = firebrick.compile(net)
    same(compiled(X), net(X))
    assert isinstance(compiled, Net)
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert compiled.describe() == "net of scale 2.0"
    assert compiled.layers is net.layers
    assert repr(compiled) == repr(net)
    assert inspect.signature(compiled.forward) == inspect.signature(net.forward)
    assert compiled.forward.__doc__ == net.forward.__doc__
    compiled.scale = 5.0
    assert net.scale == 5.0
    same(compiled(X), net(X))
    compiled.train()
    assert net.training
    assert net.layers[1].training


def test_compiled_module_in_a_parent() -> None:
    parent = nn.Sequential(Net().eval(), nn.Tanh())
    keys, expected = list(parent.state_dict()), parent(X)
    parent[0] = firebrick.compile(parent[0])
    assert list(parent.state_dict()) == keys
    same(parent(X), expected)


def test_compiled_module_copies_and_pickles() -> None:
    net = Net().eval()
    compiled = firebrick.compile(net)
    expected = net(X)
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    for made in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled)), torch.load(file, weights_only=False)):
        assert isinstance(made, Net)
        assert made.layers[0].weight is not net.layers[0].weight
        before = firebrick.graphs_compiled()
        same(made(X), expected)
        assert firebrick.graphs_compiled() == before + 1


def test_training_statistics_are_written() -> None:
    net = Net().train()
    other = copy.deepcopy(net)
    compiled = firebrick.compile(net)
    same(compiled(X), other(X))
    for a, b in zip(net.buffers(), other.buffers(), strict=True):
        same(a.float(), b.float())


def test_gradients_are_right() -> None:
    net = Net().eval()
    with torch.enable_grad():
        firebrick.compile(net)(X).sum().backward()
    grads = [p.grad for p in net.parameters()]
    net.zero_grad()
    with torch.enable_grad():
        net(X).sum().backward()
    for a, p in zip(grads, net.parameters(), strict=True):
        same(a, p.grad)


def test_changed_weights_are_seen() -> None:
    net = Net().eval()
    compiled = firebrick.compile(net)
    compiled(X)
    net.layers[0].weight.mul_(2.0)
    same(compiled(X), net(X))
    net.layers[3].weight = nn.Parameter(torch.randn(4, 32))
    same(compiled(X), net(X))
    net.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in net.state_dict().items()})
    same(compiled(X), net(X))


def test_optimize_gives_the_two_graphs_of_the_post() -> None:
    graphs = Graphs()
    a, b = torch.randn(10), -torch.ones(10)
    with firebrick.optimize(graphs):
        same(toy(a, b), a / (torch.abs(a) + 1))
    assert [[n.name for n in g.graph.nodes if n.op.startswith("call")] for g in graphs.found] == [
        ["abs_1", "add", "truediv", "sum_1", "lt"],
        ["mul", "mul_1"],
    ]
    toy(a, b)
    assert len(graphs.found) == 2
    decorated = firebrick.optimize(graphs)(toy)
    decorated(a, b)
    assert len(graphs.found) == 4


def test_run_compiles_nothing_new() -> None:
    graphs = Graphs()
    compiled = firebrick.optimize(graphs)(score)
    compiled(X, W)
    with firebrick.run():
        same(compiled(X, W), score(X, W))
        same(compiled(X[:3], W), score(X[:3], W))
    firebrick.run(compiled)(X[:5], W)
    assert len(graphs.found) == 1


def test_disable() -> None:
    graphs = Graphs()

    @firebrick.disable
    def plain(x: Tensor) -> Tensor:
        return x.cos()

    def outer(x: Tensor) -> Tensor:
        return plain(x.sin()).exp()

    compiled = firebrick.optimize(graphs)(outer)
    same(compiled(X), outer(X))
    called = {str(n.target) for g in graphs.found for n in g.graph.nodes}
    assert "cos" not in called
    count = len(graphs.found)
    with firebrick.disable():
        compiled(X[:2])
    assert len(graphs.found) == count


def test_disable_class() -> None:
    graphs = Graphs()

    @firebrick.disable
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.cos()

    same(firebrick.optimize(graphs)(Plain())(X), X.cos())
    assert not graphs.found


def test_graph_break_and_is_compiling() -> None:
    graphs = Graphs()

    def outer(x: Tensor) -> Tensor:
        y = x.sin()
        firebrick.graph_break()
        return y.cos() if firebrick.is_compiling() else y.tan()

    same(firebrick.optimize(graphs)(outer)(X), X.sin().cos())
    assert len(graphs.found) == 2
    assert not firebrick.is_compiling()


def test_fullgraph_raises() -> None:
    with pytest.raises(errors.Unsupported, match="data-dependent"):
        firebrick.compile(toy, fullgraph=True)(torch.randn(3), torch.randn(3))
    with pytest.raises(errors.Unsupported, match=r"test_api\.py"):
        firebrick.optimize("eager", nopython=True)(toy)(torch.randn(3), torch.randn(3))


def test_autocast_regions() -> None:
    def mixed(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        before = x @ w
        with torch.autocast("cpu", torch.bfloat16):
            inside = x @ w
            with torch.autocast("cpu", enabled=False):
                nested = x @ w
        return before, inside, nested, x @ w

    ours, theirs = firebrick.compile(mixed)(X, W), mixed(X, W)
    assert [t.dtype for t in ours] == [t.dtype for t in theirs]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-2, rtol=1e-2)
    with torch.autocast("cpu", torch.bfloat16):
        assert firebrick.compile(score)(X, W).dtype == score(X, W).dtype
    assert not torch.is_autocast_enabled("cpu")


def test_reset_forgets() -> None:
    graphs = Graphs()
    compiled = firebrick.optimize(graphs)(score)
    compiled(X, W)
    compiled(X, W)
    assert len(graphs.found) == 1
    firebrick.reset()
    compiled(X, W)
    assert len(graphs.found) == 2


def test_explain(tmp_path: Any) -> None:
    explanation = firebrick.explain(toy)(torch.randn(10), -torch.ones(10))
    data = explanation.to_dict()
    assert (data["graph_count"], data["break_count"]) == (2, 1)
    assert 80 <= data["coverage_percent"] <= 100
    assert "test_api.py" in str(explanation)
    assert "data-dependent" in str(explanation)
    explanation.to_html(tmp_path / "page.html")
    assert "data-dependent" in (tmp_path / "page.html").read_text()
    whole = firebrick.explain(Net().eval())(X).to_dict()
    assert (whole["graph_count"], whole["break_count"], whole["coverage_percent"]) == (1, 0, 100.0)


def test_explanation_prints_the_foremost_of_many_guards() -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(12))).eval()
    explanation = firebrick.explain(layers)(torch.ones(2, 4))
    frame = explanation.to_dict()["frames"][0]
    lines = [line for line in str(explanation).splitlines() if "guard" in line]
    assert len(frame["guards"]) > 24
    assert len(lines) == 25
    assert any("f32[2, 4]" in line for line in lines[:-1])
    assert str(len(frame["guards"]) - 24) in lines[-1]


def test_explain_runs_the_function_once() -> None:
    ran = []

    def count(x: Tensor) -> Tensor:
        ran.append(len(ran))
        print(end="")
        return x + len(ran)

    same(firebrick.explain(count)(X).result, X + 1)
    assert ran == [0]


def test_coroutines_and_generators_run_as_they_are() -> None:
    async def twice(x: Tensor) -> Tensor:
        return x * 2

    def rows(x: Tensor) -> Any:
        for row in x:
            yield row + 1

    same(asyncio.run(firebrick.compile(twice)(X)), X * 2)
    same(torch.stack(list(firebrick.compile(rows)(X))), X + 1)


def test_stats_are_plain_data() -> None:
    firebrick.compile(score)(X, W)
    stats = firebrick.stats()
    assert stats["graphs_compiled"] == firebrick.graphs_compiled() >= 1
    assert stats["seconds"]["capture"] > 0


def test_mark_dynamic_checks_its_arguments() -> None:
    t = torch.zeros(3, 4)
    firebrick.mark_dynamic(t, 0, min=2, max=8)
    firebrick.mark_static(t, -1)
    with pytest.raises(errors.ConfigError, match="no dimension 5"):
        firebrick.mark_dynamic(t, 5)
    with pytest.raises(errors.ConfigError, match="outside"):
        firebrick.mark_dynamic(t, 0, min=10)


def test_aot_hands_over_aten() -> None:
    seen = []

    def fw(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        seen.extend(str(n.target) for n in gm.graph.nodes if n.op == "call_function")
        return gm.forward

    same(firebrick.aot(score, fw)(X, W), score(X, W))
    assert "aten.gelu.default" in seen


def test_save_and_load(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net().eval()
    compiled = firebrick.compile(net)
    expected = compiled(X)
    firebrick.save(compiled, tmp_path / "net.fb")
    monkeypatch.setenv("FIREBRICK_CACHE_DIR", str(tmp_path / "cache"))
    before = firebrick.stats()["counts"].get("units built", 0)
    loaded = firebrick.load(tmp_path / "net.fb")
    same(loaded(X.detach()), expected)
    assert firebrick.stats()["counts"].get("units built", 0) == before
    with pytest.raises(errors.ConfigError, match="compiled"):
        firebrick.save(net, tmp_path / "other.fb")


def test_threads_have_their_own_switches() -> None:
    compiled = firebrick.compile(score)
    results: list[Tensor] = []
    with firebrick.disable():
        thread = threading.Thread(target=lambda: results.append(compiled(X, W)))
        thread.start()
        thread.join()
    with torch.no_grad():
        same(results[0].detach(), score(X, W))


def test_platform_check() -> None:
    with pytest.raises(errors.PlatformError, match=r"3\.11 to 3\.13"):
        firebrick._check_platform((3, 10), "2.13.0")
    with pytest.raises(errors.PlatformError, match=r"2\.11 to 2\.14"):
        firebrick._check_platform((3, 11), "2.9.1+cpu")
    firebrick._check_platform((3, 13), "2.14.0a0")
