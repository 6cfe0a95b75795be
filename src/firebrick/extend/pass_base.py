"""What a pass is, what it is given, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx

from firebrick.config import Config
from firebrick.errors import PassError, UserLocation

Level = Literal["torch", "aten", "joint", "torchscript"]
LEVELS: tuple[Level, ...] = ("torch", "aten", "joint", "torchscript")
"""torch: the captured graph of torch calls; aten: functional, decomposed ATen; joint: forward and backward in one."""

TraceFunction = Callable[[Callable[..., Any], Sequence["torch.Tensor"]], "fx.GraphModule"]
"""Traces a function on tensors into a graph of a pass's level."""


@dataclass(frozen=True, slots=True)
class Site:
    """One place where a pass applied, or a reason why it did not.

    node: name of the node that the pass looked at (a pattern's first output).
    before, after: the nodes that went and the nodes that came, as text.
    """

    node: str
    applied: bool
    reason: str = ""
    where: UserLocation | None = None
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        if not self.applied:
            return f"not at {self.node}{place}: {self.reason}"
        lines = [f"applied at {self.node}{place}"]
        lines += [f"  - {line}" for line in self.before.splitlines()]
        lines += [f"  + {line}" for line in self.after.splitlines()]
        return "\n".join(lines)


@dataclass(slots=True)
class PassReport:
    """What one pass did to one graph.

    skipped: why its result was thrown away; empty when it was kept.
    error: largest relative output error that verification measured; None when it was not verified.
    """

    name: str
    level: Level
    changed: bool = False
    skipped: str = ""
    error: float | None = None
    seconds: float = 0.0
    sites: list[Site] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def applied(self) -> int:
        """Number of places where the pass applied."""
        return sum(site.applied for site in self.sites)

    def __str__(self) -> str:
        if self.skipped:
            state = f"skipped: {self.skipped}"
        elif self.sites:
            state = f"applied {self.applied} of {len(self.sites)}"
        else:
            state = "changed" if self.changed else "no change"
        error = "" if self.error is None else f", error {self.error:.1e}"
        lines = [f"{self.name} ({self.level}): {state}{error}"]
        for entry in (*self.notes, *self.sites):
            lines += [f"  {line}" for line in str(entry).splitlines()]
        return "\n".join(lines)


@dataclass(slots=True)
class Context:
    """What a pass may look at beside the graph.

    trace: traces a function on tensors at the pass's level; rules use it for their patterns.
    frozen: names of the graph's constants that never change.
    example_inputs: real tensors for the graph's placeholders, where the caller has them.
    """

    config: Config = field(default_factory=Config)
    trace: TraceFunction | None = None
    frozen: frozenset[str] | None = None
    example_inputs: Sequence[Any] | None = None
    verify: bool = False
    report: PassReport = field(default_factory=lambda: PassReport("pass", "aten"))


class Pass:
    """One step that changes a graph. Derive from it and write `run`, or decorate a function with `graph_pass`.

    Attributes:
        name: unique; other passes refer to it, and `disable` takes it.
        level: the graph that it wants, one of `LEVELS`.
        before, after: names of passes of the same level that must run later, earlier. Unknown names are ignored.
        version: raise it when the meaning changes in a way that the code's own text does not show.
        tolerance: relative output error that verification accepts; None takes the dtype's.
            A pass that approximates says so here.
        atomic: leaves the graph legal at every step, even when it raises, so that no copy is taken before it.
        fixed: its attributes never change after construction, so that its content is hashed once.
        cacheable: False keeps the artifacts of graphs that it changes out of the disk cache.
    """

    name: str = ""
    level: Level = "aten"
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    version: int = 1
    tolerance: float | None = None
    atomic: bool = False
    fixed: bool = False
    cacheable: bool = True

    def run(self, gm: fx.GraphModule) -> bool:
        """Change `gm` in place and return whether anything changed."""
        raise NotImplementedError(f"{type(self).__name__}.run")

    def apply(self, gm: fx.GraphModule, context: Context) -> bool:
        """Like `run`, for passes that use the context. The default calls `run`."""
        del context
        return self.run(gm)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} at level {self.level}>"


class _FunctionPass(Pass):
    def __init__(self, function: Callable[[Any], Any], name: str, **attributes: Any) -> None:
        self.function, self.name = function, name
        for key, value in attributes.items():
            if not hasattr(Pass, key):
                raise PassError(f"a pass has no attribute {key!r}")
            setattr(self, key, value)

    def run(self, gm: fx.GraphModule) -> bool:
        return bool(self.function(gm))


def graph_pass(function: Callable[[Any], Any] | None = None, /, *, name: str | None = None, **attributes: Any) -> Any:
    """Make a `Pass` of a function `(gm) -> changed`; keywords are the attributes of `Pass`.

    Raises:
        PassError: a keyword is no attribute of `Pass`, or the level is unknown.
    """
    if attributes.get("level", "aten") not in LEVELS:
        raise PassError(f"unknown level {attributes['level']!r}", fix=f"use one of {', '.join(LEVELS)}")

    def decorate(inner: Callable[[Any], Any]) -> Pass:
        return _FunctionPass(inner, name or inner.__name__, **attributes)

    return decorate if function is None else decorate(function)
