"""Graphs that a thread compiles: one that runs on eager kernels meanwhile, or a version for a size of many calls."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

from firebrick.report import FirebrickWarning, recorder
from firebrick.runtime.bits import ConstantsChanged

_VERSIONS, _SIZES, _CALLS, _TRIALS, _GAIN = 2, 256, 100, 40, 0.95
"""Versions of a graph for single sizes; sizes whose calls are counted; calls of one before it has a version, and calls
in which that is tried; what it may take of the time of the code for many sizes."""


class OutOfDate(Exception):
    """What was compiled holds of fewer calls than the guards let through, or of none: the frame is captured again."""


@cache
def _worker() -> ThreadPoolExecutor:
    """The thread that compiles, one graph after the other; a process ends when it is done."""
    return ThreadPoolExecutor(1, "firebrick background")


class Deferred:
    """A function of the graph's inputs. The first call, when all guards are written, hands `compile` to the thread."""

    def __init__(self, eager: Callable[..., Any], compile: Callable[[], Callable[..., Any]]) -> None:
        self._run = eager
        self._step: Callable[[], None] | None = lambda: self._start(compile)

    def __call__(self, *inputs: Any) -> Any:
        """Run what there is."""
        if self._step is not None:
            self._step()
        return self._run(*inputs)

    def _start(self, compile: Callable[[], Callable[..., Any]]) -> None:
        job = _worker().submit(compile)
        self._step = lambda: self._take(job) if job.done() else None

    def _take(self, job: Future[Callable[..., Any]]) -> None:
        error = job.exception()
        if isinstance(error, OutOfDate):
            raise ConstantsChanged("what was compiled in the background decided more about sizes than is guarded")
        self._step = None
        if error is None:
            self._run = job.result()
            recorder.count("graphs compiled in the background")
        else:
            text = f"firebrick: a graph goes on on eager kernels, since its compile failed: {error}"
            warnings.warn(text, FirebrickWarning, stacklevel=4)


class _Size:
    """Calls of one size: how long they took together, and at least, with the code for many sizes and with its own."""

    def __init__(self) -> None:
        self.calls, self.spent, self.trials, self.least = 0, 0.0, 0, [math.inf, math.inf]
        self.job: Future[Callable[..., Any]] | None = None
        self.run: Callable[..., Any] | None = None


class Hot:
    """Code for many sizes, and for those of many calls.

    Once the calls of one size have taken longer than the compile for many did, a thread compiles for that size alone.
    Calls then take both in turns, are timed, and go on with the code for that size only if it is faster.
    """

    def __init__(self, name: str, many: Callable[..., Any], seconds: float, compile: Callable[..., Any]) -> None:
        self._name, self._many, self._seconds, self._compile = name, many, seconds, compile
        self._sizes, self._left = dict[Any, _Size](), _VERSIONS

    def __call__(self, *inputs: Any) -> Any:
        """Run what is best for the sizes of the inputs, as far as that is known."""
        key = tuple([x.shape for x in inputs])
        size = self._sizes.get(key) or (self._sizes.setdefault(key, _Size()) if len(self._sizes) < _SIZES else None)
        if size is None or size.run is not None:
            return (self._many if size is None else size.run)(*inputs)  # type: ignore[misc]
        job, start = size.job, time.perf_counter()
        done = job is not None and job.done()
        alone = done and size.trials % 2 == 1
        result = (job.result() if alone else self._many)(*inputs)  # type: ignore[union-attr]
        took = time.perf_counter() - start
        size.calls, size.spent = size.calls + 1, size.spent + took
        if done:
            size.trials, size.least[alone] = size.trials + 1, min(size.least[alone], took)
            if (error := job.exception()) is not None or size.trials == _TRIALS:  # type: ignore[union-attr]
                adopted = error is None and size.least[True] < _GAIN * size.least[False]
                size.run = job.result() if adopted else self._many  # type: ignore[union-attr]
                text = "{1:.0f} us a call, for many sizes {0:.0f} us".format(*[t * 1e6 for t in size.least])
                text = f"{text}, {'taken' if adopted else 'not taken'}" if error is None else f"not compiled: {error}"
                shapes = ", ".join("x".join(map(str, shape)) for shape in key)
                recorder.reason("hot size", f"{self._name} of {shapes}: {text}")
        elif job is None and self._left and size.calls >= _CALLS and size.spent > self._seconds:
            self._left, size.job = self._left - 1, _worker().submit(self._compile, inputs)
        return result
