"""A graph that runs on eager kernels while a thread compiles it."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

from firebrick.report import FirebrickWarning, recorder
from firebrick.runtime.bits import ConstantsChanged

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


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
