"""Machine code for an artifact's units: finds a C++ compiler and runs it in child processes.

Nothing is forked from Python: each unit is one compiler process, started directly. Output goes to a private folder
that is removed afterwards, so a build that is killed leaves nothing that anyone reads.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from firebrick.artifact import Artifact, Unit
from firebrick.config import Config
from firebrick.errors import CompileError
from firebrick.gc_pause import BUILDER
from firebrick.report import recorder
from firebrick.runtime.triton_build import build_cubins

_FLAGS = ("-shared", "-fPIC", "-pipe", "-w")
"""What every unit is built with; the unit's own flags follow."""

_ZIG = ("-mcpu=baseline", "-nostdlib", "-fno-sanitize=all")
"""What zig needs beside them. It otherwise takes all that this CPU has, which the unit's flags decide; builds a C++
library first, which no unit uses and which takes half a minute; and makes undefined behaviour trap."""

_GCC_OFF = (
    *("exceptions", "asynchronous-unwind-tables", "rtti"),
    *("tree-bit-ccp", "tree-ccp", "tree-dominator-opts", "tree-dse", "tree-sink", "tree-slsr"),
    *("dse", "compare-elim", "cprop-registers", "if-conversion", "if-conversion2", "shrink-wrap", "thread-jumps"),
    *("ssa-phiopt", "ipa-profile", "ipa-pure-const", "ipa-reference", "tree-pta"),
)
"""What GCC needs not look for: kernels are vectors and loops already, each value is computed once, and nothing is dead.
Together that halves its time. All of these flags are older than GCC 8."""
_GCC_LEVEL = ("-O1", "-fexpensive-optimizations")
"""What -O2 adds beside takes a fifth of the time, and kernels don't gain by it."""
_GCC_LINK = ("-nostdlib",)
"""No unit uses the C++ library, whose search takes the linker longer than all else."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler. command: how it is started. name: what people know it by. flags: what it needs beside others.

    level: what it is to optimize.
    """

    command: tuple[str, ...]
    version: str
    name: str = ""
    flags: tuple[str, ...] = ()
    level: tuple[str, ...] = ("-O2",)

    def line(self, source: str, flags: Sequence[str], output: str) -> list[str]:
        """The command that builds a source."""
        # Linkers take from a library what those before it lack.
        libraries = [flag for flag in flags if flag.startswith("-l")]
        own = [flag for flag in flags if flag not in libraries]
        return [*self.command, *_FLAGS, *self.level, *own, source, *self.flags, *libraries, "-o", output]

    @property
    def path(self) -> str:
        """The command as one text."""
        return " ".join(self.command)


def find_compiler(config: Config) -> Compiler:
    """Return the compiler that `config.compiler`, $CXX or the search path names, or that the extra `cc` installed.

    Raises:
        CompileError: there is none, or the one asked for does not run.
    """
    return _find(config.compiler or os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@lru_cache(maxsize=8)
def _find(asked: str, path: str) -> Compiler:
    commands = [[place] for name in ("g++", "clang++", "c++") if (place := shutil.which(name, path=path))]
    if importlib.util.find_spec("ziglang") is not None:  # the extra `cc`
        commands.append([sys.executable, "-m", "ziglang", "c++"])
    for compiler in filter(None, map(_probe, [asked.split()] if asked else commands)):
        return compiler
    if asked:
        fix = "set FIREBRICK_COMPILER or CXX to one that does"
        raise CompileError(f"the C++ compiler {asked!r} does not run", fix=fix)
    raise CompileError("no C++ compiler was found", fix='install g++ or clang++, or run: pip install "firebrick[cc]"')


def _probe(words: Sequence[str]) -> Compiler | None:
    """Ask a compiler for its version; None when it does not run."""
    command = tuple(words)
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    is_zig = any("zig" in Path(part).name for part in command)
    name = "zig" if is_zig else Path(command[0]).name
    version = done.stdout.partition("\n")[0].strip()
    if "Free Software Foundation" in done.stdout:
        return Compiler(command, version, name, _GCC_LINK, (*_GCC_LEVEL, *(f"-fno-{name}" for name in _GCC_OFF)))
    return Compiler(command, version, name, _ZIG if is_zig else ())


def build(artifact: Artifact, config: Config) -> Artifact:
    """Return the artifact with machine code for each unit; an artifact without units needs no compiler.

    Raises:
        CompileError: no compiler, or it failed, hung, or could not write.
    """
    if artifact.is_built:
        return artifact
    cubins = [unit for unit in artifact.units if unit.builder == "triton"]
    units = [unit for unit in artifact.units if unit.builder != "triton"]
    code: dict[str, bytes] = {}
    with recorder.timed("build"):
        try:
            with tempfile.TemporaryDirectory(prefix="firebrick-build-") as folder:
                if units:
                    code.update(_Build(find_compiler(config), config, Path(folder)).run(units))
                if cubins:
                    code.update(build_cubins(cubins, Path(folder), workers(config), config.build_timeout))
        except OSError as error:
            raise CompileError(f"kernels could not be built: {error}", fix="free some space below $TMPDIR") from None
    recorder.count("units built", len(artifact.units))
    recorder.count("kernels built", sum(len(unit.kernels) for unit in artifact.units))
    return artifact.with_code(code)


def workers(config: Config) -> int:
    """How many compilers run at once."""
    return config.build_workers or min(8, len(os.sched_getaffinity(0)))


class _Build:
    """One parallel build."""

    def __init__(self, compiler: Compiler, config: Config, folder: Path) -> None:
        self.compiler, self.folder, self.timeout, self.workers = compiler, folder, config.build_timeout, workers(config)
        self.running: set[subprocess.Popen[bytes]] = set()

    def run(self, units: Sequence[Unit]) -> dict[str, bytes]:
        """Build all units, `workers` at once."""
        with ThreadPoolExecutor(self.workers, BUILDER) as pool:
            try:
                return dict(job.result() for job in as_completed([pool.submit(self._built, unit) for unit in units]))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in [*self.running]:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)  # and the processes that it started
                    process.wait()

    def _built(self, unit: Unit) -> tuple[str, bytes]:
        source, output = self.folder / f"{unit.name}.cpp", self.folder / f"{unit.name}.so"
        source.write_text(unit.text)
        places = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(self.folder))
        process = subprocess.Popen(
            self.compiler.line(str(source), unit.flags, str(output)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env={**os.environ, **places},
            start_new_session=True,
        )
        self.running.add(process)
        try:
            text = process.communicate(timeout=self.timeout)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            text = f"the C++ compiler took more than {self.timeout} s"
            raise CompileError(text, fix="raise FIREBRICK_BUILD_TIMEOUT") from None
        self.running.remove(process)
        if (status := process.returncode) != 0:
            shown = [line.replace(f"{self.folder}/", "") for line in text.strip().splitlines()[:12]]
            how = f"was ended by signal {-status}" if status < 0 else f"failed with status {status}"
            raise CompileError("\n  ".join((f"{self.compiler.path} {how} on unit {unit.name}", *shown)))
        return unit.name, output.read_bytes()
