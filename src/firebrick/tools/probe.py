"""Whether a small program compiles to the same results: what a minified script calls, and a process that runs many."""

from __future__ import annotations

import importlib
import re
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

import firebrick
from firebrick.errors import InternalError
from firebrick.extend.verify import Difference, compare, copies_of, tolerance_of

_START = 120.0
"""Seconds in which the process must have imported what it needs."""
_LOOSE = 50
"""A wrong result is off by this many times what rounding in another order may bring."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong. kind: raises, differs, accepts (what eager refuses), dies (its process is killed) or hangs."""

    kind: str
    text: str

    def is_like(self, other: Problem | None) -> bool:
        """Whether both are the same trouble: the same exception, apart from names and numbers in its text."""
        if other is None or self.kind != other.kind:
            return False
        return self.kind not in ("raises", "accepts") or _pattern(self.text) == _pattern(other.text)

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def _pattern(text: str) -> str:
    return re.sub(r"[\w.%]*\d[\w.%]*", "#", text.partition("\n")[0])


def find_backend(name: str) -> str | Callable[..., Any]:
    """The backend of a name, or the function at `package.module:function`."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute) if attribute else name


def check(model: torch.nn.Module, args: Sequence[Any], backend: str = "firebrick") -> Problem | None:
    """Compile a module, run it beside eager, and say what is wrong. Where eager raises, the same error is right."""
    resolved = find_backend(backend)
    options = {"strict": True, "cache": False} if resolved == "firebrick" else None
    firebrick.reset()
    tolerance = max((tolerance_of(a.dtype) for a in args if isinstance(a, torch.Tensor)), default=0.0) or 2e-5
    refused: Exception | None = None
    try:
        model(*copies_of(args))
    except Exception as error:  # noqa: BLE001  what eager refuses must be refused
        refused = error
    try:
        compiled = firebrick.compile(model, backend=resolved, options=options)
        if refused is not None:
            compiled(*copies_of(args))
            return Problem("accepts", f"eager raises {_first_line(refused)}")
        result = compare(model, compiled, args, tolerance=_LOOSE * tolerance, aliasing=False)
    except Exception as error:  # noqa: BLE001  it is what the caller looks for
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if type(cause) is type(refused):
            return None
        text = _first_line(cause)
        return Problem("raises", text if refused is None else f"{text}, where eager raises {_first_line(refused)}")
    return Problem("differs", result.text) if isinstance(result, Difference) else None


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


class Prober:
    """Runs scripts that define `problem()` in another process, which may die or hang."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.seconds = seconds
        self.process: SpawnProcess | None = None
        self.pipe: Connection

    def __call__(self, script: Path) -> Problem | None:
        """What is wrong with a script; None when nothing is."""
        if self.process is None or not self.process.is_alive():
            self._start()
        self.pipe.send(str(script))
        return self._answer(self.seconds)

    def _answer(self, seconds: float) -> Problem | None:
        """What the process sends, or why it sends nothing."""
        if not self.pipe.poll(seconds):
            self.close()
            return Problem("hangs", f"no result after {seconds:g} s")
        try:
            return self.pipe.recv()  # type: ignore[no-any-return]
        except (EOFError, ConnectionError):
            assert self.process is not None
            self.process.join()
            code = self.process.exitcode or 0
            name = signal.Signals(-code).name if code < 0 else f"status {code}"
            return Problem("dies", f"the process ended with {name}")

    def _start(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        if (failure := self._answer(_START)) is not None:
            raise InternalError(f"a process that tries programs does not start: {failure.text}")

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
        self.process = None


def _serve(pipe: Connection) -> None:
    """Answer each path of a script with what is wrong with it; None at first: all is imported."""
    problem = None
    with suppress(EOFError), redirect_stdout(sys.stderr):
        while True:
            pipe.send(problem)
            problem = runpy.run_path(pipe.recv())["problem"]()
