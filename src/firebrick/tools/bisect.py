"""`firebrick bisect`: which stage, graph, pass, kernel, guard or frame makes a script differ from plain Python.

The script runs as it is, again and again: without Firebrick, with less and less of it, and once with each graph beside
eager (`firebrick.tools.trial`, where the graph that differs is examined).
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from firebrick.config import variable_of
from firebrick.errors import ConfigError

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf")
_NODE = re.compile(r"grad_fn=<\w+>")
_PRINTED, _KEPT = 1e-3, 2e-2
"""Relative differences of printed numbers, and of variables after a run, that are rounding."""
_MOST_DEATHS = 12
_CRASH = ("the process dies", "hangs")


@dataclass(slots=True)
class Run:
    """What came of one run. rows: its journal; error: "" where it ended by itself and well."""

    name: str
    error: str
    printed: str
    rows: list[dict[str, Any]]

    def last(self, key: str) -> Any:
        """The last value in the journal under a name."""
        return next((row[key] for row in reversed(self.rows) if key in row), None)

    def differs(self, other: Run) -> str:
        """What is other than in another run; "" for nothing."""
        if self.error != other.error:
            return self.error or f"ends well, where plain Python ends with {other.error}"
        lines = zip(self.printed.splitlines(), other.printed.splitlines(), strict=False)
        wrong = next((f"prints {a!r} instead of {b!r}" for a, b in lines if not _alike(a, b)), "")
        if wrong or len(self.printed.splitlines()) != len(other.printed.splitlines()):
            return wrong or "prints another number of lines"
        ours, theirs = (run.last("variables") or {} for run in (self, other))
        return next((f"variable {n} differs" for n in theirs if not _same(ours.get(n), theirs[n])), "")


def _alike(a: str, b: str) -> bool:
    """Whether two lines are the same but for rounding of their numbers."""
    a, b = (_NODE.sub("grad_fn", line) for line in (a, b))
    if _NUMBER.sub("#", a).split() != _NUMBER.sub("#", b).split():
        return False
    return _near([float(n) for n in _NUMBER.findall(a)], [float(n) for n in _NUMBER.findall(b)], _PRINTED)


def _near(ours: list[float], theirs: list[float], limit: float) -> bool:
    scale = max((abs(n) for n in theirs if abs(n) < float("inf")), default=0.0)
    return len(ours) == len(theirs) and all(
        a == b or abs(a - b) <= limit * scale or (a != a and b != b) for a, b in zip(ours, theirs, strict=True)
    )


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, list) and isinstance(ours, list):
        return bool(ours[:2] == theirs[:2]) and _near(ours[2], theirs[2], _KEPT)
    if type(theirs) is float and type(ours) is float:
        return _near([ours], [theirs], _KEPT)
    return bool(ours == theirs)


@dataclass(slots=True)
class Culprit:
    """What makes a script differ.

    stage: capture, guards, trace, pass, equal layers, fusion, vector code, lowering or kernel, cache... text: how it
    shows. details: graph, place, pass, ops, kernel, guard, frame, as far as they are known.
    """

    stage: str
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        return asdict(self)

    def __str__(self) -> str:
        rows = {"stage": self.stage, **self.details, "shows": self.text}
        texts = {n: " ".join(map(str, v)) if isinstance(v, list) else str(v) for n, v in rows.items()}
        return "\n".join(f"{name + ':':<12} {text}" for name, text in texts.items() if text)


class Bisection:
    """Runs a script with parts of Firebrick switched off.

    Args:
        args: what the script is called with.
        seconds: no further run is begun after that time. timeout: a run that takes longer hangs.
        on_run: told the name of each run and of what it tries.
    """

    def __init__(
        self,
        script: Path,
        args: Sequence[str] = (),
        *,
        seconds: float = 600.0,
        timeout: float = 300.0,
        on_run: Callable[[str], None] = print,
    ) -> None:
        if not script.is_file():
            raise ConfigError(f"there is no script {script}", fix="name a Python file; what follows is passed to it")
        self.script, self.args, self.on_run = script, list(args), on_run
        self.end, self.limit = time.monotonic() + seconds, timeout
        self.offer = "firebrick" not in script.read_text(encoding="utf-8", errors="replace")
        self.done: list[str] = []

    def run(
        self,
        name: str,
        settings: dict[str, str] | None = None,
        *,
        examine: bool = False,
        at: Any = None,
        dead: Sequence[str] = (),
    ) -> Run:
        """Run the script with settings, by their names in the environment.

        Raises:
            ConfigError: the time is over.
        """
        if time.monotonic() > self.end:
            raise ConfigError("the time is over", fix="give more by --seconds")
        self.on_run(name)
        self.done.append(name)
        with TemporaryDirectory(prefix="firebrick-bisect-") as folder:
            journal = Path(folder, "journal")
            wish = {"journal": str(journal), "offer": self.offer, "examine": examine, "at": at, "dead": list(dead)}
            command = [sys.executable, "-m", "firebrick.tools.trial", json.dumps(wish), str(self.script), *self.args]
            changes = [f"{variable_of(name)}={value}" for name, value in (settings or {}).items()]
            printed, error = self._wait(["env", "PYTHONHASHSEED=0", *changes, *command])
            rows = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
        run = Run(name, error, printed, rows)
        run.error = error or run.last("end") or ""
        return run

    def _wait(self, command: list[str]) -> tuple[str, str]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            printed, errors = process.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            return "", f"hangs: no end after {self.limit:.0f} s"
        finally:
            process.kill()
            process.wait()
        if process.returncode < 0:
            return printed, f"the process dies with {signal.Signals(-process.returncode).name}"
        last = (errors.strip().splitlines() or [""])[-1]
        return printed, f"the process ends with status {process.returncode}: {last}" if process.returncode else ""

    def find(self) -> Culprit | None:
        """What is at fault; None where the script does what it does in plain Python."""
        start = time.monotonic()
        culprit = self._find()
        if culprit is not None:
            culprit.runs, culprit.seconds = self.done, round(time.monotonic() - start, 1)
        return culprit

    def _find(self) -> Culprit | None:
        culprit = self._in_a_graph()
        if culprit is not None:
            return culprit
        plain = self.run("plain Python", {"stages": "none"})
        if plain.error.startswith(_CRASH):
            raise ConfigError(f"{self.script}: {plain.error} in plain Python", fix="make it run there first")
        whole = self.run("compiled")
        text = whole.differs(plain)
        if not text:
            return None
        if whole.last("refused"):
            return Culprit("capture", text, {"place": whole.last("where")})
        bare = self.run("captured, on eager kernels", {"stages": "capture"}).differs(plain)
        return self._in_capture(plain, bare) if bare else self._by_settings(plain, text)

    # ------------------------------------------------------------ graphs

    def _in_a_graph(self) -> Culprit | None:
        """Examine the first graph that differs from eager; what kills the process is left out the next time."""
        at, dead = None, list[str]()
        checks = {"check": "accuracy", "strict": "1"}
        checked = self.run("each graph beside eager", checks, examine=True)
        for _ in range(_MOST_DEATHS):
            culprit = checked.last("culprit")
            if culprit is None and not checked.error.startswith(_CRASH):
                return None
            tries = [row["trying"] for row in checked.rows if "trying" in row]
            ended = {row["tried"] for row in checked.rows if "tried" in row}
            if not checked.error.startswith(_CRASH):
                break
            if tries and tries[-1] not in ended:
                dead.append(tries[-1])
            if at is None:
                steps = [row for row in checked.rows if "step" in row]
                if not steps:
                    return None
                at = [steps[-1]["graph"], steps[-1]["steps"]]
            self.on_run(f"it {checked.error}; what did so is left out")
            checked = self.run("the graph that ended it", checks, examine=True, at=at, dead=dead)
        if culprit is None:
            return None
        if dead and not culprit["text"]:
            culprit["text"] = "the process dies"
        return Culprit(culprit.pop("stage"), culprit.pop("text"), culprit)

    def _by_settings(self, plain: Run, text: str) -> Culprit:
        """Every graph is right alone: switch off what is left for the whole script."""
        rows: list[tuple[str, dict[str, str]]] = [
            ("cache", {"cache": "0"}), ("guards of sizes", {"dynamic": "0"}), ("CUDA graphs", {"graphs": "0"}),
            ("fusion", {"fuse": "0"}), ("vector code", {"simd": "scalar"}), ("trace", {"stages": "trace"}),
        ]  # fmt: skip
        for stage, settings in rows:
            right = not self.run(f"without {stage}", settings).differs(plain)
            if right != (stage == "trace"):
                return Culprit(stage, text, {"right with": ", ".join(f"{n}={v}" for n, v in settings.items())})
        return Culprit("lowering or kernel", text)

    # ------------------------------------------------------------ capture

    def _in_capture(self, plain: Run, text: str) -> Culprit:
        """Captured graphs on eager kernels differ: a guard, or the capture of a frame."""
        anew = self.run("captured at each call", {"stages": "capture", "check": "guards"})
        if not anew.differs(plain):
            weak = list((anew.last("reasons") or {}).get("guards too weak", ()))
            return Culprit("guards", text, {"guard": weak[0] if weak else ""})
        if not self.run("without sizes as symbols", {"stages": "capture", "dynamic": "0"}).differs(plain):
            return Culprit("guards of sizes", text, {"right with": "dynamic=0"})
        skipped, frames = list[str](), dict[str, str]()
        while True:
            settings = {"stages": "capture", "skip_frames": ",".join(skipped), "debug": "capture"}
            seen = self.run(f"without {len(skipped)} frames", settings)
            frames |= {row["at"]: row["frame"] for row in seen.rows if "frame" in row}
            if skipped and not seen.differs(plain):
                break
            more = [place for place in frames if place not in skipped]
            if not more:
                return Culprit("capture", text, {"frame": "unknown"})
            skipped += more

        def is_wrong(count: int) -> bool:
            settings = {"stages": "capture", "skip_frames": ",".join(skipped[count:])}
            return bool(self.run(f"with {count} of {len(skipped)} frames", settings).differs(plain))

        place = skipped[bisect_left(range(1, len(skipped)), True, key=is_wrong)]
        return Culprit("capture", text, {"frame": frames[place], "place": place})
