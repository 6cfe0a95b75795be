"""Sizes that vary from call to call, and integers computed of them.

They are constants to all code that needs a number: it gets the one at hand, and a guard that it stays. Arithmetic,
comparisons and graph functions keep the expression.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from firebrick.capture.guards.sources import Attr, Item
from firebrick.capture.values.constant import ConstantValue
from firebrick.ir.index.expr import Expr, Var, as_expr, floordiv, maximum, minimum, mod
from firebrick.ir.index.operation import operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import fx

    from firebrick.capture.emit.prelude import Prelude
    from firebrick.capture.graph import GraphBuilder
    from firebrick.capture.values.base import Interpreter, Source, Value, ValueEmitter
    from firebrick.capture.values.tensor import TensorValue


class SizeValue(ConstantValue):
    """An integer that is an expression of sizes. `nodes` makes graph nodes of it."""

    __slots__ = ("expr", "nodes")

    def __init__(self, expr: Expr, nodes: SizeNodes) -> None:
        super(ConstantValue, self).__init__(None)
        self.expr, self.nodes = expr, nodes

    @property
    def value(self) -> int:  # type: ignore[override]
        """The number, which is guarded from here on."""
        return self.nodes.sizes.number(self.expr)

    def python_type(self) -> type:
        """Int."""
        return int

    def is_constant(self) -> bool:
        """Not until someone needs the number."""
        return False

    def as_argument(self) -> Any:
        """The node that computes it."""
        return self.nodes.argument(self.expr)

    def identity(self) -> object:
        """Small integers are one object, so that a number is needed."""
        return (int, self.value)

    def describe(self) -> str:
        """Its text."""
        return f"a size ({self.expr.show()})"

    def truth(self, interp: Interpreter) -> bool:
        """Whether it is not 0."""
        return self.nodes.sizes.ask("!=", self.expr, 0)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Compute it of the sizes of the tensors that the frame was given."""
        self.nodes.emit(emitter, self.expr)

    def __repr__(self) -> str:
        return f"SizeValue({self.expr.show()})"


