"""What happened: counters, stage times, warnings and debug prints of this process.

One `Recorder` is shared by everything in a process, because `firebrick.stats()` answers for the
process; it is locked, and nothing reads it to decide what to do.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from firebrick.config import Config

logger = logging.getLogger("firebrick")


class FirebrickWarning(UserWarning):
    """Firebrick went on, but not as asked: a fall-back to eager, a cache that can't be written."""


class Recorder:
    """Thread-safe counters, times and events."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.listeners: tuple[Callable[[str, dict[str, Any]], None], ...] = ()
        self._clear()

    def _clear(self) -> None:
        self.counts: Counter[str] = Counter()
        self.reasons: dict[str, Counter[str]] = defaultdict(Counter)
        self.seconds: dict[str, float] = defaultdict(float)
        self.spans: deque[tuple[str, float, float]] = deque(maxlen=20_000)  # stage, start and end by perf_counter
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._warned: set[str] = set()

    def reset(self) -> None:
        """Forget everything."""
        with self._lock:
            self._clear()

    def count(self, name: str, n: int = 1) -> None:
        """Add `n` to counter `name`."""
        with self._lock:
            self.counts[name] += n

    def reason(self, kind: str, text: str) -> None:
        """Count one occurrence of `text` under `kind`, for example a graph break's cause."""
        with self._lock:
            self.reasons[kind][text] += 1

    def event(self, kind: str, **data: Any) -> None:
        """Append an event (JSON-able data) for reports; the list keeps the last 1,500 at least."""
        with self._lock:
            self.events.append((kind, data))
            if len(self.events) > 2_000:
                del self.events[:500]
        for listener in self.listeners:
            listener(kind, data)

    @contextmanager
    def listening(self, listener: Callable[[str, dict[str, Any]], None]) -> Iterator[None]:
        """In the block, call `listener(kind, data)` for each event, in the thread where it happens.

        Kinds: "capture" of a frame, "recompile" of one that fits nothing that was compiled, "pass", "partition".
        """
        self.listeners = (*self.listeners, listener)
        try:
            yield
        finally:
            self.listeners = tuple(other for other in self.listeners if other is not listener)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the wall seconds of the block to `stage`; a profiler of torch that runs sees it as `firebrick: stage`."""
        start = time.perf_counter()
        watched = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
        try:
            with torch.profiler.record_function(f"firebrick: {stage}") if watched else nullcontext():
                yield
        finally:
            end = time.perf_counter()
            with self._lock:
                self.seconds[stage] += end - start
                self.spans.append((stage, start, end))

    def _is_new(self, key: str) -> bool:
        with self._lock:
            is_new = key not in self._warned
            self._warned.add(key)
        return is_new

    def warn_once(self, key: str, text: str, *, stacklevel: int = 3) -> None:
        """Warn with `FirebrickWarning`, once a process for each `key`."""
        if self._is_new(key):
            warnings.warn(text, FirebrickWarning, stacklevel=stacklevel)

    def note_once(self, key: str, text: str) -> None:
        """Log one line, once a process for each `key`: for what is as documented and needs no warning."""
        if self._is_new(key):
            logger.warning("%s", text)

    def wants(self, config: Config, level: str) -> bool:
        """Whether anyone wants the text of a level."""
        return level in config.debug or config.dump is not None

    def show(self, config: Config, level: str, name: str, text: str) -> None:
        """Print `text` if `FIREBRICK_DEBUG` names `level`; write it below `FIREBRICK_DUMP` if set."""
        if level in config.debug:
            logger.warning("%s", text)
        if config.dump is not None:
            config.dump.mkdir(parents=True, exist_ok=True)
            (config.dump / f"{name}.{level}.txt").write_text(text + "\n")

    def stats(self) -> dict[str, Any]:
        """Return a plain copy: counters, reasons by kind, seconds by stage."""
        with self._lock:
            return {
                "counts": dict(self.counts),
                "reasons": {kind: dict(texts) for kind, texts in self.reasons.items()},
                "seconds": dict(self.seconds),
            }


recorder = Recorder()
listening = recorder.listening
