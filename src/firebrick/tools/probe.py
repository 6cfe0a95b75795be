"""Whether a small program compiles to the same results: what a minified script calls, and a process that runs many."""

from __future__ import annotations

import importlib
import json
import os
import re
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass
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
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self, script: Path) -> Problem | None:
        """What is wrong with a script; None when nothing is."""
        if self.process is None or self.process.poll() is not None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{script}\n".encode())
        self.process.stdin.flush()
        line = self._line(self.seconds)
        if isinstance(line, Problem):
            return line
        answer = json.loads(line)
        return Problem(**answer) if answer else None

    def _line(self, seconds: float) -> bytes | Problem:
        """The next line that the process writes, or why there is none."""
        process, line, end = self.process, b"", time.monotonic() + seconds
        assert process is not None
        assert process.stdout is not None
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self.close()
                return Problem("hangs", f"no result after {seconds:g} s")
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                code = process.wait()
                name = signal.Signals(-code).name if code < 0 else f"status {code}"
                return Problem("dies", f"the process ended with {name}")
            line += chunk
        return line

    def _start(self) -> None:
        paths = [path or os.getcwd() for path in sys.path]
        code = f"import sys; sys.path[:] = {paths!r}; from firebrick.tools.probe import main; main()"
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started = self._line(_START)
        if isinstance(started, Problem):
            raise InternalError(f"a process that tries programs does not start: {started.text}")

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
        self.process = None


def main() -> None:
    """Answer each path on stdin with a line of JSON."""
    out = sys.stdout
    print("ready", flush=True)
    for line in sys.stdin:
        with redirect_stdout(sys.stderr):
            problem = runpy.run_path(line.rstrip("\n"))["problem"]()
        out.write(json.dumps(asdict(problem) if problem else None) + "\n")
        out.flush()
