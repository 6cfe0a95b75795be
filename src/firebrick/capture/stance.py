"""What compiled functions do at a call: as `firebrick.set_stance` or `torch.compiler.set_stance` said."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

LATER = ("eager_then_compile", "aot_eager_then_compile")
"""Stances under which the first call of a frame is plain, and tells the capture at the second what varies."""
STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", *LATER)
FRONT_END = "torch._dynamo.eval_frame"
"""Where torch keeps its stance; a call of `torch.compiler.set_stance` is what imports it."""


@dataclass(frozen=True, slots=True)
class Stance:
    """One of `STANCES`, and the backend that the default one compiles with instead of its own."""

    name: str = "default"
    backend: Any = None


DEFAULT = Stance()


class _Process:
    """The stance that `firebrick.set_stance` set; the object that torch kept last, and what it says."""

    stance = DEFAULT
    front_end: Any = None
    read = DEFAULT


def set_own(stance: Stance) -> Stance:
    """Set the stance of this process; gives the one before."""
    before, _Process.stance = _Process.stance, stance
    return before


def current() -> Stance:
    """The stance of this process: Firebrick's own, or else torch's."""
    if _Process.stance is not DEFAULT or FRONT_END not in sys.modules:
        return _Process.stance
    front_end = getattr(sys.modules[FRONT_END], "_stance", DEFAULT)  # lacks it while it is being imported
    if front_end is not _Process.front_end:  # each call of a compiled function asks, so it is read once
        name, backend = getattr(front_end, "stance", "default"), getattr(front_end, "backend", None)
        _Process.read = DEFAULT if name == "default" and backend is None else Stance(name, backend)
        _Process.front_end = front_end
    return _Process.read
