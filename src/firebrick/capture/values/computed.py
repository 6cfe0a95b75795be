"""Floats that Python computes of numbers that vary: of sizes, and of integers and floats of the frame.

They are constants to all code that needs them: it gets what they are now, and a guard that the number stays. What meets
a tensor is computed before the graph, comparisons are guards, and an integer made of one is a symbol of its own.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.emit.prelude import Prelude
from firebrick.capture.guards.sources import Applied, Source
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value, ValueEmitter
from firebrick.capture.values.constant import ConstantValue, OpenValue
from firebrick.capture.values.made import NumberInGraph, NumberValue, call_with_numbers, takes_number, tensor_of_number
from firebrick.capture.values.sequence import SequenceValue
from firebrick.capture.values.size import SizeNodes, SizeValue
from firebrick.capture.values.tensor import TensorValue
from firebrick.ir.index.expr import Expr

if TYPE_CHECKING:
    from firebrick.capture.interpreter.frame_tracer import Tracer


class Base(NamedTuple):
    """A number that varies. pinned: gives it, guarded; operand: gives what loads it before the graph; leaf: gives the
    one number of the frame that decides it, and how."""

    now: float
    pinned: Callable[[], float]
    operand: Callable[[], Any]
    leaf: Callable[[], tuple[Source, Callable[[Any], float]] | None]


def of_float(tracer: Tracer, source: Source, number: float) -> ComputedValue:
    """A float of the frame."""

    def pinned() -> float:
        if not tracer.pins:
            raise Break("changing-value", f"{source} is another float in each call and must be known")
        tracer.guards.equals(source, number)
        return number

    return ComputedValue((Base(number, pinned, lambda: source, lambda: (source, float)),), float)


def _of_size(expr: Expr, nodes: SizeNodes) -> Base:
    def leaf() -> tuple[Source, Callable[[int], int]] | None:
        symbol, *others = expr.vars()
        return None if others else (nodes.operand(symbol), lambda number: expr.evaluate({symbol.name: number}))

    now, settled = nodes.sizes.hint(expr), nodes.sizes.settled
    return Base(now, lambda: nodes.number(expr), lambda: nodes.operand(settled(expr)), leaf)


class ComputedValue(OpenValue):
    """A float that a function gives for numbers that vary. positive: it is more than 0, whatever they are."""

    __slots__ = ("bases", "function", "positive")
    cls = float

    def __init__(self, bases: tuple[Base, ...], function: Callable[..., float], *, positive: bool = False) -> None:
        self.bases, self.function, self.positive = bases, function, positive

    @property
    def value(self) -> float:  # type: ignore[override]
        """What it is, guarded from here on."""
        return self.function(*[base.pinned() for base in self.bases])

    def as_argument(self) -> Any:
        """Made a tensor before the graph, where one is taken: see `call_with_floats`."""
        raise NumberInGraph("changing-value", "another float in each call is given to a torch function")

    def truth(self, interp: Interpreter) -> bool:
        """Whether it is not 0."""
        return self.answer(interp, bool)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Compute it before the graph."""
        nodes = emitter.graph.sizes
        nodes.sizes.shown = True
        self._made(nodes.prelude).reconstruct(emitter)

    def _made(self, prelude: Prelude) -> NumberValue:
        return NumberValue(float, prelude.add(self.function, [base.operand() for base in self.bases]))

    def number(self, interp: Interpreter) -> NumberValue:
        """It as what is made before the graph."""
        if interp.tracer.graph.outer is not None:
            raise Break("changing-value", "another float in each call is used in a nested function")
        return self._made(interp.tracer.prelude)

    def now(self) -> float:
        """What it is at the moment."""
        return self.function(*[base.now for base in self.bases])

    def leaf(self, function: Callable[[float], Any]) -> Source | None:
        """What a function gives for it, to be looked at in guards; None if not one number of the frame decides it."""
        leaves = [leaf for base in self.bases if (leaf := base.leaf())]
        if len(leaves) < len(self.bases) or len({source for source, _ in leaves}) != 1:
            return None
        own, parts = self.function, [part for _, part in leaves]
        return Applied(leaves[0][0], lambda x: function(own(*[part(x) for part in parts])), "a number of {0.base}")

    def answer(self, interp: Interpreter, function: Callable[[float], bool]) -> bool:
        """The answer to a question about it, which is guarded."""
        source = self.leaf(function)
        if source is None:
            return function(self.value)
        truth = function(self.now())
        interp.tracer.guards.equals(source, truth)
        return truth

    def is_within(self, interp: Interpreter, least: float, most: float) -> bool:
        """Whether it is larger than one number and smaller than another, which is guarded if it is."""
        if self.positive and least == 0.0 and most == math.inf:
            return True
        if not least < self.now() < most or self.leaf(bool) is None:
            return least < self.now() < most and not self.bases
        return self.answer(interp, lambda number: least < number < most)

    def applied(self, function: Callable[[float], float], *, positive: bool = False) -> ComputedValue:
        """What a function gives for it that never raises."""
        own = self.function
        return ComputedValue(self.bases, lambda *numbers: function(own(*numbers)), positive=positive)

    def beside(self, other: ComputedValue, function: Callable[[Any, Any], Any], positive: bool) -> ComputedValue:
        """What a function gives for both that never raises."""
        mine, theirs, count = self.function, other.function, len(self.bases)
        both = lambda *numbers: function(mine(*numbers[:count]), theirs(*numbers[count:]))  # noqa: E731
        return ComputedValue((*self.bases, *other.bases), both, positive=positive)

    def rounded(self, interp: Interpreter, function: Callable[[float], int]) -> Value:
        """An integer that is made of it: a symbol, if it is large enough."""
        now, source = self.now(), self.leaf(function)
        if source is None or not math.isfinite(now) or not 1 <= function(now) < 1 << 31:
            return ConstantValue(function(self.value))
        symbol = interp.tracer.symbols.computed(function(now), source)
        return interp.tracer.graph.sizes.integer(symbol, source)


