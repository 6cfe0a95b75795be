"""Runs passes one after another: times each, checks what it left, and throws the work of a wrong one away."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from firebrick.config import Config
from firebrick.errors import PassError, VerificationError
from firebrick.extend.pass_base import Context, Pass, PassReport, TraceFunction
from firebrick.extend.verify import Difference, compare_graphs, example_tensors
from firebrick.fakes.node_values import drop_dead, fill_metas
from firebrick.report import recorder


def apply_passes(
    gm: fx.GraphModule,
    passes: Iterable[Pass],
    *,
    config: Config | None = None,
    trace: TraceFunction | None = None,
    frozen: frozenset[str] | None = None,
    example_inputs: Sequence[Any] | None = None,
    verify: bool | None = None,
) -> list[PassReport]:
    """Run `passes` on `gm` in the given order and report on each.

    A pass that raises, that leaves an illegal graph, or (with `verify`) that changes results is skipped: the graph
    is put back, and one warning names the pass. `Config.strict` raises instead.

    Args:
        trace: traces functions at the passes' level; rules at levels aten and joint need it.
        frozen: names of constants that never change; None counts all of them as such.
        example_inputs: real inputs for verification; None makes some from the placeholders' values.
        verify: None takes `config.verify_passes`.

    Raises:
        PassError, VerificationError: under `config.strict`.
    """
    config = config or Config()
    verify = config.verify_passes if verify is None else verify
    context = Context(config, trace, frozen, example_inputs, verify)
    reports = []
    for step in passes:
        here = replace(context, report=PassReport(step.name, step.level))
        start = time.perf_counter()
        _apply_one(gm, step, here)
        here.report.seconds = time.perf_counter() - start
        reports.append(here.report)
        _record(here.report)
    return reports


def copy_graph(graph: fx.Graph) -> fx.Graph:
    """A copy with the same names and metadata."""
    copied = fx.Graph(tracer_cls=graph._tracer_cls)
    copy_of: dict[fx.Node, fx.Node] = {}
    output = copied.graph_copy(graph, copy_of)
    old = graph.output_node()
    copied.output(output).meta = dict(old.meta)
    return copied


def _record(report: PassReport) -> None:
    text = str(report) if report.sites or report.notes or report.skipped else ""
    recorder.event(
        "pass",
        name=report.name,
        level=report.level,
        changed=report.changed,
        applied=report.applied,
        skipped=report.skipped,
        report=text,
    )


def _apply_one(gm: fx.GraphModule, step: Pass, context: Context) -> None:
    report, config = context.report, context.config
    # A rule leaves the graph legal at every step and checks its own applications, so it needs no copy.
    before = None if step.atomic else copy_graph(gm.graph)
    try:
        report.changed = step.apply(gm, context)
        if report.changed and before is not None:
            _finish(gm)
    except Exception as error:
        problem = str(error) if isinstance(error, PassError) else f"{type(error).__name__}: {error}"
        _skip(gm, step, report, before, f"raised {problem}" if not isinstance(error, PassError) else problem)
        if config.strict:
            raise PassError(f"pass {step.name} failed: {problem}") from error
        return
    if report.changed and context.verify and before is not None:
        inputs = context.example_inputs
        if inputs is None or any(isinstance(i, FakeTensor) for i in inputs):
            inputs = example_tensors([n.meta.get("val") for n in before.nodes if n.op == "placeholder"])
        result = compare_graphs(gm, before, inputs, tolerance=step.tolerance)
        if not isinstance(result, Difference):
            report.error = result
            return
        _skip(gm, step, report, before, f"verification failed: {result}")
    if report.skipped and config.strict and context.verify:
        raise VerificationError(f"pass {step.name} changes results: {_reason(report)}")
    if report.skipped and before is None:
        recorder.warn_once(f"pass {step.name}", f"pass {step.name} is wrong and was skipped there: {_reason(report)}")


def _reason(report: PassReport) -> str:
    failed = [s for s in report.sites if s.reason.startswith("verification failed")]
    return f"{failed[0].node}: {failed[0].reason}" if failed else report.skipped


def _finish(gm: fx.GraphModule) -> None:
    try:
        gm.graph.lint()
    except Exception as error:
        raise PassError(f"left an illegal graph: {str(error).splitlines()[0]}") from error
    drop_dead(gm.graph)
    fill_metas(gm)


def _skip(gm: fx.GraphModule, step: Pass, report: PassReport, before: fx.Graph | None, reason: str) -> None:
    if before is not None:
        gm.graph = before
        report.changed = False
    report.skipped = reason
    recorder.reason("pass skipped", f"{step.name}: {reason.splitlines()[0]}")
    recorder.warn_once(f"pass {step.name}", f"pass {step.name} was skipped: {reason}", stacklevel=4)
