"""Subgraph compilers behind TorchScript graphs."""

import pytest
import torch
from torch import nn

from firebrick import torchscript
from firebrick.config import Config
from firebrick.extend import call_of
from firebrick.report import FirebrickWarning

CONFIG = Config(strict=True, cache=False)


class MatmulDiv(torchscript.SubgraphCompiler):
    """The tutorial's: matmul with a constant division after it."""

    name = "matmul_div"

    def __init__(self):
        self.compiled = []

    def supports(self, node):
        return call_of(node).name in ("matmul", "div", "linear") or "not ours"

    def compile(self, graph, example_inputs):
        self.compiled.append([n.name for n in graph.graph.nodes if n.op == "call_function"])
        return graph.forward


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = torch.matmul(q, k.transpose(-1, -2)) / 8.0
        return torch.matmul(torch.softmax(scores, -1), v)


@pytest.mark.parametrize("how", ["script", "trace"])
def test_groups_run_inside_the_interpreter(how):
    torch.manual_seed(0)
    model, x = Attention().eval(), torch.randn(2, 5, 8)
    script = torch.jit.script(model) if how == "script" else torch.jit.trace(model, x)
    compiler = MatmulDiv()
    made, report = torchscript.compile_subgraphs(script, [compiler], [x], config=CONFIG)
    kinds = [n.kind() for n in made.graph.nodes()]
    assert kinds.count("firebrick::group") == len(report.claims)
    assert "aten::linear" not in kinds
    assert report.claimed == 6
    assert ("matmul_div", "not ours") in report.refused
    for _ in range(3):
        torch.testing.assert_close(made(x), model(x))
    count = len(compiler.compiled)
    assert count == len(report.claims)
    y = torch.randn(3, 7, 8)
    torch.testing.assert_close(made(y), model(y))
    assert len(compiler.compiled) == 2 * count


def test_control_flow_stays_with_torchscript():
    class Branch(nn.Module):
        def forward(self, x):
            y = torch.matmul(x, x) / 2
            if bool(x.sum() > 0):
                y = y + 1
            else:
                y = y - 1
            return torch.matmul(y, x) / 4

    script = torch.jit.script(Branch().eval())
    x = torch.rand(4, 4)
    made, report = torchscript.compile_subgraphs(script, [MatmulDiv()], [x], config=CONFIG)
    assert (report.claimed, len(report.claims)) == (4, 2)
    for value in (x, -x):
        torch.testing.assert_close(made(value), script(value))


def test_after_passes():
    def add_relu(x, y):
        return torch.relu(x + y)

    def fused(x, y):
        return torch.ops.aten._add_relu(x, y)

    class Net(nn.Module):
        def forward(self, x):
            return torch.relu(torch.matmul(x, x) / 3 + x)

    script = torch.jit.script(Net().eval())
    optimized = torchscript.optimize(script, [torchscript.script_rule(add_relu, fused)])
    x = torch.randn(4, 4)
    made, report = torchscript.compile_subgraphs(optimized, [MatmulDiv()], [x], config=CONFIG)
    kinds = [n.kind() for n in made.graph.nodes() if "Constant" not in n.kind()]
    assert kinds == ["prim::ListConstruct", "firebrick::group", "prim::ListUnpack", "aten::_add_relu"]
    torch.testing.assert_close(made(x), script(x))


def test_a_bad_compiler_falls_back():
    class Bad(MatmulDiv):
        name = "bad script compiler"

        def compile(self, graph, example_inputs):
            raise RuntimeError("no")

    model, x = Attention().eval(), torch.randn(2, 5, 8)
    lenient = Config(strict=False, cache=False)
    made, _ = torchscript.compile_subgraphs(torch.jit.script(model), [Bad()], [x], config=lenient)
    with pytest.warns(FirebrickWarning, match="bad script compiler failed"):
        torch.testing.assert_close(made(x), model(x))
