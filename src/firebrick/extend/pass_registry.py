"""Which passes are on, and in which order they run.

A pass comes from one of three places: registered for the process (`register`), switched by a context manager
(`passes_enabled`, `passes_disabled`), or given to one compile (`passes=`). `active` puts them together.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from graphlib import CycleError, TopologicalSorter

from firebrick.code_digest import content_digest
from firebrick.config import Config
from firebrick.errors import PassError
from firebrick.extend.pass_base import LEVELS, Level, Pass


class PassRegistry:
    """The passes that a process knows by name, each on or off."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passes: dict[str, Pass] = {}
        self._on: dict[str, bool] = {}
        self._switched: ContextVar[dict[str, bool]] = ContextVar("firebrick_passes", default={})  # noqa: B039

    def register(self, step: Pass, *, enabled: bool = True) -> Pass:
        """Make a pass known under its name; `enabled` runs it in every later compile of this process.

        Raises:
            PassError: it has no name or level, or another pass has the name.
        """
        _check(step)
        with self._lock:
            registered = self._passes.get(step.name)
            if registered is not None and registered is not step:
                raise PassError(f"a pass named {step.name!r} is registered", fix="unregister it first, or rename yours")
            self._passes[step.name], self._on[step.name] = step, enabled
        return step

    def unregister(self, name: str) -> None:
        """Forget a pass; unknown names are ignored."""
        with self._lock:
            self._passes.pop(name, None)
            self._on.pop(name, None)

    def enable(self, *names: str) -> None:
        """Run these passes in later compiles.

        Raises:
            PassError: no pass has the name.
        """
        self._switch(names, on=True)

    def disable(self, *names: str) -> None:
        """Leave these passes out of later compiles.

        Raises:
            PassError: no pass has the name.
        """
        self._switch(names, on=False)

    @contextmanager
    def enabled(self, *names: str) -> Iterator[None]:
        """Run these passes in compiles of this block and thread."""
        with self._scoped(names, on=True):
            yield

    @contextmanager
    def disabled(self, *names: str) -> Iterator[None]:
        """Leave these passes out of compiles of this block and thread, passes given to one compile too."""
        with self._scoped(names, on=False):
            yield

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Forget, when the block ends, what it registered and switched."""
        with self._lock:
            passes, on = dict(self._passes), dict(self._on)
        try:
            yield
        finally:
            with self._lock:
                self._passes, self._on = passes, on

    def names(self) -> dict[str, bool]:
        """Every registered pass's name and whether it is on here and now."""
        with self._lock:
            return {**self._on, **{k: v for k, v in self._switched.get().items() if k in self._on}}

    def get(self, name: str) -> Pass:
        """The pass of this name.

        Raises:
            PassError: no pass has the name.
        """
        with self._lock:
            if name not in self._passes:
                names = ", ".join(sorted(self._passes)) or "none"
                raise PassError(f"no pass is named {name!r}", fix=f"registered passes: {names}")
            return self._passes[name]

    def active(self, level: Level, extra: Sequence[Pass] = (), config: Config | None = None) -> tuple[Pass, ...]:
        """The passes of one level for one compile, in order: registered ones that are on, and `extra`.

        One of `extra` takes the place of a registered pass of the same name.

        Raises:
            PassError: the passes' constraints contradict each other, or two of `extra` share a name.
        """
        off = config.disable_passes if config is not None else frozenset()
        switched = self._switched.get()
        with self._lock:
            registered = [step for name, step in self._passes.items() if switched.get(name, self._on[name])]
        chosen = {step.name: step for step in registered if step.level == level and step.name not in off}
        names: set[str] = set()
        for step in extra:
            _check(step)
            if step.name in names and chosen.get(step.name, step) is not step:
                raise PassError(f"two passes are named {step.name!r}")
            names.add(step.name)
            if step.level == level and step.name not in off and switched.get(step.name) is not False:
                chosen[step.name] = step
        return order(chosen.values())

    def _switch(self, names: Iterable[str], *, on: bool) -> None:
        for name in names:
            self.get(name)
            with self._lock:
                self._on[name] = on

    @contextmanager
    def _scoped(self, names: Iterable[str], *, on: bool) -> Iterator[None]:
        token = self._switched.set({**self._switched.get(), **dict.fromkeys(names, on)})
        try:
            yield
        finally:
            self._switched.reset(token)


def _check(step: Pass) -> None:
    if not isinstance(step, Pass):
        raise PassError(f"{step!r} is not a Pass", fix="derive from firebrick.extend.Pass or use graph_pass")
    if not step.name or step.level not in LEVELS:
        raise PassError(f"{step!r} needs a name and one of the levels {', '.join(LEVELS)}")


def order(passes: Iterable[Pass]) -> tuple[Pass, ...]:
    """Sort by the `before` and `after` constraints; passes without one keep their order.

    Raises:
        PassError: the constraints contradict each other; the message names the passes of the cycle.
    """
    by_name = {step.name: step for step in passes}
    rank = {name: i for i, name in enumerate(by_name)}
    predecessors: dict[str, set[str]] = {name: set() for name in by_name}
    for name, step in by_name.items():
        predecessors[name].update(other for other in step.after if other in by_name)
        for other in step.before:
            if other in by_name:
                predecessors[other].add(name)
    sorter: TopologicalSorter[str] = TopologicalSorter(predecessors)
    try:
        sorter.prepare()
    except CycleError as error:
        raise PassError(f"passes must each run before the other: {' -> '.join(error.args[1])}") from None
    ordered: list[Pass] = []
    ready: list[str] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=rank.__getitem__)
        name = ready.pop(0)
        ordered.append(by_name[name])
        sorter.done(name)
    return tuple(ordered)


def fingerprint(passes: Iterable[Pass]) -> str | None:
    """Content hash of passes for the cache key; None when one of them forbids caching."""
    parts: list[str] = []
    for step in passes:
        if not step.cacheable:
            return None
        parts.append(f"{step.name}:{step.version}:{_digest(step)}")
    return content_digest(parts) if parts else ""


def _digest(step: Pass) -> str:
    """The pass's content hash; computed once for passes that say that they never change."""
    if not step.fixed:
        return content_digest(step)
    return str(vars(step).get("_digest") or vars(step).setdefault("_digest", content_digest(step)))


registry = PassRegistry()
"""The registry of this process."""
