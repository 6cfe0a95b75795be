"""Plug-ins that misbehave, through the whole of `firebrick.compile`: one warning that names them, right results."""

import time
import warnings

import pytest
import torch
from torch import nn

import firebrick
from firebrick import extend
from firebrick.errors import BackendError
from firebrick.extend import SubgraphCompiler, call_of, graph_pass, rule
from firebrick.report import FirebrickWarning, recorder

LENIENT = {"strict": False, "cache": False}


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()


def check_with_one_warning(compiled, net, match):
    recorder.reset()
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        for _ in range(3):
            x = torch.randn(4, 8)
            torch.testing.assert_close(compiled(x), net(x))
    texts = [str(w.message) for w in caught if issubclass(w.category, FirebrickWarning)]
    assert len(texts) == 1, texts
    assert match in texts[0]


class Bad(SubgraphCompiler):
    name = "bad"

    def __init__(self, kind):
        self.compile_, self.timeout = COMPILERS[kind][0], 0.2 if kind == "hangs" else None

    def supports(self, node):
        return call_of(node).name in ("addmm", "relu") or "not mine"

    def compile(self, graph, example_inputs):
        return self.compile_(graph, example_inputs)


COMPILERS = {
    "raises": (lambda g, i: 1 / 0, "ZeroDivisionError"),
    "wrong shape": (lambda g, i: lambda *x: [t[:1] for t in g(*x)], "instead of torch.float32 (4, 8)"),
    "hangs": (lambda g, i: time.sleep(5), "took longer than"),
    "raises at run time": (lambda g, i: lambda *x: 1 / 0, "ZeroDivisionError"),
}


@pytest.mark.parametrize("kind", COMPILERS)
def test_bad_compilers(net, kind):
    match = COMPILERS[kind][1]
    check_with_one_warning(firebrick.compile(net, passes=[Bad(kind)], options=LENIENT), net, match)
    with torch.no_grad(), pytest.raises(BackendError, match="bad failed"):
        firebrick.compile(net, passes=[Bad(kind)], options={"strict": True, "cache": False})(torch.randn(4, 8))


def test_a_pattern_that_never_ends(net):
    endless = rule(lambda x: torch.relu(x), lambda x: torch.relu(x), name="endless", repeat=True)
    compiled = firebrick.compile(net, passes=[endless], options=LENIENT)
    check_with_one_warning(compiled, net, "pass endless was skipped")


@graph_pass(level="torch")
def sign_flipped(gm):
    node = next(n for n in gm.graph.nodes if (c := call_of(n)) is not None and c.name == "relu")
    with gm.graph.inserting_after(node):
        made = gm.graph.call_function(torch.neg, (node,))
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
    return True


@graph_pass(level="aten")
def dtype_changed(gm):
    node = next(n for n in gm.graph.nodes if (c := call_of(n)) is not None and c.name == "relu")
    with gm.graph.inserting_after(node):
        half = gm.graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": torch.float16})
        made = gm.graph.call_function(torch.ops.aten._to_copy.default, (half,), {"dtype": torch.float32})
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not half)
    return True


@pytest.mark.parametrize("wrong", [sign_flipped, dtype_changed], ids=lambda p: p.name)
def test_wrong_passes_are_skipped_by_verification(net, wrong):
    compiled = firebrick.compile(net, passes=[wrong], options={**LENIENT, "verify_passes": True})
    check_with_one_warning(compiled, net, f"pass {wrong.name} was skipped")


class Named(SubgraphCompiler):
    def __init__(self, name, ops, priority):
        self.name, self.ops, self.priority = name, ops, priority
        self.seen = []

    def supports(self, node):
        return call_of(node).name in self.ops or "not mine"

    def compile(self, graph, example_inputs):
        self.seen += [call_of(n).name for n in graph.graph.nodes if n.op == "call_function"]
        return graph.forward


@pytest.mark.parametrize("first", ["one", "two"])
def test_who_has_the_higher_priority_chooses_first(net, first):
    one = Named("one", ("addmm", "relu"), 1 if first == "one" else 0)
    two = Named("two", ("relu",), 1 if first == "two" else 0)
    compiled = firebrick.compile(net, passes=[two, one], options={"cache": False})
    with torch.no_grad():
        x = torch.randn(4, 8)
        torch.testing.assert_close(compiled(x), net(x))
    assert ("relu" in one.seen) == (first == "one")
    assert two.seen == ([] if first == "one" else ["relu"])
    assert one.seen.count("addmm") == 2


def test_facts_about_devices_and_dtypes():
    def program(x, i):
        return torch.relu(x) + 1, i * 2

    class Elsewhere(Named):
        devices = frozenset({"chip"})

    class Floats(Named):
        dtypes = frozenset({torch.float32})

    gm = extend.set_fake_values(torch.fx.symbolic_trace(program), [torch.randn(3), torch.arange(3)])
    report = extend.partition(
        gm, [Elsewhere("elsewhere", ("relu", "add", "mul"), 1), Floats("floats", ("add", "mul"), 0)]
    )
    assert len(report.refused["elsewhere", "device cpu"]) == 3
    assert report.refused["floats", "dtype int64"] == ["mul"]
    assert [c.nodes for c in report.claims] == [("add",)]
