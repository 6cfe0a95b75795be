"""A profiler sees compiled kernels and library calls by what they compute, with the user's file and line."""

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import firebrick
from firebrick.fakes.node_values import number_nodes, origins
from firebrick.ir.graph.labels import step_labels

pytestmark = pytest.mark.compiler


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = torch.nn.Linear(256, 256), torch.nn.LayerNorm(256)

    def forward(self, x):
        y = torch.nn.functional.gelu(self.up(x))
        return self.norm(x + y * 2.0)


LINE = Block.forward.__code__.co_firstlineno


def traced(call):
    with profile(activities=[ProfilerActivity.CPU]) as found, torch.no_grad():
        call()
    return found


def names_of(found):
    return {event.name for event in found.events()}


@pytest.fixture
def compiled():
    model, x = firebrick.compile(Block().eval()), torch.randn(64, 256)
    with torch.no_grad():
        model(x)
    return lambda: model(x)


def test_kernels_are_named_by_their_ops_and_the_users_line(compiled):
    names = names_of(traced(compiled))
    assert f"fused_mul_add_layer_norm runtime/test_ranges.py:{LINE + 2}" in names
    assert any(n.startswith("fused_linear_gelu runtime/test_ranges.py") for n in names)


def test_the_chrome_trace_has_them(compiled, tmp_path):
    traced(compiled).export_chrome_trace(str(tmp_path / "t.json"))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert any(e.get("name", "").startswith("fused_mul_add_layer_norm") for e in events)


def test_an_artifact_from_the_cache_is_named_by_the_code_that_uses_it(tmp_path):
    def make(name, gap):
        file = tmp_path / name
        file.write_text("import torch\n" + gap + "def f(x):\n    y = torch.sin(x)\n    return y * 3.0 + 1.0\n")
        scope = {}
        exec(compile(file.read_text(), str(file), "exec"), scope)
        return scope["f"]

    options = {"cache_dir": tmp_path / "cache"}
    for name, gap, line in (("one.py", "", 4), ("two.py", "\n\n\n", 7)):
        f = firebrick.compile(make(name, gap), options=options)
        x = torch.randn(100)
        f(x)
        assert any(
            n.startswith("fused_sin_mul_add") and n.endswith(f"{name}:{line}") for n in names_of(traced(lambda: f(x)))
        )


def test_a_failing_step_ends_its_range():
    def f(x, i):
        return torch.index_select(x, 0, i).sin()

    call = firebrick.compile(f)
    x = torch.randn(4, 4)
    call(x, torch.tensor([1]))

    def bad():
        with pytest.raises((IndexError, RuntimeError)):
            call(x, torch.tensor([9]))
        torch.ones(1)

    found = traced(bad)
    ones = [e for e in found.events() if e.name == "aten::ones"]
    assert ones and all(e.cpu_parent is None for e in ones)


def test_labels_leave_views_out_and_stay_short():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_method("view", (x, -1))
    for fn in (torch.sin, torch.cos, torch.tan, torch.exp, torch.abs):
        y = graph.call_function(fn, (y,))
    graph.output(y)
    assert step_labels(graph, [((1, 2), ""), ((1,), ""), ((2, 3, 4, 5, 6), ""), ((2,), "aten::sin"), ((), "")]) == [
        "sin",
        "view",
        "fused_sin_cos_tan_2_more",
        "sin aten::sin",
        "copy",
    ]


def test_nodes_without_a_place_are_not_numbered():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    number_nodes(graph)
    assert origins(x) == ()
