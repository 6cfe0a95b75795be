"""Binary, unary and comparison operators on values: one row an operator."""

from __future__ import annotations

import operator
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.values.address import AddressValue, WeakReferenceValue
from firebrick.capture.values.array import ARRAY_METHODS, ArrayValue
from firebrick.capture.values.base import Args, Interpreter, NotConstant, Value
from firebrick.capture.values.computed import ComputedValue, compared, of_numbers
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.function import BoundMethodValue
from firebrick.capture.values.made import NumberValue
from firebrick.capture.values.mapping import SET_METHODS, DictValue, SetValue, ViewValue
from firebrick.capture.values.method import MethodValue
from firebrick.capture.values.object import MISSING, OPERATORS, WRITTEN, InstanceDictValue, ObjectValue, overriding
from firebrick.capture.values.scalar import (
    EitherValue,
    LateValue,
    ScalarValue,
    beside,
    is_late,
    is_open,
    joined,
    late_text,
    of_scalars,
    percent,
)
from firebrick.capture.values.sequence import DequeValue, ListValue, SequenceValue, SliceValue, TupleValue
from firebrick.capture.values.size import HeldValue, SizeValue, of_sizes
from firebrick.capture.values.subclass import SubclassValue
from firebrick.capture.values.tensor import TensorValue


@dataclass(frozen=True, slots=True)
class BinaryRow:
    """A binary operator: its functions, and the name that its special methods have in common."""

    symbol: str
    function: Callable[[Any, Any], Any]
    in_place: Callable[[Any, Any], Any]
    name: str

    def method(self, way: str = "") -> str:
        """`__add__`; way: "r" for `__radd__`, "i" for `__iadd__`."""
        return f"__{way}{self.name}__"


BINARY: Mapping[str, BinaryRow] = {
    symbol: BinaryRow(symbol, vars(operator)[f"__{name}__"], vars(operator)[f"__i{name}__"], name)
    for symbol, name in OPERATORS.items()
    if symbol != name
}
"""Operator text -> row."""

UNARY: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "-": (operator.neg, "__neg__"),
    "+": (operator.pos, "__pos__"),
    "~": (operator.invert, "__invert__"),
}
"""Operator text -> function, special method."""

COMPARE: Mapping[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"), "<=": (operator.le, "__le__", "__ge__"),
    "==": (operator.eq, "__eq__", "__eq__"), "!=": (operator.ne, "__ne__", "__ne__"),
    ">": (operator.gt, "__gt__", "__lt__"), ">=": (operator.ge, "__ge__", "__le__"),
}  # fmt: skip
"""Operator text -> function, special method, its reflection."""

_BY_COMPARISON = {method: symbol for symbol, (_, method, _) in COMPARE.items()}
_BY_METHOD = {row.method(): row.symbol for row in BINARY.values()}
_SET_OPERATORS = {"|": "union", "&": "intersection", "-": "difference", "^": "symmetric_difference"}


def identical(interp: Interpreter, first: Value, second: Value) -> bool:
    """`first is second`; a guard says that two objects from outside are two."""
    first, second = first.realize(), second.realize()
    if not isinstance(first, ConstantValue) and not isinstance(second, ConstantValue):
        first.compare()
        second.compare()
    if first is second:
        return True
    mine, other = first.identity(), second.identity()
    if mine is other:
        return True
    if isinstance(first, ConstantValue) or isinstance(second, ConstantValue):
        equal = isinstance(first, ConstantValue) and isinstance(second, ConstantValue) and mine == other
        return equal and _same_literal(interp, first, second)
    if first.source is not None and second.source is not None and first.python_type() is second.python_type():
        interp.tracer.guards.distinct([first.source, second.source])
    return False


def _same_literal(interp: Interpreter, first: Value, second: Value) -> bool:
    """Whether two equal literals are one object, by a guard if they come from outside."""
    one, other = first.as_constant(), second.as_constant()
    if isinstance(one, (bool, types.NoneType, types.EllipsisType)) or (type(one) is int and -5 <= one <= 256):
        return True
    tracer = interp.tracer
    source, beside = first.source or tracer.const_source(one), second.source or tracer.const_source(other)
    if source != beside and one is other:
        tracer.guards.same(source, beside)
    elif source != beside:
        tracer.guards.distinct([source, beside])
    return one is other


