"""Rules for the functions of the operator module."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from firebrick.capture.interpreter import operators
from firebrick.capture.library.known_callables import handles
from firebrick.capture.values.constant import NONE, ConstantValue

if TYPE_CHECKING:
    from firebrick.capture.interpreter.interpreter import Interpreter
    from firebrick.capture.values.base import Args, Kwargs, Value


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


@handles(operator.setitem)
def _setitem(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    args[0].realize().set_item(interp, args[1], args[2])
    return NONE


_RULES: dict[Any, Any] = {
    operator.getitem: lambda interp, args, kwargs: args[0].realize().get_item(interp, args[1]),
    operator.contains: lambda interp, args, kwargs: ConstantValue(operators.contains(interp, args[0], args[1])),
    operator.is_: lambda interp, args, kwargs: ConstantValue(operators.identical(interp, args[0], args[1])),
    operator.not_: lambda interp, args, kwargs: ConstantValue(not args[0].realize().truth(interp)),
    operator.truth: lambda interp, args, kwargs: ConstantValue(args[0].realize().truth(interp)),
    operator.index: lambda interp, args, kwargs: ConstantValue(interp.index_of(args[0])),
}
for _function, _rule in _RULES.items():
    handles(_function)(_rule)
