"""Rules for the functions of the operator module."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from firebrick.capture.interpreter import operators
from firebrick.capture.library.known_callables import handles, handles_all, handles_each
from firebrick.capture.values.constant import NONE, ConstantValue

if TYPE_CHECKING:
    from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value


_BINARY = {row.function: row.symbol for row in operators.BINARY.values()}
_BINARY |= {row.in_place: f"{row.symbol}=" for row in operators.BINARY.values()}
_COMPARE = {row[0]: symbol for symbol, row in operators.COMPARE.items()}
_UNARY = {row[0]: symbol for symbol, row in operators.UNARY.items()}


@handles_each(*_BINARY)
def _binary(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return operators.binary(interp, _BINARY[function], args[0], args[1])


@handles_each(*_COMPARE)
def _compare(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return operators.compare(interp, _COMPARE[function], args[0], args[1])


@handles_each(*_UNARY)
def _unary(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return operators.unary(interp, _UNARY[function], args[0])


@handles(operator.setitem)
def _setitem(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    args[0].realize().set_item(interp, args[1], args[2])
    return NONE


handles_all(
    {
        operator.getitem: lambda interp, args, kwargs: args[0].realize().get_item(interp, args[1]),
        operator.contains: lambda interp, args, kwargs: ConstantValue(operators.contains(interp, args[0], args[1])),
        operator.is_: lambda interp, args, kwargs: ConstantValue(operators.identical(interp, args[0], args[1])),
        operator.not_: lambda interp, args, kwargs: ConstantValue(not args[0].realize().truth(interp)),
        operator.truth: lambda interp, args, kwargs: ConstantValue(args[0].realize().truth(interp)),
        operator.index: lambda interp, args, kwargs: ConstantValue(interp.index_of(args[0])),
    }
)
