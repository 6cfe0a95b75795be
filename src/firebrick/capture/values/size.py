"""Sizes that vary from call to call, and integers computed of them.

They are constants to all code that needs a number: it gets the one at hand, and a guard that it stays. Arithmetic,
comparisons and graph functions keep the expression.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.emit.prelude import Prelude
from firebrick.capture.guards.sources import Attr, Item
from firebrick.capture.values.base import Interpreter, Source, Value, ValueEmitter
from firebrick.capture.values.constant import ConstantValue, OpenValue
from firebrick.ir.graph.nested import Held
from firebrick.ir.index.expr import Expr, Var, as_expr, floordiv, maximum, minimum, mod
from firebrick.ir.index.operation import operation
from firebrick.ir.index.sizes import expressions

if TYPE_CHECKING:
    from firebrick.capture.graph import GraphBuilder
    from firebrick.capture.values.early import EarlyReads
    from firebrick.capture.values.tensor import TensorValue


_FIX = (
    "state what always holds of it, torch._check(n >= 0), choose by torch.cond, or leave the number to code behind the "
    "compiled function"
)


class SizeValue(OpenValue):
    """An integer that is an expression of sizes. `nodes` makes graph nodes of it."""

    __slots__ = ("expr", "nodes")
    cls = int

    def __init__(self, expr: Expr, nodes: SizeNodes) -> None:
        self.expr, self.nodes = expr, nodes

    @property
    def value(self) -> int:  # type: ignore[override]
        """The number, which is guarded from here on."""
        return self.nodes.number(self.expr)

    def as_argument(self) -> Any:
        """The node that computes it."""
        return self.nodes.argument(self.expr)

    def identity(self) -> object:
        """Small integers are one object, so that a number is needed."""
        return (int, self.value)

    def truth(self, interp: Interpreter) -> bool:
        """Whether it is not 0."""
        return self.nodes.asked("!=", self.expr, 0)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Compute it of the sizes of the tensors that the frame was given."""
        self.nodes.emit(emitter, self.expr)

    def __repr__(self) -> str:
        return f"SizeValue({self.expr.show()})"


