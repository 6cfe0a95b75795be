"""Calls that new code makes before the graph, in the program's order: what they give is an argument of the graph.

Random numbers of Python, draws from a `torch.Generator` and leaves that gather gradients can't be part of a graph: a
graph is a function of tensors. But they need no tensor of it either, so they are made first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from firebrick.capture.guards.sources import Source

if TYPE_CHECKING:
    from firebrick.capture.emit.materialize import ValueEmitter


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """What one of the calls gives."""

    index: int


Operand: TypeAlias = Any
"""A `Made`, the `Source` of an object that was there before, or a constant."""


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    function: Callable[..., Any]
    args: tuple[Operand, ...]
    kwargs: Mapping[str, Operand]


class Prelude:
    """The calls of one capture."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._advanced: dict[Any, Operand] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(
        self,
        function: Callable[..., Any],
        args: Sequence[Operand] = (),
        kwargs: Mapping[str, Operand] | None = None,
        advances: Operand = None,
    ) -> Made:
        """Add a call. advances: the random generator whose state it changes, if that was there before."""
        if advances is not None and not isinstance(advances, Made):
            self._advanced.setdefault(advances if isinstance(advances, Source) else id(advances), advances)
        self._calls.append(_Call(function, tuple(args), dict(kwargs or {})))
        return Made(len(self._calls) - 1)

    def show(self) -> list[tuple[str, Any]]:
        """What is made, in short, as effects are shown."""
        return [(f"what {getattr(call.function, '__name__', 'a call')}() gives", None) for call in self._calls]

    def keep_states(self, emitter: ValueEmitter) -> list[str]:
        """Emit what keeps the states of random generators; the temporaries that hold them."""
        temps = []
        for generator in self._advanced.values():
            emitter.load_call(_kept, generator)
            temps.append(emitter.store_temp())
        return temps

    @staticmethod
    def put_back(emitter: ValueEmitter, temps: Sequence[str]) -> None:
        """Emit what puts the states back that were kept."""
        for temp in temps:
            emitter.run_call(partial.__call__, temps=[temp])

    def emit(self, emitter: ValueEmitter) -> None:
        """Emit the calls."""
        for index, call in enumerate(self._calls):
            emitter.load_call(call.function, *call.args, *call.kwargs.values(), keywords=tuple(call.kwargs))
            emitter.store_fast(emitter.made_temp(index))


def _kept(generator: Any) -> Callable[[], None]:
    """What puts the state of a random generator back to what it is now."""
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    return partial(generator.set_state, generator.get_state())
