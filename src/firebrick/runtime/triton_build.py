"""Cubins for an artifact's Triton units, made in worker processes that outlive a build for a minute.

A cubin is kept as a line of JSON (the launch's threads, bytes of shared memory, whether it starts while the kernel
before it still runs, whether its last buffer is for descriptors) and the machine code. Equal units are compiled once a
process, and once a disk cache.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from firebrick.artifact import Unit
from firebrick.errors import CompileError

_WORKER = Path(__file__).with_name("triton_worker.py")
_lock = threading.Lock()
_idle: list[tuple[subprocess.Popen[str], float]] = []  # and since when: after a minute they end
_built: dict[str, bytes] = {}


def triton_version() -> str:
    """The version of Triton that is installed, without importing it; empty if there is none."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return ""
    for line in Path(spec.origin).read_text().splitlines():
        if line.startswith("__version__"):
            return line.partition("=")[2].strip(" '\"")
    return "unknown"


def build_cubins(units: Sequence[Unit], folder: Path, workers: int, timeout: float) -> dict[str, bytes]:
    """The code of each unit by its name.

    Raises:
        CompileError: there is no Triton, or it refused a kernel, or took longer than `timeout` seconds for one.
    """
    version = triton_version()
    if not version:
        raise CompileError("kernels for GPUs need Triton", fix="pip install triton")
    keys = {unit.name: unit.key(version) for unit in units}
    missing = {keys[unit.name]: unit for unit in units if keys[unit.name] not in _built}
    if missing:
        with _lock:
            _Build(missing, folder, workers, timeout).run()
    return {name: _built[key] for name, key in keys.items()}


def open_cubin(code: bytes) -> tuple[dict[str, Any], bytes]:
    """What a launch needs, and the machine code."""
    head, _, cubin = code.partition(b"\n")
    return json.loads(head), cubin


class _Build:
    def __init__(self, units: dict[str, Unit], folder: Path, workers: int, timeout: float) -> None:
        self.units, self.folder, self.timeout = units, folder, timeout
        _idle[:] = [each for each in _idle if each[0].poll() is None and time.monotonic() < each[1] + 40]
        self.workers = [_idle.pop()[0] if _idle else _start() for _ in range(min(workers, len(units)))]
        self.free = [*self.workers]

    def run(self) -> None:
        """Compile all, each worker one at a time; a failure ends them."""
        whole = False
        with ThreadPoolExecutor(len(self.workers)) as pool:
            try:
                _built.update(pool.map(self._compiled, self.units.items()))
                whole = True
            finally:
                for worker in self.workers:
                    _idle.append((worker, time.monotonic())) if whole else worker.kill()

    def _compiled(self, item: tuple[str, Unit]) -> tuple[str, bytes]:
        """The key of a unit and its code."""
        (key, unit), worker, ready = item, self.free.pop(), select.poll()
        arch, warps, name, signature, *rest = unit.flags
        path = self.folder / f"{unit.name}.py"
        path.write_text(unit.text)
        request = {
            "path": str(path), "name": name, "signature": dict(item.split(":") for item in signature.split(",")),
            "warps": int(warps), "arch": int(arch), "debug": "asserts" in rest,
            "maps": "maps" in rest,
        }  # fmt: skip
        with contextlib.suppress(OSError):  # one that has ended answers nothing
            worker.stdin.write(json.dumps(request) + "\n")  # type: ignore[union-attr]
            worker.stdin.flush()  # type: ignore[union-attr]
        ready.register(worker.stdout, select.POLLIN)  # type: ignore[arg-type]
        if not ready.poll(1000 * self.timeout):
            raise CompileError(f"Triton took more than {self.timeout} s for {unit.kernels[0]}")
        line = worker.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise CompileError(f"the process that compiles kernels ended with status {worker.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise CompileError(f"Triton refused {unit.kernels[0]}: {answer['error']}")
        self.free.append(worker)
        head = {"threads": answer["threads"], "shared": answer["shared"], "name": name}
        head |= {flag: flag in rest for flag in ("dependent", "maps")}
        return key, json.dumps(head).encode() + b"\n" + base64.b64decode(answer["cubin"])


def _start() -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, str(_WORKER)], text=True, env=env, start_new_session=True, **pipes)


@atexit.register
def _stop() -> None:
    for worker, _ in _idle:
        with contextlib.suppress(OSError):
            worker.stdin.close()  # type: ignore[union-attr]
