"""Times of the forms of matmuls, attention and convolutions on this machine, before any of them is built into a graph.

Library calls are made as a graph would make them, our kernels by probes that take any shape. Each form has a copy of
the weight, and caches are emptied between two rounds: in a model a weight comes from memory, and what it is multiplied
with does not. Bounded: forms that fall behind drop out, and a large shape stands for itself by a part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from timeit import repeat, timeit
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch

from firebrick.config import Config
from firebrick.errors import CompileError
from firebrick.runtime.unwatched import as_written
from firebrick.targets.cpu.measured_runs import Run, attentions, batches, convolutions, matmuls
from firebrick.targets.cpu.processor import caches

if TYPE_CHECKING:
    from firebrick.targets.cpu.cpu_target import CpuTarget

aten = torch.ops.aten

_ROUNDS = 2, 15
"""Least and most calls of a form that are timed."""
_SECONDS = 0.04
"""Most that is spent on a shape; it ends with the round in which this is over."""
_AGREE = 1.05
"""Two best calls of a form that are so close are what it takes; other programs only add to a time."""
_BEHIND = 1.3
"""Times the best form's time beyond which a form whose calls agree drops out."""
_OVERHEAD = 8
"""A call that takes less than so many calls of Python is not decided: the same library call from a graph costs less."""
_EVICTED = 32 << 20
"""Most bytes that are read between two rounds, a few milliseconds: what is left in a larger cache is so for all."""


def measure(
    target: CpuTarget, config: Config, op: str, args: tuple[Any, ...], forms: Mapping[str, int]
) -> dict[str, float]:
    """Seconds of a call of each form of an op; empty if nothing can be told from them.

    Args:
        op, args: as for `Target.choices`; tensors are without elements.
        forms: form -> passes over the results that follow it and that another form does on the way.
    """
    if op not in _RUNS:
        return {}
    with as_written():
        try:
            runs = dict(_RUNS[op](target, config, forms, *args))
        except CompileError:  # our kernels can't be built; whether anything needs them is not decided here
            return {}
        if len(runs) < 2:
            return {}
        for run in runs.values():
            run()
        nothing = partial(aten.alias.default, torch.empty(1))
        if timeit(next(iter(runs.values())), number=1) < _OVERHEAD * min(repeat(nothing, number=1)):
            return {}
        return race(runs, evicting().sum)


_RUNS: Mapping[str, Callable[..., Any]] = {
    "aten::mm": matmuls, "aten::bmm": batches, "firebrick::attention": attentions, "aten::convolution": convolutions,
}  # fmt: skip
"""Op -> its forms and what runs each, given the target, settings, forms and arguments."""

_evicting: WeakValueDictionary[str, torch.Tensor] = WeakValueDictionary()


def evicting() -> torch.Tensor:
    """As much memory as the last cache has; whoever measures several times keeps it, since it takes as long to make."""
    memory = _evicting.get("")
    if memory is None:
        memory = _evicting[""] = torch.zeros(min(caches()[3], _EVICTED) // 4)
    return memory


def race(runs: Mapping[str, Run], evict: Run, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Seconds of the fastest call of each, taken by turns until the two best calls of each agree; those far behind the
    best drop out. Empty where nothing can be told, since the machine is busy: calls of the fastest or of the one that
    costs prefer do not agree in time, and not even two calls of the former are faster than all of the latter.
    """
    times: dict[str, list[float]] = {form: [] for form in runs}
    left, end = dict(runs), clock() + _SECONDS
    for turn in range(_ROUNDS[1]):
        evict()
        for form, run in left.items():
            start = clock()
            run()
            times[form] = sorted((*times[form], clock() - start))[:2]
        sure = {form for form, (best, *second) in times.items() if second and second[0] <= _AGREE * best}
        best = min(times.values())[0]
        left = {form: run for form, run in left.items() if form not in sure or times[form][0] <= _BEHIND * best}
        if turn + 1 >= _ROUNDS[0] and (sure.issuperset(left) or clock() > end):
            break
    preferred, fastest = next(iter(runs)), min(times, key=times.__getitem__)
    decided = {preferred, fastest} <= sure or times[fastest][-1] < times[preferred][0]
    return {form: best for form, (best, *_) in times.items()} if decided else {}
