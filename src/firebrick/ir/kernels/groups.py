"""What fusion hands to a target, and what the target makes of it: work without order, and kernels with their launches.

Neither knows a machine: how a kernel's body looks is the target's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firebrick.ir.index.expr import Expr, Var
from firebrick.ir.kernels.schedule import Param
from firebrick.ir.loops.program import Buffer, Store


@dataclass(frozen=True, slots=True)
class Statement:
    """A store of a fused group, closed: what it needs of other statements is in its value.

    inner: the axes that it has beyond the outer loops. late: it comes after all reads of a row.
    """

    inner: frozenset[Var]
    store: Store
    late: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """The statements of a group, in common variables.

    outer: loops that all statements share, in no order that a machine must keep unless elements meet. sizes: of all.
    numbers: buffers of one element on a CPU that the machine's kernels take by value.
    """

    statements: tuple[Statement, ...]
    outer: tuple[Var, ...]
    sizes: dict[Var, Expr]
    numbers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Scratchpad:
    """Memory that the kernels of one group hand on among themselves: `count` elements."""

    name: str
    dtype: str
    count: Expr


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """A kernel in canonical names and what it is launched with.

    kind: a word for the kernel's name. body: the target's own frozen data. args, sizes: buffers and values for its
    parameters and symbolic sizes, in order. grid, attributes, reuse: as in `kernels.schedule`. pads: own temporaries.
    """

    kind: str
    params: tuple[Param, ...]
    body: Any
    args: tuple[str, ...]
    sizes: tuple[Expr, ...] = ()
    grid: tuple[Expr, ...] = ()
    attributes: tuple[tuple[str, int], ...] = ()
    reuse: tuple[tuple[int, int], ...] = ()
    pads: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The launches of a group, in order, and the memory that they need for themselves."""

    launches: tuple[PlannedLaunch, ...]
    scratchpads: tuple[Scratchpad, ...] = ()
