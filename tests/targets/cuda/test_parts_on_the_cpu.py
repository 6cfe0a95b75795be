"""What a program for a GPU does on the CPU alone is a graph of its own, so that the other one can be recorded."""

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from firebrick import pipeline
from firebrick.config import Config
from firebrick.fakes.segments import segments
from firebrick.trace import cpu_part

CARD = "cuda:0"


def draw(like):
    return torch.rand(len(like))


torch.fx.wrap("draw")


def given(fn, *devices):
    gm = fx.symbolic_trace(fn)
    with FakeTensorMode() as mode:
        FakeTensorProp(gm, mode).propagate(*[torch.empty(4, 4, device=device) for device in devices])
    for node in gm.graph.nodes:
        node.meta["val"] = node.meta["val"] if "val" in node.meta else None
    return gm


class Here(fx.Interpreter):
    """Runs a graph with the CPU in place of the card."""

    def call_method(self, target, args, kwargs):
        return super().call_method(target, tuple("cpu" if a == CARD else a for a in args), kwargs)


@pytest.fixture(autouse=True)
def card(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)


def lengths(x, n):
    a = x * 2
    n.add_(1)
    b = n + draw(n)
    c = torch.relu(a + b.to(CARD))
    return c, n.mul_(3), draw(n).to(CARD) + c


def test_the_cpus_part_is_in_front():
    gm = given(lengths, CARD, "cpu")
    xs = torch.randn(4, 4), torch.randn(4, 4)
    torch.manual_seed(0)
    want = Here(gm).run(*[x.clone() for x in xs])
    first, second = segments(gm, cpu_part.part_on_cpu(gm, Config(graphs=None)))
    torch.manual_seed(0)
    for one, other in zip(Here(gm).run(*[x.clone() for x in xs]), want, strict=True):
        assert torch.equal(one, other)
    assert [n.name for n in first.inputs] == ["n"]
    assert all(n.meta["val"].device.type == "cuda" for n in second.graph.graph.nodes if n.op != "output")
    assert len(second.outputs) == 2


def test_draws_that_nobody_reads_are_made():
    gm = given(lambda x: (draw(x.cpu()), x * 2)[1], CARD)
    assert not cpu_part.part_on_cpu(gm, Config(graphs=None))  # x is copied to the CPU
    gm = given(lambda x, n: (draw(n), x * 2)[1], CARD, "cpu")
    first, second = segments(gm, cpu_part.part_on_cpu(gm, Config(graphs=None)))
    assert [n.name for n in first.graph.graph.nodes if n.op == "call_function"] == ["draw"]
    assert not first.outputs
    assert [n.name for n in second.inputs] == ["x"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: x * 2 + n.sum(),
        lambda x, n: (x * 2).cpu() + n,
    ],
    ids=["a number for a kernel", "a copy from the card"],
)
def test_what_is_left_as_it_is(fn):
    gm = given(fn, CARD, "cpu")
    before = [n.name for n in gm.graph.nodes]
    starts = cpu_part.part_on_cpu(gm, Config(graphs=None))
    assert not starts
    assert [n.name for n in gm.graph.nodes] == before


def test_what_is_made_of_nothing_is_folded_instead():
    graph = fx.Graph()
    x, made = graph.placeholder("x"), graph.call_function(torch.arange, (4,))
    graph.output(graph.call_function(torch.add, (x, graph.call_method("to", (made, CARD)))))
    gm = fx.GraphModule({}, graph)
    with FakeTensorMode() as mode:
        FakeTensorProp(gm, mode).propagate(torch.empty(4, device="cuda"))
    assert not cpu_part.part_on_cpu(gm, Config(graphs=None))


def test_other_graphs():
    assert not cpu_part.part_on_cpu(given(lambda x, y: x * 2 + draw(y), "cpu", "cpu"), Config(graphs=None))
    assert not cpu_part.part_on_cpu(given(lambda x, y: x * 2 + y, CARD, CARD), Config(graphs=None))


def test_where_calls_are_never_recorded():
    assert not cpu_part.part_on_cpu(given(lengths, CARD, "cpu"), Config(graphs=False))


def test_parts_are_compiled_apart(monkeypatch):
    """On a CPU, as if the first of two calls were another machine's."""

    def cut(gm, config):
        names = [n.name for n in gm.graph.nodes]
        return frozenset(n for n in gm.graph.nodes if n.name == "mul" and "draw" in names)

    monkeypatch.setattr(cpu_part, "part_on_cpu", cut)
    gm, before = given(lambda x: (draw(x), (x * 2,))[1], "cpu"), pipeline.graphs_compiled()
    run = pipeline.compile_graph(gm, [torch.ones(4, 4)], Config())
    torch.manual_seed(3)
    assert torch.equal(run(torch.ones(4, 4))[0], torch.full((4, 4), 2.0))
    ours = torch.rand(3)
    torch.manual_seed(3)
    torch.rand(4)
    assert torch.equal(torch.rand(3), ours)
    assert pipeline.graphs_compiled() == before + 2
