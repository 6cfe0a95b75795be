"""Passes and subgraph compilers given to `firebrick.compile`."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick
from firebrick.extend import SubgraphCompiler, call_of, graph_pass, registry, rule
from firebrick.report import FirebrickWarning

pytestmark = pytest.mark.compiler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = F.gelu(self.a(x) / 4)
        return self.b(y) + x


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


X = torch.randn(4, 8)


def check(compiled, net, x=X):
    before = firebrick.graphs_compiled()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
        torch.testing.assert_close(compiled(x * 2), net(x * 2))
    assert firebrick.graphs_compiled() > before


def fold_before(x, w, b, c: float):
    return F.linear(x, w, b) / c


def fold_after(x, w, b, c: float):
    return F.linear(x, w / c, b / c)


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_rule_at_each_level(net, level):
    seen = []

    def where(w):
        seen.append(tuple(w.shape))
        return True

    examples = [torch.randn(5, 7), torch.randn(11, 7), torch.randn(11)] if level == "aten" else ()
    step = rule(fold_before, fold_after, name=f"fold_{level}", level=level, where=where, examples=examples)
    check(firebrick.compile(net, passes=[step]), net)
    assert seen == [(8, 8)]


def test_shipped_rules_run_by_name(net):
    with registry.enabled("fold_div_into_linear", "addcdiv"):
        check(firebrick.compile(net), net)


def test_a_pass_of_ones_own(net):
    graphs = []

    @graph_pass(level="aten")
    def count_nodes(gm):
        graphs.append(sum(n.op == "call_function" for n in gm.graph.nodes))
        return False

    check(firebrick.compile(net, passes=[count_nodes]), net)
    assert len(graphs) == 1


def test_a_raising_pass_is_skipped(net):
    @graph_pass(level="aten")
    def breaks(gm):
        raise ValueError("no")

    compiled = firebrick.compile(net, passes=[breaks], options={"strict": False})
    with pytest.warns(FirebrickWarning, match="pass breaks was skipped: raised ValueError: no"):
        check(compiled, net)


class Engine(SubgraphCompiler):
    name = "matmuls"

    def __init__(self):
        self.graphs = []

    def supports(self, node):
        return call_of(node).name in ("addmm", "mm", "transpose", "div") or "not mine"

    def compile(self, graph, example_inputs):
        self.graphs.append(graph)
        return graph.forward


def test_a_subgraph_compiler_and_firebrick_share_a_graph(net):
    engine = Engine()
    check(firebrick.compile(net, passes=[engine]), net)
    assert len(engine.graphs) == 2
    assert all(any(n.op == "get_attr" for n in g.graph.nodes) for g in engine.graphs), "weights are constants"


def test_weights_may_change(net):
    compiled = firebrick.compile(net, passes=[Engine()])
    check(compiled, net)
    with torch.no_grad():
        net.a.weight.mul_(2)
        torch.testing.assert_close(compiled(X), net(X))


def test_training_with_passes(net):
    step = rule(fold_before, fold_after, name="fold_training")
    compiled = firebrick.compile(net, passes=[step])
    compiled(X).sum().backward()
    found = net.a.weight.grad.clone()
    net.zero_grad()
    net(X).sum().backward()
    torch.testing.assert_close(found, net.a.weight.grad)
