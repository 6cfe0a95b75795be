"""What scheduling hands to code generation: kernels, the order of calls, and where each buffer lives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firebrick.loops.ir import Extern, LoopProgram
    from firebrick.loops.tree import Stmt
    from firebrick.symbolic.expr import Expr


@dataclass(frozen=True, slots=True)
class Param:
    """A formal buffer of a kernel: canonical name (a0, a1...), dtype, and whether the kernel writes it."""

    name: str
    dtype: str
    written: bool


@dataclass(frozen=True, slots=True)
class Kernel:
    """One native function. Kernels are canonical: equal work in other buffers is the same Kernel, launched again.

    body: the loop tree that code generation prints (`firebrick.loops.tree`).
    sizes: names of symbolic sizes that the kernel takes, in order.
    reuse: pairs (written, read) of places in `params` whose buffers may share memory.
    """

    name: str
    params: tuple[Param, ...]
    body: tuple[Stmt, ...]
    sizes: tuple[str, ...] = ()
    reuse: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """Call `kernel` with these buffers for its params and these values for its sizes."""

    kernel: str
    args: tuple[str, ...]
    sizes: tuple[Expr, ...] = ()
    nodes: tuple[str, ...] = ()  # names of the loop nodes that it does, for prints
    origin: str = ""
    parts: tuple[int, ...] = ()  # numbers of the captured graph's nodes that it computes


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why two neighbours were not fused."""

    first: str
    second: str
    reason: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer lives.

    where: "arena" (at byte `offset`), "fresh" (own tensor), "given" (input, const, derived) or "call" (an extern's).
    """

    buffer: str
    where: str
    offset: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Kernels in order. `free_after[i]` names call-made and fresh temps that die after step i."""

    program: LoopProgram
    kernels: tuple[Kernel, ...]
    steps: tuple[Launch | Extern, ...]
    places: tuple[Place, ...]
    arena_bytes: int
    free_after: tuple[tuple[str, ...], ...]
    refusals: tuple[Refusal, ...] = ()