class SizeNodes:
    """What computes sizes in a graph and in new code: symbols are read from the tensors that the frame was given."""

    def __init__(self, graph: GraphBuilder) -> None:
        self.graph, self.sizes = graph, graph.mode.sizes  # type: ignore[attr-defined]
        self.leaves: dict[str, tuple[TensorValue, fx.Node, int]] = {}
        self.integers: dict[str, Source] = {}
        self.prelude: Prelude
        self._nodes: dict[Expr, fx.Node] = {}

    def read_from(self, tensor: TensorValue, symbols: Mapping[int, Var]) -> None:
        """Read symbols that are new from an input."""
        for dim, symbol in symbols.items():
            self.leaves.setdefault(symbol.name, (tensor, tensor.node, dim))

    def integer(self, symbol: Var, source: Source) -> SizeValue:
        """An integer of Python that varies."""
        self.integers[symbol.name] = source
        return SizeValue(symbol, self)

    def operand(self, expr: Expr) -> Any:
        """What computes it before the graph."""
        if not expr.terms:
            return expr.const
        if isinstance(expr, Var):
            if expr.name in self.integers:
                return self.integers[expr.name]
            tensor, _, dim = self.leaves[expr.name]
            assert tensor.source is not None
            return Item(Attr(tensor.source, "shape"), dim)
        sign, parts = operation(expr)
        first, *rest = map(self.operand, parts)
        for part in rest:
            first = self.prelude.add(_NUMBERS[sign], [first, part])
        return first

    def argument(self, expr: Expr) -> Any:
        """A node of the graph, or the number."""
        expr = self.sizes.settled(expr)
        if not expr.terms:
            return expr.const
        if self.graph.outer is not None or not all(map(self._is_shown, expr.vars())):
            return self.sizes.number(expr)
        node = self._nodes.get(expr)
        if node is None:
            node = self._nodes[expr] = self._compute(expr)
            node.meta["val"], node.meta["stack"] = self.sizes.size(expr), ()
        return node

    def _is_shown(self, symbol: Var) -> bool:
        """Whether the tensor that had a size first still has it."""
        if symbol.name in self.integers:
            return True
        tensor, _, dim = self.leaves[symbol.name]
        size: Any = tensor.fake.shape[dim] if dim < tensor.fake.dim() else 0
        return isinstance(size, torch.SymInt) and self.sizes.settled(size.node.expr) is symbol

    def _compute(self, expr: Expr) -> fx.Node:
        graph = self.graph.graph
        if isinstance(expr, Var):
            if expr.name in self.integers:  # graphs take tensors: one of so many times the same element
                number = self.prelude.add(_as_size, [self.integers[expr.name]])
                example = _as_size(self.sizes.hint(expr))
                self.graph.mode.from_layout(example, [expr], [as_expr(0)])  # type: ignore[attr-defined]
                return graph.call_method("size", (self.graph.made("number", number, example).node, 0))
            _, node, dim = self.leaves[expr.name]
            return graph.call_method("size", (node, dim))
        target, parts = operation(expr)
        first, *rest = [self.argument(p) for p in parts]
        made = first
        for part in rest:
            made = graph.call_function(_FUNCTIONS[target], (made, part))
        return made

    def emit(self, emitter: ValueEmitter, expr: Expr) -> None:
        """Write code that computes it."""
        expr = self.sizes.settled(expr)
        if not expr.terms or not all(map(self._is_shown, expr.vars())):
            emitter.load_const(self.sizes.number(expr))
        elif isinstance(expr, Var) and expr.name in self.integers:
            emitter.load_source(self.integers[expr.name])
        elif isinstance(expr, Var):
            tensor, _, dim = self.leaves[expr.name]
            assert tensor.source is not None
            emitter.load_source(tensor.source)
            emitter.load_attr("shape")
            emitter.load_const(dim)
            emitter.load_subscr()
        else:
            sign, parts = operation(expr)
            if sign in ("min", "max"):
                emitter.load_callable(min if sign == "min" else max)
            for i, part in enumerate(parts):
                self.emit(emitter, part)
                if i and sign not in ("min", "max"):
                    emitter.binary_op(sign)
            if sign in ("min", "max"):
                emitter.call(len(parts))


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": torch.sym_min,
    "max": torch.sym_max,
}
"""Operator -> the function that graphs call for it, of two operands."""

_NUMBERS: Mapping[str, Callable[..., Any]] = {**_FUNCTIONS, "min": min, "max": max}
"""The same of Python's integers."""

_ARITHMETIC: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": floordiv,
    "%": mod,
    "min": minimum,
    "max": maximum,
}


def _as_size(number: int) -> torch.Tensor:
    return _ONE.expand(number)


_ONE = torch.zeros(1)


def size_value(size: Any, nodes: SizeNodes) -> Value:
    """The value of a SymInt."""
    expr = nodes.sizes.settled(size.node.expr)
    return SizeValue(expr, nodes) if expr.terms else ConstantValue(expr.const)


def _exprs(values: Sequence[Value]) -> Iterator[Expr | None]:
    for value in values:
        if isinstance(value, SizeValue):
            yield value.nodes.sizes.settled(value.expr)
        else:
            number = value.value if isinstance(value, ConstantValue) else None
            yield as_expr(int(number)) if isinstance(number, int) else None


def of_sizes(symbol: str, left: Value, right: Value) -> Value | None:
    """Arithmetic or a comparison of sizes and integers; None if that is no expression: then numbers are needed."""
    nodes = left.nodes if isinstance(left, SizeValue) else right.nodes if isinstance(right, SizeValue) else None
    a, b = _exprs((left, right))
    if nodes is None or a is None or b is None:
        return None
    if symbol in ("<", "<=", "==", "!=", ">", ">="):
        return ConstantValue(nodes.sizes.ask(symbol, a, b))
    function = _ARITHMETIC.get(symbol.removesuffix("="))
    if function is None or (symbol[0] in "/%" and not (b.lo > 0 or b.hi < 0)):
        return None
    result = function(a, b)
    return SizeValue(result, nodes) if result.terms else ConstantValue(result.const)