_EXACT = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_BY_OTHERS = {"/": operator.truediv, "//": operator.floordiv, "%": operator.mod}
_WHOLE = (int, round, math.floor, math.ceil, math.trunc)
_OF_POSITIVE = {math.sqrt: True, math.log: False, math.log2: False, math.log10: False}
"""Function of positive numbers that never raises -> whether what it gives is positive."""
_OF_ANY = (float, abs, math.fabs, math.sin, math.cos, math.tanh, math.atan)


def _computed(interp: Interpreter, value: Value) -> ComputedValue | None:
    """A number as one that floats are computed of; None if that is not known before the graph."""
    if isinstance(value, SizeValue):
        nodes, graph = value.nodes, interp.tracer.graph
        expr = nodes.sizes.settled(value.expr)
        if not expr.terms or graph.outer is not None or graph.keeps_sizes or nodes.sizes.of_data(expr):
            return None
        return ComputedValue((_of_size(expr, nodes),), lambda number: number, positive=expr.lo > 0)
    if type(value) is ConstantValue and type(value.value) in (int, float) and abs(value.value) < 1e100:
        number = value.value
        return ComputedValue((), lambda: number, positive=number > 0)
    return value if isinstance(value, ComputedValue) else None


def of_numbers(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value | None:
    """Arithmetic that gives a float and can't raise, or a power; None for other."""
    symbol, of_size = symbol.removesuffix("="), isinstance(left, SizeValue)
    if symbol == "**" and isinstance(left, SizeValue) and type(right) is ConstantValue and right.value in (2, 3):
        return SizeValue(left.expr * left.expr * (left.expr if right.value == 3 else 1), left.nodes)
    if not isinstance(left, (SizeValue, ComputedValue)) and not isinstance(right, (SizeValue, ComputedValue)):
        return None
    one, other = _computed(interp, left), _computed(interp, right)
    other_type = right.python_type()
    floats = symbol in ("/", "**") or float in (left.python_type(), other_type)
    if one is None or other is None or not floats:
        return None
    function, positive = _EXACT.get(symbol), one.positive and other.positive and symbol in "+*/"
    if symbol in _BY_OTHERS and (other.is_within(interp, 0.0, math.inf) or other.is_within(interp, -math.inf, 0.0)):
        function = _BY_OTHERS[symbol]
    elif symbol == "**" and not other.bases and abs(power := other.now()) <= 4:
        bounded = one.positive if of_size else one.is_within(interp, 1e-30, 1e30)
        function = operator.pow if bounded and (not of_size or type(power) is float or power < 0) else None
        positive = True
    elif symbol == "**" and not one.bases and float in (type(base := one.now()), other_type) and base > 1e-30:
        most = 690 / (math.log(base) or 1)  # beyond it is too large for a float
        ends = (-math.inf, most) if most > 0 else (most, math.inf)
        function, positive = (operator.pow if other.is_within(interp, *ends) else None), False
    return None if function is None else one.beside(other, function, positive)


def compared(interp: Interpreter, function: Callable[[Any, Any], bool], left: Value, right: Value) -> Value | None:
    """A comparison of a float or size that varies with a number; None for others."""
    varying = [side for side in (left, right) if isinstance(side, (SizeValue, ComputedValue))]
    one, other = (_computed(interp, left), _computed(interp, right)) if varying else (None, None)
    if one is None or other is None or float not in (left.python_type(), right.python_type()):
        return None
    return ConstantValue(one.beside(other, function, positive=False).answer(interp, bool))


def applied(interp: Interpreter, function: Any, args: Args) -> Value | None:
    """`int`, `float`, `round`, `abs`, or a function of `math`, of a number that varies; None for others."""
    first, *others = [arg.realize() for arg in args] or [ConstantValue(None)]
    if function is math.prod and isinstance(first, SequenceValue) and not others:
        items = [item.realize() for item in first.items]
        sizes = [item for item in items if isinstance(item, SizeValue)]
        if sizes and all(item.python_type() is int for item in items):
            exprs = [item.expr if isinstance(item, SizeValue) else item.as_constant() for item in items]
            return SizeValue(math.prod(exprs, start=sizes[0].expr * 0 + 1), sizes[0].nodes)
    number = _computed(interp, first) if isinstance(first, (SizeValue, ComputedValue)) else None
    if number is None or (isinstance(first, SizeValue) and function in (*_WHOLE, abs)):
        return None
    if function is round and len(others) == 1 and isinstance(others[0], ConstantValue):
        digits = others[0].value
        return number.applied(lambda x: round(x, digits)) if type(digits) is int else None
    if others:
        return None
    if function in _WHOLE:
        return number.rounded(interp, function)
    if function in _OF_POSITIVE and number.is_within(interp, 0.0, math.inf):
        return number.applied(function, positive=_OF_POSITIVE[function])
    return number.applied(function, positive=number.positive and function is float) if function in _OF_ANY else None


def _with(value: Value, change: Callable[[ComputedValue], Value]) -> Value:
    """A value with another for such floats in it."""
    value = value.realize()
    if isinstance(value, SequenceValue) and any(_with(item, change) is not item.realize() for item in value.items):
        return value.copy_with([_with(item, change) for item in value.items])
    return change(value) if isinstance(value, ComputedValue) else value


def call_with_floats(interp: Interpreter, op: str, target: Any, args: Args, kwargs: Kwargs) -> Value:
    """Call a graph function with tensors for what is computed of numbers that vary; with constants if it takes none."""
    try:
        numbers = [arg.number(interp) if isinstance(arg, ComputedValue) else arg for arg in (a.realize() for a in args)]
        options = {name: _with(value, lambda one: one.number(interp)) for name, value in kwargs.items()}
        return call_with_numbers(interp, op, target, numbers, options)
    except Break as error:
        constants = [_with(value, lambda one: ConstantValue(one.value)) for value in (*args, *kwargs.values())]
        if error.kind.name != "changing-value" or all(map(operator.is_, constants, (*args, *kwargs.values()))):
            raise
        options = dict(zip(kwargs, constants[len(args) :], strict=True))
        return interp.tracer.graph.call(interp, op, target, constants[: len(args)], options)


def tensor_of_open(interp: Interpreter, number: SizeValue | ComputedValue, options: Kwargs) -> Value:
    """`torch.tensor(number)`."""
    graph = interp.tracer.graph
    if isinstance(number, ComputedValue):
        with contextlib.suppress(Break):
            return tensor_of_number(interp, number.number(interp), options)
    elif not {*options} - {"dtype", "device"}:
        options = {"dtype": ConstantValue(torch.int64), **options}
        return graph.call(interp, "call_function", torch.scalar_tensor, [number], options)
    return graph.call(interp, "call_function", torch.tensor, [ConstantValue(number.value)], options)


def float_beside(interp: Interpreter, value: Value, other: Value) -> Value:
    """A float that varies as one that is made before the graph, where it meets a tensor; others as they are."""
    if isinstance(value, ComputedValue) and isinstance(other, TensorValue):
        fits = takes_number(float, other) and interp.tracer.graph.outer is None
        return value.number(interp) if fits else ConstantValue(value.value)
    return value
