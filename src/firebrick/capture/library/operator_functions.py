"""Rules for the functions of the operator module."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from firebrick.capture.interpreter import operators
from firebrick.capture.library.known_callables import handles
from firebrick.capture.values.constant import NONE, ConstantValue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from firebrick.capture.interpreter.interpreter import Interpreter
    from firebrick.capture.values.base import Value

    Args = Sequence[Value]
    Kwargs = Mapping[str, Value]


def _binary(symbol: str, function: Any) -> None:
    @handles(function)
    def rule(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        return operators.binary(interp, symbol, args[0], args[1])


def _compare(symbol: str, function: Any) -> None:
    @handles(function)
    def rule(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        return operators.compare(interp, symbol, args[0], args[1])


def _unary(symbol: str, function: Any) -> None:
    @handles(function)
    def rule(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        return operators.unary(interp, symbol, args[0])


for _row in operators.BINARY.values():
    _binary(_row.symbol, _row.function)
    _binary(_row.symbol + "=", _row.in_place)
for _symbol, (_function, _, _) in operators.COMPARE.items():
    _compare(_symbol, _function)
for _symbol, (_operation, _) in operators.UNARY.items():
    _unary(_symbol, _operation)


@handles(operator.getitem)
def _getitem(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return args[0].realize().get_item(interp, args[1])


@handles(operator.setitem)
def _setitem(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    args[0].realize().set_item(interp, args[1], args[2])
    return NONE


@handles(operator.contains)
def _contains(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return ConstantValue(operators.contains(interp, args[0], args[1]))


@handles(operator.is_)
def _is(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return ConstantValue(operators.identical(interp, args[0], args[1]))


@handles(operator.not_)
def _not(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return ConstantValue(not args[0].realize().truth(interp))


@handles(operator.truth)
def _truth(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return ConstantValue(args[0].realize().truth(interp))


@handles(operator.index)
def _index(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return ConstantValue(interp.index_of(args[0]))
