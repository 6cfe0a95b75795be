"""The table of contents: a torch-level graph goes in, something that can be called comes out.

This is the only module that imports the stages. Every stage is timed, its result is printed at its
level, and what goes wrong in any of them is dealt with here and nowhere else: the graph then runs on
eager kernels, with one warning that names the cause.
"""

from __future__ import annotations

import gc
import platform
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from firebrick import autodiff, codegen, lowering, passes, runtime, scheduling
from firebrick.artifact import SCHEMA, Artifact
from firebrick.autodiff import graph_key, literals
from firebrick.errors import FirebrickError, InternalError
from firebrick.extend.labels import step_labels
from firebrick.extend.metas import number_nodes
from firebrick.extend.runner import copy_graph
from firebrick.loops.schedule import Launch
from firebrick.loops.show import show as show_loops
from firebrick.report import recorder
from firebrick.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from firebrick.codegen import CppTarget
    from firebrick.config import Config
    from firebrick.extend import PassReport
    from firebrick.extend.graph import AtenGraph
    from firebrick.loops.ir import LoopProgram
    from firebrick.loops.schedule import Schedule

__all__ = ["Stages", "compile_graph", "graphs_compiled", "inspect_graph"]

_NOT_IN_KEY = frozenset(
    {
        *("strict", "check", "debug", "dump", "recompile_limit", "dynamic", "fullgraph", "graphs"),
        *("cache", "cache_dir", "cache_size_mb", "build_workers", "build_timeout", "remote_cache", "remote_cache_key"),
    }
)
"""Settings that change nothing in what is generated."""


def compile_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    config: Config,
    user_passes: Sequence[Any] = (),
    keys: dict[str, runtime.Key] | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """Compile a torch-level graph; the result takes its tensor inputs and returns the tuple of its outputs.

    A graph that can't be compiled runs on eager kernels instead; `config.strict` raises. The cache key is noted in
    `keys`.
    """
    if autodiff.needs_grad(gm, example_inputs):
        recorder.count("graphs run eagerly: gradients")
        recorder.note_once("training", "firebrick: graphs that need gradients run on eager kernels in this version")
        return gm.forward
    try:
        with _collector_paused():
            compiled = _compile(gm, example_inputs, config, user_passes, {} if keys is None else keys)
    except Exception as error:
        if config.strict:
            raise
        recorder.count("graphs run eagerly: failed")
        recorder.reason("fallback", f"{type(error).__name__}: {error}")
        recorder.warn_once(f"fallback {error}", _fallback_text(gm, error))
        return gm.forward
    recorder.count("graphs compiled")
    return compiled


def graphs_compiled() -> int:
    """Return how many graphs this process has compiled with the firebrick backend."""
    return recorder.counts["graphs compiled"]


def _fallback_text(gm: fx.GraphModule, error: Exception) -> str:
    kind = "" if isinstance(error, FirebrickError) and not isinstance(error, InternalError) else type(error).__name__
    cause = f"{kind}: {error}" if kind else str(error)
    return f"firebrick: {_name(gm)} runs on eager kernels, since it could not be compiled: {cause}"


def _name(gm: fx.GraphModule) -> str:
    return str(gm.meta.get("name") or "graph")


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A compile makes many objects that live: walking them again and again would take a tenth of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _compile(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    config: Config,
    user_passes: Sequence[Any],
    keys: dict[str, runtime.Key],
) -> Callable[..., tuple[Any, ...]]:
    target = codegen.detect(config)
    _show(config, "graph", gm, lambda: f"graph {_name(gm)}\n{autodiff.show_nodes(gm.graph)}")
    captured = graph_key.constants_of(gm)
    with recorder.timed("key"):
        key = _key(gm, example_inputs, config, user_passes, target)
    if key is None:
        artifact, made = _make(gm, example_inputs, config, user_passes, target)
        return runtime.load(artifact, {**captured, **made}, _labels(gm, artifact))
    keys[key.digest] = key
    cache = runtime.DiskCache(config)
    artifact = cache.fetch(key, lambda: _storable(*_make(gm, example_inputs, config, user_passes, target)))
    constants = {**captured, **literals.read(artifact.extra.get("literals", {}))}
    return runtime.load(artifact, constants, _labels(gm, artifact))


def _labels(gm: fx.GraphModule, artifact: Artifact) -> list[str] | None:
    """What profilers show of the artifact's steps: it knows nodes by number, this graph knows where they were made."""
    origins = artifact.extra.get("origins")
    return None if origins is None else step_labels(gm.graph, origins)