class HeldValue(Value):
    """A comparison of sizes that data decide. What must know it breaks, but `torch._check` and `torch.cond`."""

    __slots__ = ("left", "nodes", "right", "sign")
    cls = bool

    def __init__(self, sign: str, left: Expr, right: Expr, nodes: SizeNodes) -> None:
        self.sign, self.left, self.right, self.nodes = sign, left, right, nodes

    def truth(self, interp: Interpreter) -> bool:
        """Unknown."""
        return self.nodes.asked(self.sign, self.left, self.right)

    def expect(self) -> None:
        """Take it for true from here on; each call looks whether it is."""
        self.nodes.sizes.ask(self.sign, self.left, self.right, "expected")

    def tensor(self, interp: Interpreter) -> Value:
        """The answer as a tensor of the graph."""
        sides = [SizeValue(e, self.nodes) if e.terms else ConstantValue(e.const) for e in (self.left, self.right)]
        return self.nodes.graph.call(interp, "call_function", Held(self.sign), sides, {})

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Compare the numbers."""
        self.nodes.emit(emitter, self.left)
        self.nodes.emit(emitter, self.right)
        emitter.compare_op(self.sign)


class SizeNodes:
    """What computes sizes in a graph and in new code: symbols are read from the tensors that the frame was given, and
    those that data decide from what the graph has made."""

    def __init__(self, graph: GraphBuilder) -> None:
        self.graph, self.sizes = graph, graph.mode.sizes  # type: ignore[attr-defined]
        self.leaves: dict[str, tuple[TensorValue, fx.Node, int]] = {}
        self.data: dict[str, tuple[TensorValue, int, Expr]] = {}  # tensor, dimension, and its size
        self.integers: dict[str, Source] = {}
        self.prelude: Prelude
        self.early: EarlyReads
        self._nodes: dict[Expr, fx.Node] = {}

    def read_data(self, tensor: TensorValue) -> None:
        """Read symbols of data that are new from a tensor of the graph."""
        for dim, size in enumerate(expressions(tensor.fake.shape) if self.sizes.data else ()):
            if isinstance(size, Expr) and len(size.terms) == 1 and size.terms[0][1] == 1:
                symbol = size.terms[0][0]
                if isinstance(symbol, Var) and symbol in self.sizes.data:
                    self.data.setdefault(symbol.name, (tensor, dim, size))

    def asked(self, sign: str, left: Expr | int, right: Expr | int) -> bool:
        """The program's own question; raises Break: only data tell."""
        if self.sizes.of_data(self.sizes.settled(as_expr(left) - right)):
            if self.sizes.holds(sign, left, right) or self.sizes.holds(_CONTRARY[sign], left, right):
                return self.sizes.holds(sign, left, right)
            if self._may_guess():
                guessed = self.sizes.guess(sign, left, right)
                if guessed is not None:
                    return guessed
            early = self.early.holds(sign, self.sizes.settled(as_expr(left) - right))
            if early is not None:
                return early
            raise Break(
                "data-dependent-branch", f"whether a size that data decide is {sign} another number is asked", fix=_FIX
            )
        return self.sizes.ask(sign, left, right)

    def takes_for_granted(self, size: Any, number: int) -> bool:
        """Whether a size that data decide is taken to be a number, which each call looks for."""
        (expr,) = expressions([size])
        decided = isinstance(expr, int) or not self.sizes.of_data(expr)
        return not decided and self._may_guess() and self.sizes.guess_number(expr, number)  # type: ignore[arg-type]

    def _may_guess(self) -> bool:
        return self.graph.outer is None and not self.graph.changed() and not self.graph.keeps_sizes

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
        if self.graph.outer is not None or not (all(map(self._is_shown, expr.vars())) and self.sizes.fits(expr)):
            return self.number(expr)
        node = self._nodes.get(expr)
        if node is None:
            node = self._nodes[expr] = self._compute(expr)
            node.meta["val"], node.meta["stack"] = self.sizes.size(expr), ()
        return node

    def number(self, expr: Expr) -> int:
        """The number, which is guarded from here on; raises Break: data decide it."""
        if self.sizes.of_data(self.sizes.settled(expr)):
            text = "a size that data decide is used where its number must be known"
            raise Break("data-dependent-value", text, fix=_FIX)
        return self.sizes.number(expr)

    def _is_shown(self, symbol: Var) -> bool:
        """Whether the tensor that had a size first still has it."""
        if symbol.name in self.integers or symbol.name in self.data:
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
            if expr.name in self.data:
                tensor, dim, size = self.data[expr.name]
                whole = graph.call_method("size", (tensor.node, dim))
                whole.meta["val"], whole.meta["stack"] = self.sizes.size(size), ()
                return graph.call_function(operator.sub, (whole, size.const)) if size.const else whole
            _, node, dim = self.leaves[expr.name]
            return graph.call_method("size", (node, dim))
        target, (partial, *rest) = operation(expr)
        total = self.argument(partial)
        for part in rest:
            partial = _ARITHMETIC[target](partial, part)
            total = graph.call_function(_FUNCTIONS[target], (total, self.argument(part)))
            total.meta["val"], total.meta["stack"] = self.sizes.size(partial), ()
        return total

    def emit(self, emitter: ValueEmitter, expr: Expr) -> None:
        """Write code that computes it."""
        expr = self.sizes.settled(expr)
        self.sizes.shown |= bool(expr.terms)
        if not expr.terms or not all(map(self._is_shown, expr.vars())):
            emitter.load_const(self.number(expr))
        elif isinstance(expr, Var) and expr.name in self.data:
            tensor, dim, size = self.data[expr.name]
            emitter.load_call(torch.Tensor.size, tensor, dim)
            if size.const:
                emitter.load_const(size.const)
                emitter.binary_op("-")
        elif isinstance(expr, Var) and expr.name in self.integers:
            emitter.load_source(self.integers[expr.name])
        elif isinstance(expr, Var):
            tensor, _, dim = self.leaves[expr.name]
            emitter.load_call(torch.Tensor.size, tensor, dim)
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
    "+": operator.add, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "min": torch.sym_min,
    "max": torch.sym_max,
}  # fmt: skip
"""Operator -> the function that graphs call for it, of two operands."""

_NUMBERS: Mapping[str, Callable[..., Any]] = {**_FUNCTIONS, "min": min, "max": max}
"""The same of Python's integers."""

_ARITHMETIC: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": floordiv, "%": mod, "min": minimum, "max": maximum,
}  # fmt: skip


_CONTRARY = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def _as_size(number: int) -> torch.Tensor:
    return _ONE.expand(number)


_ONE = torch.zeros(1)


def size_value(size: Any, nodes: SizeNodes) -> Value:
    """The value of a SymInt or number."""
    if isinstance(size, int):
        return ConstantValue(size)
    expr = nodes.sizes.settled(size.node.expr)
    return SizeValue(expr, nodes) if expr.terms else ConstantValue(expr.const)


def _exprs(values: Sequence[Value]) -> Iterator[Expr | None]:
    for value in values:
        if isinstance(value, SizeValue):
            yield value.nodes.sizes.settled(value.expr)
        else:
            number = value.value if isinstance(value, ConstantValue) and value.is_constant() else None
            yield as_expr(int(number)) if isinstance(number, int) else None


def of_sizes(symbol: str, left: Value, right: Value) -> Value | None:
    """Arithmetic or a comparison of sizes and integers; None if that is no expression: then numbers are needed."""
    nodes = left.nodes if isinstance(left, SizeValue) else right.nodes if isinstance(right, SizeValue) else None
    a, b = _exprs((left, right))
    if nodes is None or a is None or b is None:
        return None
    if symbol in _CONTRARY:
        sizes = nodes.sizes
        if sizes.of_data(a - b) and not sizes.holds(symbol, a, b) and not sizes.holds(_CONTRARY[symbol], a, b):
            return HeldValue(symbol, a, b, nodes)
        return ConstantValue(nodes.asked(symbol, a, b))
    function = _ARITHMETIC.get(symbol.removesuffix("="))
    if function is None or (symbol[0] in "/%" and not (b.lo > 0 or b.hi < 0)):
        return None
    result = function(a, b)
    return SizeValue(result, nodes) if result.terms else ConstantValue(result.const)
