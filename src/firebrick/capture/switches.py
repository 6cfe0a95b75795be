"""Context managers and settings of torch as nodes of a graph."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from firebrick.ir.graph.nested import Nested

if TYPE_CHECKING:
    from collections.abc import Callable


_entered = threading.local()


def open_contexts() -> list[Any]:
    """The context managers that graphs of this thread have entered and not left."""
    if not hasattr(_entered, "contexts"):
        _entered.contexts = []
    contexts: list[Any] = _entered.contexts
    return contexts


def leave_contexts(depth: int) -> None:
    """Leave those that were entered since there were `depth`."""
    contexts = open_contexts()
    while len(contexts) > depth:
        contexts.pop().__exit__(None, None, None)


class Switch(Nested):
    """Enters what `make` gives, or leaves what was entered last where it is None; `once` calls `make` alone.

    It changes how torch computes what is behind it in the graph; a trace has it on and keeps nothing of it.
    """

    def __init__(self, name: str, make: Callable[[], Any] | None, key: str, *, once: bool = False) -> None:
        super().__init__(name, (), key)
        self.make, self.once = make, once

    def __call__(self) -> None:
        """Switch."""
        if self.make is None:
            leave_contexts(max(len(open_contexts()) - 1, 0))
        elif self.once:
            self.make()
        else:
            context = self.make()
            context.__enter__()
            open_contexts().append(context)
