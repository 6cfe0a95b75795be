"""Measures the forms of matmuls on a GPU under `max-autotune`, with what reads their results.

All forms of a graph are compiled at once; each is timed as a CUDA graph of many calls, by weights that take turns: in a
model they come from memory. A form that gives other results than the library's is left out."""

from __future__ import annotations

import gc
import itertools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from firebrick.artifact import Artifact
from firebrick.errors import FirebrickError, LoweringError
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.passes.tuning import choice_of, chosen
from firebrick.report import recorder
from firebrick.runtime.build import workers
from firebrick.runtime.triton_build import build_cubins, triton_version

_SUBJECTS, _MEASURING = 3, 30.0
"""Subjects for each process, a minute's work, and seconds of measuring: what is left over is as by default."""
_IN_TURN, _CALLS, _ROUNDS = 96 << 20, (16, 40), 20
"""Bytes of weights that take turns, twice the largest level 2 cache of today's cards, calls in a graph, its replays."""
_stream = lru_cache(torch.cuda.Stream)  # one of all measuring on a device: ATen keeps 32 MiB for the matmuls of each
_ULPS, _EPS = 8.0, {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
"""Units in the last place of the largest result by which results may differ, and a unit: sums are in another order."""


class StepSearch:
    """Chooses for one compile. tuner: keeps choices. generate: makes the artifact of a schedule."""

    def __init__(self, tuner: Any, generate: Callable[..., Artifact], targets: Any, config: Any) -> None:
        self.tuner, self.generate, self.targets, self.config = tuner, generate, targets, config

    def __call__(self, subjects: Sequence[Any]) -> list[str]:
        """The form of each that is fastest here."""
        with recorder.timed("tuning"):
            keys = [{"part": s.text, "forms": " ".join(s.forms), "how": f"triton {triton_version()}"} for s in subjects]
            first = {tuple(k.values()): (k, s) for k, s in zip(keys, subjects, strict=True) if len(s.forms) > 1}
            missing = [(k, s) for k, s in first.values() if self._choice(k) is None]
            built, end = self._built([s for _, s in missing]), time.monotonic() + _MEASURING
            for (key, subject), forms in zip(missing, built, strict=False):
                self._choice(key, subject, forms, end)
            if missing:  # programs and graphs hold memory until they are collected
                gc.collect()
                torch.cuda.empty_cache()
        choices = [self._choice(k) or {"form": next(iter(s.forms))} for k, s in zip(keys, subjects, strict=True)]
        for s, choice in zip(subjects, choices, strict=True):
            times = ", ".join(f"{form} {1e6 * t:.1f} us" for form, t in choice.get("seconds", {}).items())
            recorder.reason("tuned", f"{s.short}: {choice['form']} ({times or 'not measured'})")
        return [choice["form"] for choice in choices]

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

    def _built(self, subjects: Sequence[Any]) -> list[dict[str, Artifact]]:
        """The artifacts of all forms of subjects, of as many as there is time for; none if Triton refuses a kernel."""
        many, number, every = workers(self.config), itertools.count(), list[dict[str, Artifact]]()
        for s in subjects[: _SUBJECTS * many]:
            by_form = {form: self.generate(s.program(form), self.targets, self.config) for form in s.forms}
            named = {f: tuple([replace(u, name=f"u{next(number)}") for u in a.units]) for f, a in by_form.items()}
            every.append({f: replace(a, units=named[f]) for f, a in by_form.items()})
        units = [u for forms in every for a in forms.values() for u in a.units]
        with tempfile.TemporaryDirectory(prefix="firebrick-build-") as folder:
            try:
                code = build_cubins(units, Path(folder), many, self.config.build_timeout)
            except FirebrickError as error:
                recorder.reason("not tuned", str(error))
                return []
        return [{f: a.with_code({u.name: code[u.name] for u in a.units}) for f, a in forms.items()} for forms in every]


def _seconds(load: Callable[..., Any], subject: Any, forms: dict[str, Artifact], end: float) -> dict[str, float]:
    """Seconds of a call of each form whose results are the library's up to the order of sums, unless it is too late."""
    table, depth, dtype = forms["library"].table, subject.mm.depth, subject.mm.dtype
    rows = dict(zip([*table["inputs"], *table["consts"]], table["slots"], strict=False))
    far = max(_ULPS, depth**0.5 if dtype == "f32" else 0) * _EPS[dtype]
    runs, right = dict[str, list[Any]](), list[torch.Tensor]()

    def tensors(names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Numbers such that results are about 1; the user's random numbers go on as without them."""
        out = dict[str, torch.Tensor]()
        for name in names:
            _, kind, shape, strides, _, device, *_ = rows[name]
            t = out[name] = torch.empty_strided(shape, strides, dtype=DTYPES[kind].torch, device=device)
            own = torch.Generator(device).manual_seed(0)
            t.normal_(0, depth**-0.25, generator=own) if t.is_floating_point() else t.zero_()
        return out

    inputs, weights = [*tensors(table["inputs"]).values()], [tensors(table["consts"])]
    nbytes = sum(w.nbytes for w in weights[0].values())
    weights += [tensors(table["consts"]) for _ in range(min(_CALLS[1] - 1, _IN_TURN // nbytes) if nbytes else 0)]
    for form, artifact in forms.items() if time.monotonic() < end else ():
        try:
            programs = [load(artifact, w) for w in weights]
            outputs = [t.float() for t in programs[0](*inputs)]
            right = right or outputs
            if not all((a - b).abs().max() <= far * b.abs().max() for a, b in zip(outputs, right, strict=True)):
                raise LoweringError("it is not what the library gives")
            runs[form] = programs
        except (RuntimeError, FirebrickError) as error:  # also too little memory, say
            recorder.reason("not tuned", f"{subject.short}: {form} ({error})")
    return seconds_of(runs, inputs) if "library" in runs else {}


def seconds_of(runs: Mapping[str, Sequence[Any]], inputs: Sequence[torch.Tensor]) -> dict[str, float]:
    """Seconds of a call of each program: the least of some rounds, as what else the card does only adds to it."""
    times = dict[str, float]()
    torch.cuda.synchronize(inputs[0].device)
    with torch.cuda.stream(_stream(inputs[0].device)):
        for form, every in runs.items():
            graph, calls = torch.cuda.CUDAGraph(), [*every] * -(-_CALLS[0] // len(every))
            for run in every:
                run(*inputs)
            torch.cuda.synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for run in calls:
                    run(*inputs)
            finally:
                graph.capture_end()
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(_ROUNDS)]
            for mark in marks:
                graph.replay()
                mark.record()
            torch.cuda.synchronize()
            times[form] = min(a.elapsed_time(b) for a, b in itertools.pairwise(marks)) * 1e-3 / len(calls)
    return times
