"""The buffers that steps of a schedule name, and steps on other buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from firebrick.ir.kernels.schedule import Launch
from firebrick.ir.loops.program import Extern, Ref

Step = Launch | Extern


def names_in(step: Step) -> list[str]:
    """The buffers of a step, by place."""
    if isinstance(step, Launch):
        return list(step.args)
    return [*args_in(step), *[name for name in (*step.outs, *step.writes) if name is not None]]


def args_in(step: Step) -> list[str]:
    """The buffers among the arguments of a step."""
    return list(step.args if isinstance(step, Launch) else _in_args((step.args, step.kwargs)))


def _in_args(value: Any) -> Iterator[str]:
    if isinstance(value, Ref):
        yield value.buffer
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _in_args(item)


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
