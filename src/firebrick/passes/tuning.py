"""Choosing by measurement: every form of a part of a graph is timed here, and the fastest is remembered.

By default the target times a call of each form by itself (`Target.measured`), which takes no compile. Under
`max-autotune` every form is built and run with what follows it.

Choices lie in the disk cache under the part's text, the processor, its threads and the versions, so each is measured
once a machine, whatever models it occurs in. Within a process a choice is never made twice: equal calls give equal bits
however often they are compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch

from firebrick.artifact import Artifact
from firebrick.ir.graph.aten import AtenGraph
from firebrick.ir.graph.calls import key_of
from firebrick.passes.alone import Form, copied, short_text, subject_of, text_of
from firebrick.report import recorder

_MARGIN = 0.97
"""Share of the time of the cost model's form below which another is taken: less may be noise."""
_CACHE_BYTES = 64 << 20
"""Weights are taken in turn from copies of this size together: in a model they come from memory."""
_COPIES = 16
_SECONDS = 0.15
"""Time given to each form that is built."""
_BUDGET = 0.6
"""Seconds of its thread that one compile measures by default; what is left over is chosen by costs."""
_ROUNDS = 9, 400


class Tuner:
    """Measures the forms of parts for one compile.

    build: makes an artifact of a part. load: makes it callable, given its constants. fetch: the artifact stored under
    texts, or made and stored. ground: what every choice of this compile depends on. measured: times forms of an op
    without a build; None to build them. rest: what costs choose, since it takes so little time. kept: what
    measurements have in common.
    """

    def __init__(
        self,
        build: Callable[[AtenGraph], Artifact],
        load: Callable[[Artifact, Mapping[str, torch.Tensor]], Callable[..., Any]],
        fetch: Callable[[Mapping[str, str], Callable[[], Artifact]], Artifact],
        ground: str = "",
        measured: Callable[[str, tuple[Any, ...], Mapping[str, int]], Mapping[str, float]] | None = None,
        rest: Container[Any] = (),
        kept: object = None,
    ) -> None:
        self.build, self.load, self.fetch, self.ground, self.measured = build, load, fetch, ground, measured
        self.spent, self.rest, self.kept = 0.0, rest, kept

    def __call__(self, part: AtenGraph, forms: Mapping[str, Form], passes: Mapping[str, int]) -> str:
        """The form of a part that is fastest here; the first one unless another is clearly faster."""
        first = next(node for node in part.gm.graph.nodes if node.op == "call_function")
        subject = None if self.measured is None else subject_of(first)
        if self.measured is not None and (subject is None or key_of(*subject) in self.rest):
            return next(iter(forms))
        parts = {"part": text_of(part), "forms": " ".join(forms), "how": "built" if subject is None else "called"}
        key = (self.ground, *parts.values())
        choice = chosen.get(key)
        if choice is None:

            def make() -> Artifact:
                extra = self._built(part, forms) if subject is None else self._called(part, passes, *subject)
                return Artifact("choice", {}, extra=extra)

            with recorder.timed("tuning"):
                try:
                    choice = dict(self.fetch(parts, make).extra)
                except _Undecided:
                    choice = {"form": next(iter(forms))}
            choice = chosen.setdefault(key, choice)
        if "seconds" in choice:
            times = ", ".join(f"{form} {1e3 * t:.3g} ms" for form, t in choice["seconds"].items())
            recorder.reason("tuned", f"{choice['part']}: {choice['form']} ({times})")
        return str(choice["form"])

    def _called(self, part: AtenGraph, passes: Mapping[str, int], op: str, args: tuple[Any, ...]) -> dict[str, Any]:
        """The choice by the target's times of calls of each form."""
        start = time.thread_time()  # without waiting for kernels that a thread builds
        if self.spent > _BUDGET:
            raise _Undecided
        assert self.measured is not None
        seconds = self.measured(op, args, {form: n - min(passes.values()) for form, n in passes.items()})
        self.spent += time.thread_time() - start
        if not seconds:
            raise _Undecided
        return choice_of(short_text(part), {form: seconds[form] for form in passes if form in seconds})

    def _built(self, part: AtenGraph, forms: Mapping[str, Form]) -> dict[str, Any]:
        """The choice, with the seconds of a call of each form; forms with the same code are measured once."""
        inputs = [_random(node.meta["val"]) for node in part.gm.graph.nodes if node.op == "placeholder"]
        size = sum(val.numel() * val.element_size() for val in part.constants.values())
        copies = min(_COPIES, 1 + _CACHE_BYTES // max(size, 1))
        constants = [{name: _random(val) for name, val in part.constants.items()} for _ in range(copies)]
        runs: dict[str, list[Callable[..., Any]]] = {}
        seen: list[Any] = []
        for form, rewrite in forms.items():
            try:
                code, programs = self._run(part, rewrite, constants)
            except Exception as error:  # a form is only a try; without the first one the graph can't be compiled
                if not runs:
                    raise
                recorder.reason("not tuned", f"{short_text(part)}: {form} ({type(error).__name__}: {error})")
                continue
            if code not in seen:
                seen.append(code)
                runs[form] = programs
        return choice_of(short_text(part), _seconds(runs, inputs))

    def _run(self, part: AtenGraph, rewrite: Form, constants: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """What a form's program consists of, and the program for each set of constants."""
        artifact = self.build(rewrite(copied(part)))
        code = (artifact.table["recipe"], artifact.table["steps"], [unit.text for unit in artifact.units])
        return code, [self.load(artifact, values) for values in constants]


class _Undecided(Exception):
    """Nothing was measured: costs decide."""


chosen: dict[tuple[str, ...], dict[str, Any]] = {}
"""What this process has chosen."""


def choice_of(part: str, seconds: Mapping[str, float]) -> dict[str, Any]:
    """The fastest form of a part; the first one unless another is clearly faster."""
    first, best = next(iter(seconds)), min(seconds, key=seconds.__getitem__)
    form = best if seconds[best] < _MARGIN * seconds[first] else first
    return {"form": form, "seconds": dict(seconds), "part": part}


def _seconds(runs: Mapping[str, Sequence[Callable[..., Any]]], inputs: Sequence[torch.Tensor]) -> dict[str, float]:
    """Seconds of a call, taken by turns: the first quartile, since what else the machine does only adds to it."""
    times: dict[str, list[float]] = {form: [] for form in runs}
    for every in runs.values():  # constants are packed at the first call
        for run in every:
            run(*inputs)
    end = time.perf_counter() + _SECONDS * len(runs)
    for turn in range(_ROUNDS[1]):
        for form, every in runs.items():
            run = every[turn % len(every)]
            start = time.perf_counter()
            run(*inputs)
            times[form].append(time.perf_counter() - start)
        if turn >= _ROUNDS[0] and time.perf_counter() > end:
            break
    return {form: sorted(seconds)[len(seconds) // 4] for form, seconds in times.items()}


def _random(like: torch.Tensor) -> torch.Tensor:
    tensor = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    return tensor.normal_(generator=torch.Generator().manual_seed(0)) if like.is_floating_point() else tensor.zero_()
