"""The table behind interned expressions: equal ones are one object for as long as somebody uses it."""

from __future__ import annotations

from threading import RLock
from typing import Any
from weakref import WeakValueDictionary

RECENT = 1 << 12
"""Expressions that are kept though nobody uses them: a compile of one graph asks for few more, again and again."""


class Interned(dict[Any, Any]):
    """The expressions that were made last, by what they are made of; a dict, for most lookups end there.

    Those that somebody else uses are found beyond them, so that equal expressions stay the same object.
    """

    def __init__(self) -> None:
        self._living: WeakValueDictionary[Any, Any] = WeakValueDictionary()
        self._lock = RLock()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The living expression of the key, `made` if there is none; threads agree."""
        with self._lock:
            living = self._living.setdefault(key, default)
            if len(self) >= RECENT:
                self.clear()
            self[key] = living
        return living
