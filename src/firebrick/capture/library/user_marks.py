"""Rules of the functions by which users speak to capture: `firebrick.graph_break`, `firebrick.is_compiling`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firebrick.capture import marks
from firebrick.capture.breaks import Break
from firebrick.capture.library.registry import handles
from firebrick.capture.values.constant import ConstantValue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from firebrick.capture.interpreter import Interpreter
    from firebrick.capture.values.base import Value


@handles(marks.is_compiling)
def _is_compiling(interp: Interpreter, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    return ConstantValue(True)


@handles(marks.graph_break)
def _graph_break(interp: Interpreter, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    raise Break("requested", "firebrick.graph_break()")
