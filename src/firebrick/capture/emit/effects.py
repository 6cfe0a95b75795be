"""Side effects of the captured code on objects that existed before: collected, then replayed once, in order.

Containers and objects are replayed by their final state, in the order of their first change. All new
contents are loaded before the first is stored, so that what is read from an object that changes is
what it was.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from types import CodeType
from typing import Any

from firebrick.capture.guards.sources import Source
from firebrick.capture.values.base import Args, Value, ValueEmitter


class Effects:
    """What the captured code has changed so far."""

    def __init__(self) -> None:
        self._changed: dict[int, Any] = {}
        self.count = 0
        self.outside = 0  # changes of what was there before, and of new objects that it holds
        self.in_reach: set[int] = set()  # such new objects
        self.touched: list[int] = []  # what has changed, by identity
        self.assigned: dict[tuple[int, str], tuple[Any, Value]] = {}
        self.floats: set[Source] = set()  # places of floats that were there before and are overwritten
        self._context: dict[int, tuple[Value, Value]] = {}
        self._calls: list[tuple[Any, Sequence[Value], dict[str, Value]]] = []

    def __bool__(self) -> bool:
        return bool(self._changed or self.assigned or self._context or self._calls)

    def mutated(self, value: Any, *, always: bool = False) -> None:
        """Note that `value` changes; values made by captured code need no replay, unless `always`."""
        self.count += 1
        self.touched.append(id(value))
        self.outside += always or value.source is not None or id(value) in self.in_reach
        if always or value.source is not None:
            self._changed.setdefault(id(value), value)

    def overwritten(self, value: object) -> None:
        """Note what an attribute or item was that gets another value; a float is most likely another in each call."""
        source = getattr(value, "source", None)
        if source is not None and type(getattr(value, "obj", None)) is float:
            self.floats.add(source)

    def set_global(self, variables: Any, name: str, value: Value) -> None:
        """Note an assignment to a global, or to an attribute of a class."""
        self.count += 1
        self.outside += 1
        self.assigned[id(variables), name] = (variables, value)

    def global_value(self, variables: Any, name: str) -> Value | None:
        """What captured code assigned to a global or a class's attribute, or None."""
        change = self.assigned.get((id(variables), name))
        return None if change is None else change[1]

    def context_value(self, variable: Value) -> Value | None:
        """What captured code set a context variable to, or None."""
        change = self._context.get(id(variable))
        return None if change is None else change[1]

    def set_context(self, variable: Value, value: Value | None) -> None:
        """Note that a context variable is set; without a value, that it is as it was before the captured code."""
        self.count += 1
        self.outside += 1
        if value is None:
            self._context.pop(id(variable), None)
        else:
            self._context[id(variable)] = (variable, value)

    def later(self, function: Any, args: Args, kwargs: dict[str, Value]) -> None:
        """Defer a call whose result nobody uses, such as print, to the end of the captured region."""
        self.count += 1
        self.outside += 1
        self._calls.append((function, list(args), dict(kwargs)))

    def roots(self) -> list[Value]:
        """Changed objects."""
        return list(self._changed.values())

    def stored(self) -> list[Value]:
        """What objects that were there before hold since they were changed."""
        return [*self.roots(), *[value for _, value in (*self.assigned.values(), *self._context.values())]]

    def show(self, code: CodeType) -> list[tuple[str, Any]]:
        """What is changed, in short, and the object; None for a call. A frame's own dict of keywords does not count."""
        place = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
        own = code.co_varnames[place] if code.co_flags & inspect.CO_VARKEYWORDS else ""
        changed = [value for value in self._changed.values() if str(value.source) != own]
        written = [(f"{v.source or 'an object'} ({v.python_type().__name__})", v.obj) for v in changed]
        written += [(f"the global {name}", holder) for (_, name), (holder, _) in self.assigned.items()]
        written += [(f"the context variable {variable.source}", None) for variable, _ in self._context.values()]
        return written + [(f"what {getattr(call[0], '__name__', call[0])}() changes", None) for call in self._calls]

    def load(self, emitter: ValueEmitter) -> list[Callable[[], None]]:
        """Emit the loads of all new contents; the functions returned emit the stores."""
        for value in self._changed.values():  # what leads to one may change with another
            emitter.load(value)
            emitter.pop()
        stores = [value.replay(emitter) for value in self._changed.values()]

        def later(function: Any, *args: Any, given: Sequence[Value], keywords: Sequence[str] = ()) -> None:
            temps = [emitter.load_to_temp(value) for value in given]
            stores.append(partial(emitter.run_call, function, *args, temps=temps, keywords=keywords))

        for (_, name), (variables, value) in self.assigned.items():
            later(setattr if isinstance(variables, type) else operator.setitem, variables, name, given=[value])
        for variable, value in self._context.values():
            later(ContextVar.set, given=[variable, value])
        for function, args, kwargs in self._calls:
            later(function, given=[*args, *kwargs.values()], keywords=tuple(kwargs))
        return stores
