"""Passes over TorchScript graphs: rewriting, order, switches, checks."""

import pytest
import torch
from torch import nn

from firebrick import torchscript
from firebrick.config import Config
from firebrick.errors import PassError, VerificationError
from firebrick.report import FirebrickWarning

X, Y = torch.randn(3, 4), torch.rand(3, 4) + 1
LENIENT = Config(strict=False)


class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, y):
        return torch.relu(self.layer(x) + y) + x / y


@pytest.fixture
def program():
    torch.manual_seed(0)
    return torch.jit.script(Program().eval())


def add_relu(x, y):
    return torch.relu(x + y)


def fused_add_relu(x, y):
    return torch.ops.aten._add_relu(x, y)


def add_div(x, y, z):
    return x + y / z


def addcdiv(x, y, z):
    return torch.addcdiv(x, y, z)


def kinds(program):
    return [n.kind() for n in torchscript.nodes_of(program.graph) if n.kind() != "prim::Constant"]


def test_rules_from_functions(program):
    torchscript.register_pass(add_relu, fused_add_relu)
    torchscript.register_pass(add_div, addcdiv, name="addcdiv")
    made = torchscript.optimize(program, samples=[(X, Y)], verify=True)
    assert kinds(made) == ["aten::linear", "aten::_add_relu", "aten::addcdiv"]
    torch.testing.assert_close(made(X, y=Y), program(X, Y))
    assert [r.changed for r in made.reports] == [True, True]


def test_rules_from_ir_text_and_node_functions(program):
    before = """
        graph(%x, %y, %one):
          %s = aten::add(%x, %y, %one)
          %r = aten::relu(%s)
          return (%r)"""
    after = """
        graph(%x, %y, %one):
          %r = aten::_add_relu(%x, %y, %one)
          return (%r)"""
    torchscript.register_pass(before, after, name="text")

    @torchscript.register_pass(after=("text",))
    def swap_linear(graph):
        for node in torchscript.nodes_of(graph, "aten::div"):
            made = graph.create("aten::true_divide", list(node.inputs()), 1)
            made.insertBefore(node)
            made.output().setType(node.output().type())
            node.output().replaceAllUsesWith(made.output())
            node.destroy()

    made = torchscript.optimize(program, samples=[(X, Y)], verify=True)
    assert kinds(made) == ["aten::linear", "aten::_add_relu", "aten::true_divide", "aten::add"]
    torch.testing.assert_close(made(X, Y), program(X, Y))


def test_switches(program):
    torchscript.register_pass(add_relu, fused_add_relu)
    torchscript.disable("add_relu")
    assert "aten::_add_relu" not in kinds(torchscript.optimize(program))
    with torchscript.registry.enabled("add_relu"):
        assert "aten::_add_relu" in kinds(torchscript.optimize(program))
    torchscript.enable("add_relu")
    assert "aten::_add_relu" in kinds(torchscript.optimize(program))
    with pytest.raises(PassError, match="no pass is named"):
        torchscript.enable("nothing")


def test_a_wrong_pass_is_named_and_skipped(program):
    torchscript.register_pass(add_relu, wrong_add_relu, name="wrong")
    torchscript.register_pass(add_div, addcdiv, name="addcdiv")
    with pytest.warns(FirebrickWarning, match="pass wrong was skipped: verification failed"):
        made = torchscript.optimize(program, samples=[(X, Y)], verify=True, config=LENIENT)
    assert "aten::addcdiv" in kinds(made)
    torch.testing.assert_close(made(X, Y), program(X, Y))
    with pytest.raises(VerificationError, match="wrong"):
        torchscript.optimize(program, samples=[(X, Y)], verify=True, config=Config(strict=True))


def wrong_add_relu(x, y):
    return torch.relu(x - y)


def test_errors_are_named(program):
    with pytest.raises(PassError, match="no TorchScript IR"):
        torchscript.register_pass("nonsense", "graph(%x): return (%x)", name="n")
    with pytest.raises(PassError, match="can't be scripted"):
        torchscript.register_pass(lambda x: [x for _ in iter(x)], add_div, name="n")

    @torchscript.register_pass
    def raises(graph):
        raise RuntimeError("broken")

    with pytest.warns(FirebrickWarning, match="pass raises was skipped"):
        made = torchscript.optimize(program, config=LENIENT)
    torch.testing.assert_close(made(X, Y), program(X, Y))
    with pytest.raises(PassError, match="eval"):
        torchscript.optimize(torch.jit.script(Program()))


def test_traced_and_saved_modules(tmp_path):
    model = Program().eval()
    traced = torch.jit.trace(model, (X, Y))
    traced.save(str(tmp_path / "m.pt"))
    torchscript.register_pass(add_relu, fused_add_relu)
    made = torchscript.optimize(torch.jit.load(str(tmp_path / "m.pt")))
    assert "aten::_add_relu" in kinds(made)
    torch.testing.assert_close(made(X, Y), model(X, Y))
    made.save(str(tmp_path / "o.pt"))
    torch.testing.assert_close(torch.jit.load(str(tmp_path / "o.pt"))(X, Y), model(X, Y))


def test_a_rule_that_matches_nothing_reports_no_change(program):
    """Giving each use of a number its own copy is no change."""
    torchscript.register_pass(sigmoid_div, addcdiv, name="nowhere")
    made = torchscript.optimize(program, samples=[(X, Y)], verify=True)
    assert [r.changed for r in made.reports] == [False]
    torch.testing.assert_close(made(X, Y), program(X, Y))


def sigmoid_div(x, y, z):
    return torch.sigmoid(x) + y / z