@dataclass(frozen=True, slots=True)
class Stages:
    """What became of a captured graph before code was generated.

    reports: what the passes of level torch and aten did, one each.
    """

    gm: fx.GraphModule
    aten: AtenGraph
    program: LoopProgram
    schedule: Schedule
    reports: tuple[PassReport, ...]


def inspect_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config, user_passes: Sequence[Any] = ()
) -> Stages:
    """Run the stages on a torch-level graph up to its schedule, for tools that look at them.

    Raises:
        FirebrickError: the graph can't be compiled.
    """
    return _stages(gm, example_inputs, config, user_passes, codegen.detect(config))


def _make(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config, user_passes: Sequence[Any], target: CppTarget
) -> tuple[Artifact, dict[str, torch.Tensor]]:
    """Run the stages; returns the built artifact and the constants that the trace made itself."""
    captured = graph_key.constants_of(gm)
    stages = _stages(gm, example_inputs, config, user_passes, target)
    schedule = stages.schedule
    recorder.count("kernels", len(schedule.kernels))
    recorder.count("launches", sum(isinstance(step, Launch) for step in schedule.steps))
    with recorder.timed("codegen"):
        artifact = codegen.generate(schedule, target, config)
    artifact = artifact.with_extra(origins=[[step.parts, getattr(step, "op", "")] for step in schedule.steps])
    _show(config, "code", gm, lambda: _show_code(artifact))
    artifact = runtime.build(artifact, config)
    return artifact, {n: t for n, t in stages.aten.constants.items() if n not in captured}


def _stages(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config, user_passes: Sequence[Any], target: CppTarget
) -> Stages:
    reports: list[PassReport] = []
    number_nodes(gm.graph)
    if passes.active_passes("torch", user_passes, config):
        gm = _copy(gm)
        reports += passes.run_graph_passes(gm, "torch", config, passes=user_passes, example_inputs=example_inputs)
    with recorder.timed("autodiff"):
        aten = autodiff.trace_inference(gm, example_inputs, config)
    aten.name = _name(gm)
    with recorder.timed("passes"):
        aten = passes.run_passes(
            aten, config, passes=user_passes, trace=autodiff.trace_function, on_report=reports.append
        )
    _show(config, "aten", gm, lambda: autodiff.show(aten))
    with recorder.timed("lowering"):
        program = lowering.lower(aten, config)
    _show(config, "loops", gm, lambda: show_loops(program))
    with recorder.timed("scheduling"):
        schedule = scheduling.schedule(program, target, config)
    _show(config, "schedule", gm, lambda: scheduling.show(schedule))
    return Stages(gm, aten, program, schedule, tuple(reports))


def _copy(gm: fx.GraphModule) -> fx.GraphModule:
    copied = fx.GraphModule(gm, copy_graph(gm.graph))
    copied.meta.update(gm.meta)
    return copied


def _storable(artifact: Artifact, made: dict[str, torch.Tensor]) -> Artifact:
    return artifact.with_extra(literals=literals.write(made)) if made else artifact


def _key(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config, user_passes: Sequence[Any], target: CppTarget
) -> runtime.Key | None:
    """Name the content of this compile; None if it has no stable content."""
    graph = graph_key.graph_text(gm)
    active = passes.passes_key(user_passes, config)
    if graph is None or active is None:
        return None
    constants = list(graph_key.constants_of(gm).values())
    options = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in _NOT_IN_KEY}
    options = {k: sorted(v) if isinstance(v, frozenset) else v for k, v in options.items()}
    return runtime.make_key(
        {
            "graph": graph,
            "inputs": graph_key.metas_text(example_inputs),
            "constants": graph_key.metas_text(constants),
            "sharing": graph_key.sharing_text([*example_inputs, *constants]),
            "state": graph_key.state_text(),
            "options": repr(sorted(options.items(), key=str)),
            "passes": active,
            "versions": f"{VERSION} {SCHEMA} {torch.__version__} {torch.version.git_version}",
            "target": f"{platform.system()} {target.key()} {target.threads}",
        }
    )


def _show(config: Config, level: str, gm: fx.GraphModule, text: Callable[[], str]) -> None:
    """Make and print the text of a level, if anyone wants it."""
    if level in config.debug or config.dump is not None:
        recorder.show(config, level, _name(gm), text())


def _show_code(artifact: Artifact) -> str:
    return "\n".join([codegen.show_table(dict(artifact.table)), *(unit.text for unit in artifact.units)])
