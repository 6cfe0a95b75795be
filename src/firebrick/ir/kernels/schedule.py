"""What scheduling hands to code generation: kernels, the order of calls, and where each buffer lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from firebrick.ir.index.expr import Expr
from firebrick.ir.loops.program import Extern, LoopProgram, Ref


@dataclass(frozen=True, slots=True)
class Param:
    """A formal buffer of a kernel: canonical name (a0, a1...), dtype, whether it is written, or a number by value."""

    name: str
    dtype: str
    written: bool
    number: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """One native function. Kernels are canonical: equal work in other buffers is the same Kernel, launched again.

    body: the target's own frozen data, of which it writes the text: on CPUs a loop tree (`firebrick.ir.kernels.tree`).
    sizes: names of symbolic sizes that the kernel takes, in order. device: type of the device whose target made it.
    reuse: pairs (written, read) of places in `params` whose buffers may share memory.
    """

    name: str
    params: tuple[Param, ...]
    body: Any
    sizes: tuple[str, ...] = ()
    reuse: tuple[tuple[int, int], ...] = ()
    device: str = "cpu"

    @property
    def loops(self) -> Any:
        """The loop tree that the body is; an empty one where it is something else."""
        return self.body if isinstance(self.body, tuple) else ()


@dataclass(frozen=True, slots=True)
class Launch:
    """Call `kernel` with these buffers for its params and these values for its sizes.

    grid: how many of it run, along each dimension, in terms of the program's sizes; none where the kernel shares its
    work out itself. attributes: numbers that the driver wants of a launch (warps, bytes of shared memory).
    """

    kernel: str
    args: tuple[str, ...]
    sizes: tuple[Expr, ...] = ()
    nodes: tuple[str, ...] = ()  # names of the loop nodes that it does, for prints
    origin: str = ""
    parts: tuple[int, ...] = ()  # numbers of the captured graph's nodes that it computes
    grid: tuple[Expr, ...] = ()
    attributes: tuple[tuple[str, int], ...] = ()


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


Step = Launch | Extern


def names_in(step: Step) -> list[str]:
    """The buffers of a step, by place."""
    if isinstance(step, Launch):
        return list(step.args)
    return [*args_in(step), *[name for name in (*step.outs, *step.writes) if name is not None]]


def args_in(step: Step) -> list[str]:
    """The buffers among the arguments of a step."""
    return list(step.args) if isinstance(step, Launch) else [ref.buffer for ref in refs_in((step.args, step.kwargs))]


def refs_in(value: Any) -> Iterator[Ref]:
    """The views of buffers among arguments."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from refs_in(item)


def rename_arg(value: Any, name: Callable[[str], Any]) -> Any:
    """An argument or result on other buffers."""
    if isinstance(value, Ref):
        new = name(value.buffer)
        return value if new is None or new == value.buffer else replace(value, buffer=new)
    if isinstance(value, tuple):
        return tuple([rename_arg(item, name) for item in value])
    return value


def renamed(step: Step, name: Callable[[str], Any], suffix: str) -> Any:
    """A step on other buffers."""
    if isinstance(step, Launch):
        return replace(step, args=tuple([name(a) or a for a in step.args]))
    return replace(
        step,
        name=step.name + suffix,
        args=rename_arg(step.args, name),
        kwargs=rename_arg(step.kwargs, name),
        outs=tuple([None if o is None else name(o) or o for o in step.outs]),
        writes=tuple([name(w) or w for w in step.writes]),
    )


def alike(one: Step, two: Step) -> bool:
    """Whether two steps do the same on the same buffers."""
    if isinstance(one, Launch) and isinstance(two, Launch):
        return (one.kernel, one.args, one.sizes) == (two.kernel, two.args, two.sizes)
    return isinstance(one, Extern) and isinstance(two, Extern) and replace(one, name="") == replace(two, name="")