def unary(interp: Interpreter, symbol: str, value: Value) -> Value:
    """`-x`, `+x`, `~x`."""
    value = value.realize()
    if isinstance(value, NumberValue):
        return value.unary(interp, symbol)
    if isinstance(value, ComputedValue) and symbol == "-":
        return value.applied(operator.neg)
    if isinstance(value, SizeValue) and symbol in "+-":
        return binary(interp, symbol, ConstantValue(0), value)
    function, method = UNARY[symbol]
    if isinstance(value, SubclassValue) and (own := value.special(interp, method)):
        return own.call(interp, [], {})
    if isinstance(value, ArrayValue):
        return value.call_method(interp, method, [], {})
    if isinstance(value, (TensorValue, SubclassValue)):
        return interp.operate(function, value)
    if isinstance(value, ObjectValue) and overriding(interp, value, method) and value.special(interp, method):
        return value.call_method(interp, method, [], {})
    if interp.lookup(value.python_type(), method)[0] is MISSING:
        interp.raise_new(TypeError, f"bad operand type for unary {symbol}: {value.python_type().__name__!r}")
    return interp.fold(function, [_plain(value)], {})


def binary(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """`left symbol right`; a symbol with `=` is the in-place form."""
    left, right = left.realize(), right.realize()
    if isinstance(left, ArrayValue) or isinstance(right, ArrayValue):
        return _of_arrays(interp, symbol, left, right)
    in_place = symbol.endswith("=")
    row = BINARY[symbol.rstrip("=")]
    if isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
        size = of_sizes(row.symbol, left, right)
        waits = is_late if row.symbol == "/" else is_open
        if size is None and (row.symbol == "/" or left.python_type() is str) and (waits(left) or waits(right)):
            size = _of_data(interp, row.symbol, left, right)
        size = of_numbers(interp, row.symbol, left, right) if size is None else size
        return interp.fold(row.function, (left, right), {}) if size is None else size
    for one in (left, right):
        if isinstance(one, EitherValue) and row.symbol in "+-*/" and not (in_place and one is left):
            return one.beside(interp, row.in_place if in_place else row.function, (left, right))
    if isinstance(left, SubclassValue) or isinstance(right, SubclassValue):
        return _of_subclasses(interp, row, in_place, left, right)
    if (
        isinstance(left, TensorValue)
        or (isinstance(right, TensorValue) and not isinstance(left, (ObjectValue, ListValue)))
    ) and not (
        isinstance(right, ObjectValue) and right.special(interp, row.method("r")) is not None and right.storage is None
    ):
        function = row.in_place if in_place and isinstance(left, TensorValue) else row.function
        if row.symbol in "+-*/":
            left, right = beside(interp, left, right), beside(interp, right, left)
        return interp.operate(function, left, right)
    if isinstance(left, _OF_DATA) or isinstance(right, _OF_DATA):
        return _of_data(interp, row.symbol, left, right)
    if isinstance(left, NumberValue) or isinstance(right, NumberValue):
        return NumberValue.binary(interp, row.symbol, left, right)
    if in_place:
        done = _in_place(interp, row, left, right)
        if done is not None:
            return done
    result = by_objects(interp, row, left, right, symbol)
    if result is None:
        result = _by_containers(interp, row.symbol, _plain(left), _plain(right))
    if result is None:
        return interp.fold(row.function, (_plain(left), _plain(right)), {}, copied=True)
    return result


_OF_DATA = (ScalarValue, LateValue, HeldValue)


def _of_data(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """Arithmetic of numbers that data decide, or a longer text."""
    if symbol == "+" and left.python_type() is right.python_type() is str:
        return joined([left, right])
    if symbol == "%" and isinstance(left, ConstantValue) and left.python_type() is str:
        return _percent(interp, left, right)
    return of_scalars(interp, symbol, left, right)


def _of_subclasses(interp: Interpreter, row: BinaryRow, in_place: bool, left: Value, right: Value) -> Value:
    """An operator of the class itself, else torch's."""
    if in_place and isinstance(left, ObjectValue) and (own := left.special(interp, row.method("i"))) is not None:
        return own.call(interp, [right], {})
    result = by_objects(interp, row, left, right, row.symbol)
    if result is not None:
        return result
    function = row.in_place if in_place and issubclass(left.python_type(), torch.Tensor) else row.function
    return interp.operate(function, left, right)


def _of_arrays(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    if isinstance(left, ObjectValue) or isinstance(right, ObjectValue):
        raise Break("numpy", f"{symbol} of an array and an object")
    return ARRAY_METHODS[symbol](interp, [left, right], {})


def _plain(value: Value) -> Value:
    return value.storage if isinstance(value, ObjectValue) and value.storage is not None else value


def _in_place(interp: Interpreter, row: BinaryRow, left: Value, right: Value) -> Value | None:
    if isinstance(left, ObjectValue):
        method = left.special(interp, row.method("i"))
        if method is not None and (
            left.storage is None or isinstance(interp.lookup(left.cls, row.method("i"))[0], WRITTEN)
        ):
            result = method.realize().call(interp, [right], {})
            return None if _not_implemented(result) else result
    plain = _plain(left)
    if isinstance(plain, ListValue) and row.symbol == "+":
        plain.call_method(interp, "extend", [right], {})
        return left
    if isinstance(plain, ListValue) and row.symbol == "*":
        interp.tracer.effects.mutated(plain)
        plain.items *= interp.index_of(right)
        return left
    if isinstance(plain, DictValue) and row.symbol == "|":
        plain.call_method(interp, "update", [right], {})
        return left
    if (
        isinstance(plain, SetValue)
        and plain.cls is set
        and isinstance(_plain(right), SetValue)
        and row.symbol in _SET_OPERATORS
    ):
        name = _SET_OPERATORS[row.symbol]
        plain.call_method(interp, "update" if name == "union" else f"{name}_update", [right], {})
        return left
    return None


def _not_implemented(value: Value) -> bool:
    value = value.realize()
    return isinstance(value, ConstantValue) and value.value is NotImplemented


def by_objects(interp: Interpreter, row: BinaryRow, left: Value, right: Value, symbol: str) -> Value | None:
    """By the special methods of the user's classes; None if they have none."""
    attempts = [(left, row.method(), right), (right, row.method("r"), left)]
    if left.python_type() is not right.python_type() and issubclass(right.python_type(), left.python_type()):
        attempts.reverse()
    tried = False
    for owner, name, other in attempts:
        entry, holder = interp.lookup(owner.python_type(), name)
        if isinstance(owner, ObjectValue) and isinstance(entry, WRITTEN) and holder is not torch.Tensor:
            result = owner.call_method(interp, name, [other], {})
            if not _not_implemented(result):
                return result
        elif entry is not MISSING and (symbol in "%=*=" or not isinstance(other, ObjectValue) or other.storage):
            tried = True  # a built-in kind will say what it thinks of it
    if not tried:
        names = f"{left.python_type().__name__!r} and {right.python_type().__name__!r}"
        shown = f"{symbol} or pow()" if symbol == "**" else f"{symbol}()" if symbol == "divmod" else symbol
        interp.raise_new(TypeError, f"unsupported operand type(s) for {shown}: {names}")
    return None


def _by_containers(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value | None:
    if symbol == "+" and isinstance(left, SequenceValue) and isinstance(right, SequenceValue):
        if isinstance(left, TupleValue) and isinstance(right, TupleValue):
            kind = next((side.cls for side in (left, right) if side.cls.__name__ == "Size"), tuple)
            return TupleValue(left.items + right.items, cls=kind)
        if type(left) is type(right):
            return left.copy_with(left.items + right.items)
        names = f'"{right.python_type().__name__}") to {left.python_type().__name__}'
        interp.raise_new(TypeError, f"can only concatenate {left.python_type().__name__} (not {names}")
    if symbol == "*":
        if isinstance(right, SequenceValue):
            left, right = right, left
        if isinstance(left, SequenceValue):
            if not hasattr(right.python_type(), "__index__"):
                other = right.python_type().__name__
                interp.raise_new(TypeError, f"can't multiply sequence by non-int of type {other!r}")
            return left.copy_with(left.items * interp.index_of(right))
    if symbol == "%" and isinstance(left, ConstantValue) and isinstance(left.value, (str, bytes)):
        return _percent(interp, left, right)
    iterable = isinstance(left, ViewValue) and isinstance(right, (SequenceValue, DictValue))  # enough for a view
    if _is_set(left) and (iterable or _is_set(right)) and symbol in _SET_OPERATORS:
        fresh = not isinstance(left, SetValue) or isinstance(right, ViewValue)  # a view gives a new set
        mine = SetValue.of(interp, left.iterate(interp)) if fresh else left
        return SET_METHODS[_SET_OPERATORS[symbol]](interp, mine, [right], {})
    if symbol == "|" and isinstance(left, DictValue) and isinstance(right, DictValue):
        joined = left.call_method(interp, "copy", [], {})
        joined.call_method(interp, "update", [right], {})
        return joined
    return None


def _percent(interp: Interpreter, left: ConstantValue, right: Value) -> Value:
    items = [item.realize() for item in (right.items if isinstance(right, TupleValue) else [right])]
    if any(map(is_open, items)):
        return late_text(interp, percent, [left, *items])
    try:
        return interp.fold(operator.mod, (left, ConstantValue(host_copy(interp, right))), {})
    except NotConstant:
        pass
    if isinstance(right, DictValue) or "r" in str(left.value) or "a" in str(left.value):
        raise Break("unsupported-operation", f"text of {right.describe()}")
    shown = [item if item.is_constant() else interp.formatted(item, "", "") for item in items]
    return interp.fold(lambda text, *parts: text % parts, [left, *shown], {})


def special_method(interp: Interpreter, value: Value, name: str, args: Args) -> Value | None:
    """An operator that is called by the name of its special method on a built-in kind; None if it is none."""
    if name in _BY_METHOD and len(args) == 1:
        return binary(interp, _BY_METHOD[name], value, args[0])
    if name in _BY_COMPARISON and len(args) == 1:
        return compare(interp, _BY_COMPARISON[name], value, args[0])
    if name == "__len__":
        return ConstantValue(value.length(interp))
    return ConstantValue(value.truth(interp)) if name == "__bool__" else None


def compare(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """`left symbol right` for the six comparisons."""
    left, right = left.realize(), right.realize()
    function, method, reflected = COMPARE[symbol]
    if isinstance(left, ArrayValue) or isinstance(right, ArrayValue):
        return _of_arrays(interp, symbol, left, right)
    if isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
        size = of_sizes(symbol, left, right) or compared(interp, function, left, right)
        return interp.fold(function, (left, right), {}) if size is None else size
    for one in (left, right):
        if isinstance(one, EitherValue):
            return one.beside(interp, function, (left, right))
    if (isinstance(left, TensorValue) or isinstance(right, TensorValue)) and not (
        isinstance(left, SubclassValue) or isinstance(right, SubclassValue)
    ):
        other = right if isinstance(left, TensorValue) else left
        comparable = (TensorValue, ConstantValue, ScalarValue, HeldValue)
        if symbol in ("==", "!=") and not isinstance(other, comparable) and not interp.tracer.function_modes:
            return ConstantValue(symbol == "!=")
        left, right = beside(interp, left, right), beside(interp, right, left)
        return interp.operate(function, left, right)
    if isinstance(left, WeakReferenceValue) and isinstance(right, WeakReferenceValue):
        return compare(interp, symbol, left.alive(), right.alive())
    if isinstance(left, AddressValue) and isinstance(right, AddressValue) and symbol in ("==", "!="):
        left.identity(), right.identity()
        return ConstantValue(identical(interp, left.target, right.target) is (symbol == "=="))
    for owner, name, other in ((left, method, right), (right, reflected, left)):
        if isinstance(owner, ObjectValue):
            entry, holder = interp.lookup(owner.cls, name)
            if isinstance(entry, WRITTEN) and holder is not torch.Tensor:
                result = owner.call_method(interp, name, [other], {})
                if not _not_implemented(result):
                    return result
            elif symbol == "!=" and holder is object and isinstance(interp.lookup(owner.cls, "__eq__")[0], WRITTEN):
                equal = compare(interp, "==", left, right).realize()
                return ConstantValue(not equal.truth(interp))
    if isinstance(left, SubclassValue) or isinstance(right, SubclassValue):
        return interp.operate(function, left, right)
    if isinstance(left, _OF_DATA) or isinstance(right, _OF_DATA):
        return of_scalars(interp, symbol, left, right)
    if isinstance(left, NumberValue) or isinstance(right, NumberValue):
        return NumberValue.binary(interp, symbol, left, right)
    plain = [side.snapshot(interp) if isinstance(side, InstanceDictValue) else _plain(side) for side in (left, right)]
    return _compare_plain(interp, symbol, *plain)


def _compare_plain(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    function = COMPARE[symbol][0]
    if (
        isinstance(left, SequenceValue)
        and isinstance(right, SequenceValue)
        and all(isinstance(left, kind) is isinstance(right, kind) for kind in (TupleValue, DequeValue))
    ):
        return _compare_sequences(interp, symbol, left, right)
    if isinstance(left, DictValue) and isinstance(right, DictValue) and symbol in ("==", "!="):
        equal = _equal_dicts(interp, left, right)
        return ConstantValue(equal is (symbol == "=="))
    if _is_set(left) and _is_set(right):
        mine, other = (set(SetValue.of(interp, part.iterate(interp)).entries) for part in (left, right))
        return ConstantValue(function(mine, other))
    if left.is_constant() and right.is_constant():
        return interp.fold(function, (left, right), {})
    if symbol in ("==", "!="):
        for side in (left, right):
            own = interp.lookup(side.python_type(), "__eq__")[0]
            if isinstance(side, ObjectValue) and own is not object.__eq__ and not hasattr(own, "__code__"):
                raise Break("unsupported-operation", f"{side.describe()} is compared")
        if isinstance(left, SliceValue) and isinstance(right, SliceValue):
            return _compare_sequences(
                interp, symbol, TupleValue(list(left.children())), TupleValue(list(right.children()))
            )
        same = _same_method(interp, left, right) or identical(interp, left, right)
        return ConstantValue(same is (symbol == "=="))
    names = f"{left.python_type().__name__!r} and {right.python_type().__name__!r}"
    interp.raise_new(TypeError, f"{symbol!r} not supported between instances of {names}")


def _is_set(value: Value) -> TypeGuard[SetValue | ViewValue]:
    return isinstance(value, SetValue) or (isinstance(value, ViewValue) and value.kind != "values")


def _same_method(interp: Interpreter, left: Value, right: Value) -> bool:
    """Whether both are the same method of the same object: bound anew at each read."""
    if isinstance(left, BoundMethodValue) and isinstance(right, BoundMethodValue):
        same = identical(interp, left.function, right.function)
    elif isinstance(left, MethodValue) and isinstance(right, MethodValue):
        same = left.name == right.name
    else:
        return False
    return same and identical(interp, left.owner, right.owner)


def _compare_sequences(interp: Interpreter, symbol: str, left: SequenceValue, right: SequenceValue) -> Value:
    if symbol in ("==", "!=") and len(left.items) != len(right.items):
        return ConstantValue(symbol == "!=")
    for mine, other in zip(left.items, right.items, strict=False):
        if not interp.same_or_equal(mine, other):
            return ConstantValue(symbol == "!=") if symbol in ("==", "!=") else compare(interp, symbol, mine, other)
    return ConstantValue(COMPARE[symbol][0](len(left.items), len(right.items)))


def _equal_dicts(interp: Interpreter, left: DictValue, right: DictValue) -> bool:
    mine, other = left.whole(interp), right.whole(interp)
    if mine.keys() != other.keys():
        return False
    if left.cls is right.cls is OrderedDict and list(mine) != list(other):
        return False
    return all(interp.same_or_equal(entry[1], other[host][1]) for host, entry in mine.items())


def contains(interp: Interpreter, container: Value, item: Value) -> bool:
    """`item in container`."""
    container = container.realize()
    if isinstance(container, ConstantValue):
        return interp.fold(operator.contains, [container, item], {}).truth(interp)
    if isinstance(container, ObjectValue):
        entry, _ = interp.lookup(container.cls, "__contains__")
        if entry is MISSING and container.storage is None:
            return any(interp.same_or_equal(other, item) for other in container.iterate(interp))
    if isinstance(container, TensorValue):
        raise Break("data-dependent-branch", "`in` on a tensor")
    if hasattr(container.python_type(), "__contains__"):
        return container.call_method(interp, "__contains__", [item], {}).realize().truth(interp)
    return any(interp.same_or_equal(other, item) for other in container.iterate(interp))


def host_copy(interp: Interpreter, value: Value) -> Any:
    """An object like a value that is made of constants: for functions that look at it and don't keep it; raises
    NotConstant: it holds tensors or objects of the user's classes."""
    value = value.realize()
    if isinstance(value, DequeValue):
        return deque([host_copy(interp, item) for item in value.items], value.maxlen)
    if isinstance(value, SequenceValue):
        return value.build([host_copy(interp, item) for item in value.items])
    if isinstance(value, SetValue):
        return value.cls(host_copy(interp, item) for item in value.iterate(interp))
    if not isinstance(value, DictValue):
        return value.as_constant()
    mapping: Any = value.cls() if value.factory is None else value.cls(host_copy(interp, value.factory))
    for key, item in value.whole(interp).values():
        mapping[host_copy(interp, key)] = host_copy(interp, item)
    return mapping


def host_text(interp: Interpreter, value: Value) -> Any:
    """An object whose text is that of a container of constants; raises Break: the text depends on others."""
    try:
        return host_copy(interp, value)
    except NotConstant:
        raise Break("unsupported-operation", f"text of {value.describe()}") from None
