"""One run of a script for `firebrick bisect`: `python -m firebrick.tools.trial JSON SCRIPT ARGS`.

What happens goes line by line into a journal, so that it is known how far a process came that dies. Under
`check=accuracy` the first graph that differs or raises is examined where it is, with other settings and cut to pieces.
"""

from __future__ import annotations

import json
import logging
import os
import random
import runpy
import sys
import traceback
import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx

import firebrick
from firebrick import passes, pipeline
from firebrick.api import accuracy
from firebrick.api.accuracy import Case
from firebrick.config import Config
from firebrick.errors import FirebrickError, Unsupported
from firebrick.extend import registry
from firebrick.extend.verify import ValueRecorder, copies_of
from firebrick.fakes.segments import part_of
from firebrick.ir.graph.labels import library_of, op_name, step_labels, user_place
from firebrick.report import recorder

_KEPT = 1024
"""Elements of a tensor that are compared between runs."""
_CALLS = 2
"""Calls of a graph in an examination: the second may meet what the first left."""
_SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("equal layers", {"check": frozenset({"ir"})}), ("fusion", {"fuse": False}), ("vector code", {"simd": "scalar"}),
    ("functions of its own numerics", {"numerics": "eager"}),
)  # fmt: skip
"""What may be at fault behind the passes -> the settings under which it takes no part."""


