"""Measures the forms of matmuls on a GPU under `max-autotune`, with what reads their results.

All forms of a graph are compiled at once; each is timed as a CUDA graph of many calls, by weights that take turns: in a
model they come from memory. A form that gives other results than the library's is left out."""

from __future__ import annotations

import gc
import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from firebrick.artifact import Artifact
from firebrick.errors import FirebrickError, LoweringError
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.passes.tuning import choice_of, chosen
from firebrick.report import recorder
from firebrick.runtime.build import workers
from firebrick.runtime.triton_build import build_cubins, triton_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from firebrick.config import Config
    from firebrick.passes.tuning import Tuner
    from firebrick.targets.cuda.search import Subject

    Run = Callable[..., Sequence[torch.Tensor]]

_BUILDING = 60.0
"""Seconds of a compile for building forms, half of which are for measuring; what is left over is as by default."""
_IN_TURN, _CALLS, _ROUNDS = 96 << 20, (16, 40), 20
"""Bytes of weights that take turns, twice the largest level 2 cache of today's cards, calls in a graph, its replays."""
_ULPS, _EPS = 8.0, {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
"""Units in the last place of the largest result by which results may differ, and a unit: sums are in another order."""


class StepSearch:
    """Chooses for one compile. generate: makes the artifact of a schedule."""

    def __init__(self, tuner: Tuner, generate: Callable[[Any], Artifact], config: Config) -> None:
        self.tuner, self.generate, self.config = tuner, generate, config

    def __call__(self, subjects: Sequence[Subject]) -> list[str]:
        """The form of each that is fastest here."""
        with recorder.timed("tuning"):
            keys = [{"part": s.text, "forms": " ".join(s.forms), "how": f"triton {triton_version()}"} for s in subjects]
            first = {tuple(k.values()): (k, s) for k, s in zip(keys, subjects, strict=True) if len(s.forms) > 1}
            missing = [(k, s) for k, s in first.values() if self._choice(k) is None]
            built, end = self._built([s for _, s in missing]), time.monotonic() + _BUILDING / 2
            for (key, subject), forms in zip(missing, built, strict=True):
                self._choice(key, subject, forms, end)
            if missing:  # programs and graphs hold memory until they are collected
                gc.collect()
                torch.cuda.empty_cache()
        names = []
        for key, subject in zip(keys, subjects, strict=True):
            choice = self._choice(key) or {"form": next(iter(subject.forms)), "seconds": {}}
            times = ", ".join(f"{form} {1e6 * t:.1f} us" for form, t in choice["seconds"].items())
            if times:
                recorder.reason("tuned", f"{subject.short}: {choice['form']} ({times})")
            names.append(choice["form"])
        return names

    def _choice(self, key: Mapping[str, str], *measured: Any) -> dict[str, Any] | None:
        """The choice of this process or of the disk cache, or by what is `measured`; None if there is none."""

        def make() -> Artifact:
            seconds = _seconds(self.tuner.load, *measured) if measured else {}
            if len(seconds) < 2:
                raise LoweringError("nothing was measured")
            return Artifact("choice", {}, extra=choice_of("", seconds))

        whole = (self.tuner.ground, *key.values())
        try:
            return chosen.get(whole) or chosen.setdefault(whole, dict(self.tuner.fetch(key, make).extra))
        except RuntimeError as error:
            if measured:
                recorder.reason("not tuned", f"{measured[0].short} ({error})")
            return None

    def _built(self, subjects: Sequence[Subject]) -> list[dict[str, Artifact]]:
        """The artifacts of all forms of subjects, less those that were refused or not done in time."""
        every = [{form: self.generate(s.program(form)) for form in s.forms} for s in subjects]
        units = [u for forms in every for a in forms.values() for u in a.units]
        names = {key: f"u{k}" for k, key in enumerate(dict.fromkeys((u.text, u.flags) for u in units))}
        with tempfile.TemporaryDirectory(prefix="firebrick-build-") as folder:
            once = [replace(u, name=names[u.text, u.flags]) for u in units]
            code = build_cubins(once, Path(folder), workers(self.config), self.config.build_timeout, _BUILDING)
        for forms in every:
            for form, a in list(forms.items()):
                forms[form] = a.with_code({u.name: code.get(names[u.text, u.flags], b"") for u in a.units})
        return [{form: a for form, a in forms.items() if all(a.code.values())} for forms in every]


def _seconds(load: Callable[..., Run], subject: Subject, forms: dict[str, Artifact], end: float) -> dict[str, float]:
    """Seconds of a call of each form whose results are the library's up to the order of sums, unless it is too late."""
    if time.monotonic() > end or len(forms) < 2 or "library" not in forms:
        return {}
    table, depth, dtype = forms["library"].table, subject.mm.depth, subject.mm.dtype
    rows = dict(zip([*table["inputs"], *table["consts"]], table["slots"], strict=False))
    far = max(_ULPS, depth**0.5 if dtype == "f32" else 0) * _EPS[dtype]
    runs: dict[str, list[Run]] = {}
    right: list[torch.Tensor] = []

    def tensors(names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Numbers such that results are about 1; the user's random numbers go on as without them."""
        out = dict[str, torch.Tensor]()
        for name in names:
            _, dtype, shape, strides, _, device, *_ = rows[name]
            t = out[name] = torch.empty_strided(shape, strides, dtype=DTYPES[dtype].torch, device=device)
            own = torch.Generator(device).manual_seed(0)
            t.normal_(0, depth**-0.25, generator=own) if t.is_floating_point() else t.zero_()
        return out

    inputs, weights = [*tensors(table["inputs"]).values()], [tensors(table["consts"])]
    nbytes = sum(w.nbytes for w in weights[0].values())
    weights += [tensors(table["consts"]) for _ in range(min(_CALLS[1] - 1, _IN_TURN // nbytes) if nbytes else 0)]
    for form in ["library", *(f for f in forms if f != "library")]:
        try:
            programs = [load(forms[form], w) for w in weights]
            made = [t.float() for t in programs[0](*inputs)]
            right = right or made
            if not all((a - b).abs().max() <= far * b.abs().max() for a, b in zip(made, right, strict=True)):
                raise LoweringError("it is not what the library gives")
            runs[form] = programs
        except (RuntimeError, FirebrickError) as error:  # also too little memory, say
            recorder.reason("not tuned", f"{subject.short}: {form} ({error})")
    return seconds_of({form: runs[form] for form in forms if form in runs}, inputs) if "library" in runs else {}


def seconds_of(runs: Mapping[str, Sequence[Run]], inputs: Sequence[torch.Tensor]) -> dict[str, float]:
    """Seconds of a call of each program, taken by turns: the least, as what else the card does only adds to it."""
    graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]] = {}
    times = dict.fromkeys(runs, math.inf)
    torch.cuda.synchronize(inputs[0].device)
    with torch.cuda.stream(torch.cuda.Stream(inputs[0].device)):
        for form, every in runs.items():
            for run in every:
                run(*inputs)
            torch.cuda.current_stream().synchronize()
            graph, count = graphs[form] = torch.cuda.CUDAGraph(), max(_CALLS[0], len(every))
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for k in range(count):
                    every[k % len(every)](*inputs)
            finally:
                graph.capture_end()
            graph.replay()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for form, (graph, count) in list(graphs.items()) * _ROUNDS:
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[form] = min(times[form], begin.elapsed_time(end) * 1e-3 / count)
    return times
