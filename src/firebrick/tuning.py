"""Choosing by measurement: every form of a part of a graph is built and run here, and the fastest is remembered.

Choices lie in the disk cache under the part's text, the target and the versions, so each is measured once a machine,
whatever models it occurs in.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule

from firebrick.artifact import Artifact
from firebrick.extend.pass_runner import copy_graph
from firebrick.report import recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from firebrick.ir.graph.aten import AtenGraph
    from firebrick.passes.alone import Form

_MARGIN = 0.97
"""Share of the time of the cost model's form below which another is taken: less may be noise."""
_CACHE_BYTES = 64 << 20
"""Weights are taken in turn from copies of this size together: in a model they come from memory."""
_COPIES = 16
_SECONDS = 0.15
"""Time given to each form."""
_ROUNDS = 9, 400


class Tuner:
    """Measures the forms of parts for one compile.

    build: makes an artifact of a part. load: makes it callable, given its constants. fetch: the artifact stored under
    texts, or made and stored.
    """

    def __init__(
        self,
        build: Callable[[AtenGraph], Artifact],
        load: Callable[[Artifact, Mapping[str, torch.Tensor]], Callable[..., Any]],
        fetch: Callable[[Mapping[str, str], Callable[[], Artifact]], Artifact],
    ) -> None:
        self.build, self.load, self.fetch = build, load, fetch
        self.known: dict[str, str] = {}

    def __call__(self, part: AtenGraph, forms: Mapping[str, Form]) -> str:
        """The form of a part that is fastest here; the first one unless another is clearly faster."""
        text = _text(part)
        found = self.known.get(text)
        if found is None:
            parts = {"part": text, "forms": " ".join(forms)}
            with recorder.timed("tuning"):
                artifact = self.fetch(parts, lambda: Artifact("choice", {}, extra=self._measured(part, forms)))
            found = self.known[text] = artifact.extra["form"]
            times = ", ".join(f"{form} {1e3 * t:.3g} ms" for form, t in artifact.extra["seconds"].items())
            recorder.reason("tuned", f"{artifact.extra['part']}: {found} ({times})")
        return found

    def _measured(self, part: AtenGraph, forms: Mapping[str, Form]) -> dict[str, Any]:
        """The choice, with the seconds of a call of each form; forms with the same code are measured once."""
        inputs = [_random(node.meta["val"]) for node in part.gm.graph.nodes if node.op == "placeholder"]
        size = sum(val.numel() * val.element_size() for val in part.constants.values())
        copies = min(_COPIES, 1 + _CACHE_BYTES // max(size, 1))
        constants = [{name: _random(val) for name, val in part.constants.items()} for _ in range(copies)]
        runs: dict[str, list[Callable[..., Any]]] = {}
        seen: list[Any] = []
        for form, rewrite in forms.items():
            try:
                code, made = self._run(part, rewrite, constants)
            except Exception as error:  # a form is only a try; without the first one the graph can't be compiled
                if not runs:
                    raise
                recorder.reason("not tuned", f"{_short(part)}: {form} ({type(error).__name__}: {error})")
                continue
            if code not in seen:
                seen.append(code)
                runs[form] = made
        seconds = _seconds(runs, inputs)
        first = next(iter(runs))
        best = min(seconds, key=seconds.__getitem__)
        form = best if seconds[best] < _MARGIN * seconds[first] else first
        return {"form": form, "seconds": seconds, "part": _short(part)}

    def _run(self, part: AtenGraph, rewrite: Form, constants: Sequence[Mapping[str, torch.Tensor]]) -> Any:
        """What a form's program consists of, and the program for each set of constants."""
        artifact = self.build(rewrite(_copy(part)))
        code = (artifact.table["recipe"], artifact.table["steps"], [unit.text for unit in artifact.units])
        return code, [self.load(artifact, given) for given in constants]


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
    return {form: sorted(found)[len(found) // 4] for form, found in times.items()}


def _random(like: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    return made.normal_(generator=torch.Generator().manual_seed(0)) if like.is_floating_point() else made.zero_()


def _text(part: AtenGraph) -> str:
    lines = []
    for node in part.gm.graph.nodes:
        val = node.meta.get("val")
        layout = f": {val.dtype} {tuple(val.shape)} {val.stride()}" if isinstance(val, torch.Tensor) else ""
        lines.append(f"{node.op} {node.name} {node.target} {node.args} {node.kwargs}{layout}")
    return "\n".join(lines)


def _short(part: AtenGraph) -> str:
    """For people: what is computed, and the shapes that go in."""
    nodes = part.gm.graph.nodes
    calls = [str(node.target).removeprefix("aten.").partition(".")[0] for node in nodes if node.op == "call_function"]
    shapes = ["x".join(map(str, n.meta["val"].shape)) for n in nodes if n.op in ("placeholder", "get_attr")]
    return f"{' '.join(calls)} of {', '.join(shapes)}"


def _copy(part: AtenGraph) -> AtenGraph:
    gm = _LazyGraphModule(part.gm, copy_graph(part.gm.graph))
    return type(part)(gm, dict(part.constants), outputs=list(part.outputs), frozen=part.frozen, name=part.name)