class Journal:
    """Lines of JSON in a file, written at once."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  it stays open to the end

    def __call__(self, **row: Any) -> None:
        """Add a line."""
        self._file.write(json.dumps(row, default=str) + "\n")


class Examination:
    """Why one graph differs: tries it with other settings, then shorter."""

    def __init__(self, case: Case, text: str, journal: Journal, dead: Sequence[str]) -> None:
        self.case, self.text, self.journal, self.dead = case, text, journal, dead

    def wrong(self, name: str, gm: fx.GraphModule, inputs: Sequence[Any], **changes: Any) -> str:
        """What is wrong with a graph under changed settings; "" for nothing."""
        if name in self.dead:
            return "the process dies"
        self.journal(trying=name)
        config = replace(self.case.config, **{"strict": True, "cache": False, **changes})
        text = ""
        try:
            with warnings.catch_warnings(), torch.set_grad_enabled(self.case.recording):
                warnings.simplefilter("ignore")
                arguments = accuracy.moved_copies(inputs)
                compiled = accuracy.compile_unchecked(gm, arguments, config, self.case.passes)
                checked = accuracy.Checked(compiled, replace(self.case, gm=gm))
                for _ in range(_CALLS):
                    _, finding, _ = checked.run(accuracy.moved_copies(inputs))
                    text = text or (finding.text if finding is not None else "")
        except Exception as error:  # noqa: BLE001  that is what it looks for
            text = f"raises {type(error).__name__}: {error}".partition("\n")[0]
        self.journal(tried=name, text=text)
        return text

    def run(self) -> None:
        """Name stage, pass, ops and kernel in the journal."""
        gm, inputs = self.case.gm, self.case.inputs
        culprit: dict[str, Any] = {"graph": self.case.number, "text": self.text, **_place(gm.graph.nodes)}
        text = self.wrong("as it is", gm, inputs)
        if not text:
            cached = self.wrong("from the disk cache", gm, inputs, cache=True)
            self.journal(culprit={**culprit, "stage": "cache" if cached else "several calls"})
            return
        changes: dict[str, Any] = {}
        if self.wrong("trace only", gm, inputs, stages="trace"):
            culprit["stage"], changes = "trace", {"stages": "trace"}
        elif self.wrong("trace only, as passes see it", gm, inputs, **_without(_switches())):
            culprit |= self._behind_passes()
        else:
            culprit |= {"stage": "pass", "pass": self._first_pass()}
        self.journal(culprit=culprit)  # the rest may die
        self.journal(culprit={**culprit, **self._ops(changes)})

    def _behind_passes(self) -> dict[str, str]:
        for stage, changes in _SETTINGS:
            if not self.wrong(f"without {stage}", self.case.gm, self.case.inputs, **changes):
                settings = [f"{n}={','.join(v) if isinstance(v, frozenset) else v}" for n, v in changes.items()]
                return {"stage": stage, "right with": ", ".join(settings)}
        return {"stage": "lowering or kernel"}

    def _first_pass(self) -> str:
        names = _switches()

        def is_wrong(count: int) -> bool:
            return bool(self.wrong(f"passes to {count}", self.case.gm, self.case.inputs, **_without(names[count:])))

        return names[_first(is_wrong, 1, len(names)) - 1]

    def _ops(self, changes: dict[str, Any]) -> dict[str, Any]:
        """The last op of the shortest beginning that is wrong, and those before it that it takes."""
        nodes = [n for n in self.case.gm.graph.nodes if n.op.startswith("call")]
        values = ValueRecorder(self.case.gm)
        arguments = accuracy.moved_copies(self.case.inputs)
        with torch.no_grad():
            values.run(*copies_of(arguments))

        def is_wrong(start: int, end: int) -> bool:
            if (start, end) == (0, len(nodes)):
                return True
            part, inputs = _part(self.case, nodes, start, end, values.values)
            return bool(self.wrong(f"ops {start} to {end}", part, inputs, **changes))

        end = _first(lambda k: is_wrong(0, k), 1, len(nodes))
        start = end - _first(lambda k: is_wrong(end - k, end), 1, end)
        ops = nodes[start:end]
        names = {"ops": [op_name(n) for n in ops], "nodes": [n.name for n in ops]}
        return {**names, "kernel": self._kernel(ops[-1]), **_place(reversed(ops))}

    def _kernel(self, node: fx.Node) -> str:
        """The step of the compiled graph that has an op."""
        try:
            with torch.no_grad():
                stages = pipeline.inspect_graph(self.case.gm, self.case.inputs, self.case.config, self.case.passes)
        except FirebrickError:
            return ""
        number = list(self.case.gm.graph.nodes).index(node)
        steps = stages.schedule.steps
        labels = step_labels(self.case.gm.graph, [(step.parts, library_of(step)) for step in steps])
        return next((label for label, step in zip(labels, steps, strict=True) if number in step.parts), "")


def _first(is_wrong: Callable[[int], bool], low: int, high: int) -> int:
    """The least count that is wrong, where `high` is."""
    return low + bisect_left(range(low, high), True, key=is_wrong)


def _switches() -> list[str]:
    """All that `disable_passes` can name, in the order in which it runs, and the settings of passes."""
    level = {"torch": 0, "joint": 1, "aten": 2}
    registered = sorted(registry.names(), key=lambda name: level.get(registry.get(name).level, 3))
    return [*registered, *(step.__name__ for step in passes.PASSES)]


def _without(names: Sequence[str]) -> dict[str, Any]:
    return {"disable_passes": frozenset(names)}


def _place(nodes: Any) -> dict[str, str]:
    places = (user_place(node) for node in nodes)
    return {"place": str(next((place for place in places if place is not None), ""))}


def _part(
    case: Case, nodes: list[fx.Node], start: int, end: int, values: dict[str, Any]
) -> tuple[fx.GraphModule, list[Any]]:
    """The calls from `start` to `end` as a graph of what comes before; returns what is used behind."""
    originals = dict(zip((n for n in case.gm.graph.nodes if n.op == "placeholder"), case.inputs, strict=True))
    chosen = nodes[start:end]
    used = [n for node in chosen for n in node.all_input_nodes if n.op != "get_attr" and n not in chosen]
    inputs = list(dict.fromkeys([*(originals if start == 0 else ()), *used]))
    results = [n for n in chosen if any(user not in chosen for user in n.users)]
    results = [n for n in results if isinstance(values.get(n.name), torch.Tensor)] or [nodes[end - 1]]
    gm = part_of(case.gm, chosen, inputs, results)
    gm.graph.output_node().meta = dict(case.gm.graph.output_node().meta)
    return gm, [originals.get(node, values.get(node.name)) for node in inputs]


class _Watcher:
    """Notes what graphs do, and examines the first that is wrong, or that `at` names: [number, steps before]."""

    def __init__(self, journal: Journal, at: Sequence[int] | None, dead: Sequence[str]) -> None:
        self.journal, self.at, self.dead = journal, at, dead
        self.steps = 0

    def __call__(self, step: str, case: Case, text: str) -> None:
        self.journal(graph=case.number, step=step, text=text, steps=self.steps)
        wanted = self.at is not None and self.at == [case.number, self.steps]
        self.steps += 1
        if wanted or (step in ("differs", "raises") and self.at is None):
            accuracy.watchers.clear()
            with firebrick.disable():
                Examination(case, text, self.journal, self.dead).run()
            sys.stdout.flush()
            os._exit(0)


def _variables(values: dict[str, Any]) -> dict[str, Any]:
    """What a script leaves in its variables, in short: numbers and texts, and elements of tensors."""
    out: dict[str, Any] = {}

    def keep(name: str, value: Any, depth: int) -> None:
        if isinstance(value, torch.nn.Module):
            value = dict(value.state_dict())
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_meta:
            flat = value.detach().reshape(-1).cpu()
            flat = (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat)[:: len(flat) // _KEPT + 1]
            out[name] = [str(value.dtype), list(value.shape), flat.double().tolist()]
        elif isinstance(value, (bool, int, float, str)):
            out[name] = value
        elif isinstance(value, (list, tuple, dict)) and depth < 3 and len(value) < _KEPT:
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                keep(f"{name}[{key!r}]", item, depth + 1)

    for name, value in values.items():
        if not name.startswith("__"):
            keep(name, value, 0)
    return out


class _Frames(logging.Handler):
    """Journals the frames that `debug=capture` logs."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self.journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """Note a line."""
        words = record.getMessage().split()
        if words[:1] == ["capture"]:
            self.journal(frame=words[1], at=words[2])


def main() -> None:
    """Run the script that the arguments name as they want."""
    wish, script, *args = json.loads(sys.argv[1]), *sys.argv[2:]
    journal = Journal(wish["journal"])
    accuracy.watchers += [_Watcher(journal, wish["at"], wish["dead"])] if wish["examine"] else []
    if "capture" in Config.from_env().debug:
        logging.getLogger("firebrick").handlers[:] = [_Frames(journal)]
        logging.getLogger("firebrick").propagate = False
    sys.argv, sys.path[0] = [script, *args], str(Path(script).resolve().parent)
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    error, variables = "", {}
    try:
        with firebrick.optimize() if wish["offer"] else nullcontext():
            variables = runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        error = "" if end.code in (None, 0) else f"SystemExit: {end.code}"
    except Exception as raised:  # noqa: BLE001  it is the answer
        error = f"{type(raised).__name__}: {raised}".partition("\n")[0]
        where = str(raised.where or "") if isinstance(raised, FirebrickError) else ""
        journal(refused=isinstance(raised, Unsupported), where=where)
        traceback.print_exc()
    sys.stdout.flush()
    stats = recorder.stats()
    journal(end=error, counts=stats["counts"], reasons=stats["reasons"], variables=_variables(variables))
    os._exit(0)


if __name__ == "__main__":
    main()
