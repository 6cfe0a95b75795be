"""The chip as a target: what its kernels look like, which library calls it has, and how to drive it."""

import torch

from firebrick.backends.engines import LoopCompiler
from firebrick.extend import FunctionText, Target, Templates, call_of
from firebrick.extend.pass_runner import copy_graph
from firebrick_simchip.chip import Operand
from firebrick_simchip.kernels import INSTRUCTIONS, assemble

__all__ = ["SimChip", "SimTarget"]

library = torch.library.Library("simchip", "DEF")
library.define("matmul_div(Tensor a, Tensor b, float divisor) -> Tensor")
library.impl("matmul_div", lambda a, b, divisor: a @ b / divisor, "CompositeExplicitAutograd")


def matrix_unit(name):
    """A library call that is one operation of the matrix unit."""

    def call(target, outs, *args):
        operands = [Operand(a.memory, a.shape, a.strides, a.offset) for a in (*args, *outs) if hasattr(a, "memory")]
        if name == "matmul_add":
            operands = [*operands[1:3], operands[0], operands[3]]
        numbers = tuple(a for a in args if isinstance(a, float))
        target.chip.run(name, operands[:-1], operands[-1], numbers)

    return call


def row(name):
    """The text of an instruction."""
    word = f"{name}_" if name in ("and", "or", "not") else name
    letters = {"where": "{a}, {b}, {c}"}.get(name, "{a}" if name in UNARY else "{a}, {b}")
    return FunctionText(f"{word}({letters})")


UNARY = ("neg", "abs", "sqrt", "rsqrt", "exp", "log", "tanh", "sigmoid", "not")


class SimTarget(Target):
    """Tables, and calls of the chip's driver."""

    name = "simchip"
    dtypes = {"f32": "f32", "b8": "b8"}
    functions = {kind: {name: row(name) for name in INSTRUCTIONS} for kind in ("float", "bool")}
    templates = Templates(
        load="load({buffer}, {t}, {index})",
        masked_load="load({buffer}, {t}, {index}, {mask})",
        store="store({buffer}, {t}, {index}, {value})",
        cast="convert({a}, {t})",
        both="and_({a}, {b})",
        scratch="{name} = scratch({size})",
        read="get({name}, {index})",
        write="put({name}, {index}, {value})",
        infinity="inf",
        nan="nan",
    )
    library = {
        "aten::mm": matrix_unit("matmul"),
        "aten::bmm": matrix_unit("matmul"),
        "aten::addmm": matrix_unit("matmul_add"),
        "simchip::matmul_div": matrix_unit("matmul_div"),
    }

    def __init__(self, chip):
        self.chip = chip

    def load(self, texts, names, config):
        return {name: kernel for text in texts for name, kernel in assemble(text).items()}

    def launch(self, kernel, memory, sizes, grid):
        self.chip.launch(kernel, memory, grid[0])

    def allocate(self, nbytes):
        return self.chip.allocate(nbytes)

    def release(self, memory):
        self.chip.release(memory)

    def write(self, memory, tensor):
        self.chip.write(memory, tensor.numpy())

    def read(self, memory, tensor):
        self.chip.read(memory, tensor.numpy())


class SimChip(LoopCompiler):
    """Claims matmuls, and what can be a kernel of the chip: pointwise ops, softmax, norms, views."""

    tolerance = 1e-4

    def __init__(self, chip):
        super().__init__(SimTarget(chip))
        self.chip = chip

    def supports(self, node):
        """The matrix unit adds, but does not scale what it adds."""
        call = call_of(node)
        if call is not None and call.name == "addmm" and {"alpha", "beta"} & set(call.arguments):
            return "scaled addmm"
        return super().supports(node)

    def rewrite(self, graph):
        """mm(a, b) / c -> simchip::matmul_div(a, b, c), also behind views, and for a product with 1 / c"""
        aten = torch.ops.aten
        made = torch.fx.GraphModule(graph, copy_graph(graph.graph))
        for node in list(made.graph.nodes):
            if node.target not in (aten.div.Tensor, aten.mul.Tensor) or not isinstance(node.args[1], (int, float)):
                continue
            source, c = node.args
            while source.target is aten.view.default and len(source.users) == 1:
                source = source.args[0]
            if source.target in (aten.mm.default, aten.bmm.default) and len(source.users) == 1 and c:
                source.target = torch.ops.simchip.matmul_div.default
                source.args = (*source.args, float(c) if node.target is aten.div.Tensor else 1.0 / c)
                node.replace_all_uses_with(node.args[0])
                made.graph.erase_node(node)
        return made
