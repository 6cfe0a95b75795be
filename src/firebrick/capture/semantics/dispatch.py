"""The dispatch table of the symbolic interpreter: instruction name -> handler."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from firebrick.capture.bytecode.instructions import Instruction

if TYPE_CHECKING:
    from firebrick.capture.interpreter.interpreter import Interpreter

Handler = Callable[["Interpreter", Instruction], "Signal | None"]


class Signal(Enum):
    """Why the interpreter of a frame stops."""

    RETURN = "return"
    YIELD = "yield"


HANDLERS: dict[str, Handler] = {}
"""Instruction name -> handler."""


def executes(*names: str) -> Callable[[Handler], Handler]:
    """Register the decorated function as the handler of instructions."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register
