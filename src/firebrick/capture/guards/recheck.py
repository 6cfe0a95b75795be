"""`check=guards`: every call is captured anew, and it is asked which former capture would have been used instead.

That is how a guard that is missing or too weak shows: it holds of a call whose capture is another.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from firebrick.capture.guards.guard_kinds import Guard
from firebrick.capture.guards.guard_plan import Plan, build_plan
from firebrick.capture.guards.sources import Attr, Const
from firebrick.capture.values.constant import LITERAL_TYPES
from firebrick.report import recorder

if TYPE_CHECKING:
    from firebrick._native import Frame


class _Once:
    """Its attribute is true for the frame that a plan was made of, which is the first to ask, and false afterwards."""

    asked = False

    @property
    def is_first(self) -> bool:
        first, self.asked = not self.asked, True
        return first


class Recheck:
    """The former captures of each code object: their plans, and what was captured."""

    def __init__(self) -> None:
        self._former: WeakKeyDictionary[CodeType, list[tuple[Plan, list[str]]]] = WeakKeyDictionary()

    def used_once(self, frame: Frame, plan: Plan, graph: list[str], code: CodeType) -> Plan:
        """Say which former plan holds of a frame that is captured otherwise now; gives a plan that holds this once."""
        literals = [repr(value) for value in code.co_consts if type(value) in LITERAL_TYPES]
        captured = [*graph, f"constants {literals}", f"code {code.co_code.hex()}"]
        former = self._former.setdefault(frame.code, [])
        for older, before in former:
            if before != captured and not older.dead and older.failing(frame) is None:
                _report(frame, older, plan, before, captured)
                break
        former.append((plan, captured))
        once = Guard("EQUALS", Attr(Const(_Once(), "this call"), "is_first"), True)
        return build_plan([*plan.guards, once], frame.code)


def _report(frame: Frame, older: Plan, plan: Plan, before: list[str], captured: list[str]) -> None:
    code = frame.code
    guards = _changes([str(g) for g in older.guards], [str(g) for g in plan.guards])
    lines = guards or _changes([line for line in before if not line.startswith("code")], captured[:-1])
    place = f"{code.co_filename}:{code.co_firstlineno} in {code.co_qualname}"
    what = "guard" if guards else "captured"
    text = f"guards of {Path(code.co_filename).name}:{code.co_firstlineno} hold of a call that is captured otherwise"
    detail = "; ".join(f"{what} {line}" for line in lines[:4]) or "the code differs"
    recorder.reason("guards too weak", f"{code.co_qualname}: {detail}, at {place}")
    recorder.warn_once(f"recheck {place}", f"firebrick: {text}: {detail}\n  at {place}")


def _changes(before: list[str], after: list[str]) -> list[str]:
    """The lines that differ, the old with - and the new with +."""
    return [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
