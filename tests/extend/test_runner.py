"""Passes run in order, are checked, and a wrong one is named and skipped."""

import pytest
import torch
from torch import fx

from firebrick.config import Config
from firebrick.errors import PassError, UserLocation, VerificationError
from firebrick.extend import (
    Pass,
    PassRegistry,
    SubgraphCompiler,
    apply_passes,
    as_passes,
    fingerprint,
    graph_pass,
    order,
    rule,
    set_fake_values,
)
from firebrick.report import FirebrickWarning

LENIENT = Config(strict=False)
X = torch.randn(4, 4)


def program(x):
    y = x.clone()
    y.add_(1)
    return torch.relu(y @ x) * 2 + x


def graph():
    gm = set_fake_values(fx.symbolic_trace(program), [X])
    for node in gm.graph.nodes:
        node.meta["stack"] = (UserLocation("model.py", 7),)
    return gm


def find(gm, name):
    return next(n for n in gm.graph.nodes if n.name == name)


@graph_pass(level="torch")
def sign_flipped(gm):
    node = find(gm, "relu")
    with gm.graph.inserting_after(node):
        made = gm.graph.call_function(torch.neg, (node,))
    node.replace_all_uses_with(made, lambda user: user is not made)
    return True


@graph_pass(level="torch")
def dtype_changed(gm):
    node = find(gm, "add")
    with gm.graph.inserting_after(node):
        made = gm.graph.call_method("double", (node,))
    node.replace_all_uses_with(made, lambda user: user is not made)
    return True


@graph_pass(level="torch")
def aliasing_broken(gm):
    clone = find(gm, "clone")
    clone.replace_all_uses_with(clone.args[0])
    return True


@graph_pass(level="torch")
def illegal_graph(gm):
    node = find(gm, "relu")
    node.args = (find(gm, "add"),)
    return True


@graph_pass(level="torch")
def raises(gm):
    gm.graph.erase_node(next(n for n in gm.graph.nodes if n.op == "output"))
    raise KeyError("gone")


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (sign_flipped, r"output 0 is off by .* first at mul \(model.py:7\)"),
        (dtype_changed, "output 0 has dtype torch.float64 instead of torch.float32"),
        (aliasing_broken, "off by|after the call"),
        (illegal_graph, "left an illegal graph"),
        (raises, "raised KeyError"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_wrong_passes_are_named_and_skipped(step, text):
    gm = graph()
    wanted = program(X.clone())
    step.name = f"{step.name}_{abs(hash(text))}"  # each warns once a process
    with pytest.warns(FirebrickWarning, match=f"(?s)pass {step.name} was skipped: .*{text}"):
        (report,) = apply_passes(gm, [step], config=LENIENT, verify=True, example_inputs=[X])
    assert report.skipped
    assert not report.changed
    gm.recompile()
    x = X.clone()
    torch.testing.assert_close(gm(x), wanted)
    assert torch.equal(x, X)
    kind = PassError if step in (illegal_graph, raises) else VerificationError
    with pytest.raises(kind, match=step.name):
        apply_passes(graph(), [step], config=Config(strict=True), verify=True, example_inputs=[X])


def test_right_passes_are_kept_and_measured():
    @graph_pass(level="torch")
    def twice_as_sum(gm):
        node = find(gm, "mul")
        with gm.graph.inserting_after(node):
            made = gm.graph.call_function(torch.add, (node.args[0], node.args[0]))
        node.replace_all_uses_with(made)
        return True

    gm = graph()
    (report,) = apply_passes(gm, [twice_as_sum], verify=True, example_inputs=[X])
    assert report.changed
    assert report.error == 0
    assert all("val" in n.meta for n in gm.graph.nodes if n.op != "output")


def named(name, before=(), after=(), level="torch"):
    step = graph_pass(lambda gm: False, name=name, level=level)
    step.before, step.after = before, after
    return step


def test_order():
    steps = [named("c", after=("b", "unknown")), named("a"), named("b", before=("a",))]
    assert [s.name for s in order(steps)] == ["b", "c", "a"]
    with pytest.raises(PassError, match="each run before the other: .*x"):
        order([named("x", before=("y",)), named("y", before=("x",))])


def test_registry_switches():
    registry = PassRegistry()
    registry.register(named("on"))
    registry.register(named("off"), enabled=False)
    names = lambda *extra: [s.name for s in registry.active("torch", extra)]
    assert names() == ["on"]
    with registry.enabled("off"), registry.disabled("on"):
        assert names() == ["off"]
    assert names(named("mine")) == ["on", "mine"]
    assert names(named("aten", level="aten")) == ["on"]
    registry.enable("off")
    registry.disable("on")
    assert names() == ["off"]
    with pytest.raises(PassError, match="registered passes: off, on"):
        registry.enable("nothing")
    with pytest.raises(PassError, match="is registered"):
        registry.register(named("on"))
    with pytest.raises(PassError, match="two passes are named"):
        names(named("mine"), named("mine"))
    mine = named("off")
    assert registry.active("torch", [mine]) == (mine,)
    registry.unregister("on")
    assert registry.names() == {"off": True}


def test_a_block_leaves_the_registry_as_it_was():
    registry = PassRegistry()
    registry.register(named("kept"))
    with pytest.raises(RuntimeError, match="inside"), registry.restored():
        registry.register(named("forgotten"))
        registry.disable("kept")
        registry.unregister("kept")
        raise RuntimeError("inside")
    assert registry.names() == {"kept": True}
    registry.register(named("forgotten"))


def test_fingerprints_follow_the_content():
    def before(x, c: float):
        return torch.relu(x) * c

    def after(x, c: float):
        return torch.relu(x * c)

    def other(x, c: float):
        return torch.relu(x * (c + 0))

    first = fingerprint([rule(before, after, name="r")])
    assert first == fingerprint([rule(before, after, name="r")])
    assert first != fingerprint([rule(before, other, name="r")])
    assert first != fingerprint([rule(before, after, name="r", version=2)])
    assert first != fingerprint([rule(before, after, name="r", where=lambda c: c > 0)])
    assert fingerprint([]) == ""

    class Config_(Pass):
        name, level = "p", "aten"

        def __init__(self, size):
            self.size = size

    assert fingerprint([Config_(1)]) != fingerprint([Config_(2)])
    step = named("p")
    step.cacheable = False
    assert fingerprint([step]) is None


def test_as_passes():
    class Engine(SubgraphCompiler):
        name = "engine"

    step = named("a", level="aten")
    made = as_passes([[step], (Engine(),)])
    assert made[0] is step
    assert made[1].after == ("a",)
    assert not made[1].cacheable
    with pytest.raises(PassError, match="neither a Pass nor"):
        as_passes([3])
    with pytest.raises(PassError, match="unknown level"):
        graph_pass(level="nowhere")
