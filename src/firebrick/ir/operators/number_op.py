"""The operator of a function of Python's floats, `firebrick::number`: of what tensors compute in another way."""

from __future__ import annotations

import math
import operator
from typing import Any

from firebrick.ir.operators.definition import define

_MODULES: dict[str, Any] = {"math": math, "_operator": operator}


def _number(function: str, left: Any, right: Any = None) -> Any:
    """`function(left, right)`, which may raise what it raises in Python."""
    module, name = function.split(".")
    result = getattr(_MODULES[module], name)(*(side.item() for side in (left, right) if side is not None))
    if type(result) is not float:
        raise TypeError(f"{function} gives a {type(result).__name__}")
    return left.new_tensor(result)


number_op: Any = define(
    "number(str function, Tensor left, Tensor? right=None) -> Tensor",
    _number,
    lambda function, left, right=None: left.new_empty(()),
)
