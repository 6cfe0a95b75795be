"""Rules of numpy: its scalars are constants, and its functions are evaluated on constants.

Calls with arrays break. Torch's functions do not give numpy's results bit for bit (sums are taken in another order,
sines by other polynomials) nor its dtypes, so they can't stand for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from firebrick.capture import operators
from firebrick.capture.breaks import Break
from firebrick.capture.library.registry import handles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from firebrick.capture.interpreter import Interpreter
    from firebrick.capture.values.base import Value

    Args = Sequence[Value]
    Kwargs = Mapping[str, Value]

_FUNCTIONS = (
    *("abs", "add", "all", "any", "arccos", "arcsin", "arctan", "arctan2", "argmax", "argmin", "ceil", "clip", "cos"),
    *("cosh", "deg2rad", "divide", "dot", "exp", "exp2", "expm1", "floor", "floor_divide", "gcd", "hypot", "isclose"),
    *("isfinite", "isinf", "isnan", "lcm", "log", "log10", "log1p", "log2", "max", "maximum", "mean", "median", "min"),
    *("minimum", "mod", "multiply", "ndim", "negative", "power", "prod", "rad2deg", "round", "sign", "sin", "sinh"),
    *("size", "sqrt", "square", "std", "subtract", "sum", "tan", "tanh", "true_divide", "var", "promote_types"),
    *("result_type", "can_cast", "issubdtype", "isscalar", "iinfo", "finfo"),
)
"""Functions of numpy that have no effect and give a scalar for scalars or lists of them."""

_SCALARS = ("bool_", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "dtype")
"""Classes of numpy's scalars."""


def _evaluates(function: Any) -> None:
    @handles(function)
    def rule(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        host = [operators.host_text(interp, arg) for arg in args]
        named = {name: operators.host_text(interp, arg) for name, arg in kwargs.items()}
        try:
            found = function(*host, **named)
        except Exception as error:  # noqa: BLE001  the user's program gets whatever it raises
            interp.raise_real(error)
        if any(isinstance(item, np.ndarray) for item in (*host, *named.values(), found)):
            raise Break("unsupported-call", f"numpy.{function.__name__}() of an array")
        return interp.tracer.fresh(found)


for _name in (*_FUNCTIONS, *_SCALARS):
    _evaluates(getattr(np, _name))
