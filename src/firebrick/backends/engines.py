"""Whole-graph backends made of subgraph compilers: what the engine lacks runs on eager kernels.

`engine_backend` is also what turns a `SubgraphCompiler` of one's own into a backend function.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from firebrick import fuse, host, lower, runtime, trace
from firebrick.backends.aten import run_aten
from firebrick.config import Config
from firebrick.errors import FirebrickError
from firebrick.extend import SubgraphCompiler, Target, partition, value_of
from firebrick.ir.graph.aten import AtenGraph
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Extern
from firebrick.report import recorder
from firebrick.targets.by_device import find_targets
from firebrick.targets.driven import Machine


def engine_backend(
    *engines: SubgraphCompiler | Target, report: Callable[[str], None] | None = None
) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend that divides each graph among `engines`; a target takes what lowers to loops that it can write.

    Graphs that need gradients run as they were captured: engines compute no gradients.

    Args:
        report: is given the partition's report as text.
    """
    compilers = [LoopCompiler(engine) if isinstance(engine, Target) else engine for engine in engines]

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        del options
        config = Config.from_env()
        if trace.needs_grad(gm, example_inputs):
            recorder.warn_once("engines and gradients", "subgraph compilers run at inference; this graph runs eagerly")
            return gm.forward
        if all(c.level == "torch" for c in compilers):
            result = partition(gm, compilers, config=config)
            run: Callable[..., Any] = gm
        else:
            placing = [c for c in compilers if isinstance(c, LoopCompiler)]
            aten = trace.trace_inference(gm, example_inputs, config, {c.name: c.target for c in placing})
            result = partition(aten.gm, compilers, config=config, frozen=aten.frozen, as_op=bool(placing))
            run = compile_placed(aten, placing, config) if placing else run_aten(aten, aten.gm)
        recorder.event("partition", text=str(result), percent=result.percent, groups=len(result.claims))
        if report is not None:
            report(str(result))
        return run

    backend.__name__ = "_".join(c.name for c in compilers)
    return backend


class LoopCompiler(SubgraphCompiler):
    """Claims what lowers to loops that the target can write, and the library calls that it has.

    `rewrite` may change a group before it is lowered, to bring in the machine's own ops.
    """

    devices = frozenset({"cpu"})

    def __init__(self, target: Target) -> None:
        self.target, self.machine = target, Machine(target)
        self.name, self.device = target.name, self.machine.device
        self.dtypes = frozenset(DTYPES[d].torch for d in target.dtypes)
        self._verdicts: dict[object, str] = {}

    def supports(self, node: fx.Node) -> bool | str:
        """Whether the op alone is something that the target can run; a text says what it lacks."""
        key = (node.target, repr(_facts(node.args)), repr(_facts(node.kwargs)))
        if key not in self._verdicts:
            try:
                self._verdicts[key] = self._lacks(_alone(node, self.device))
            except FirebrickError as error:
                self._verdicts[key] = str(error).splitlines()[0]
        return self._verdicts[key] or True

    def _lacks(self, graph: fx.GraphModule) -> str:
        config = Config.from_env()
        targets = {**find_targets((), config), self.name: self.target}
        results: Any = graph.graph.output_node().args[0]
        aten = AtenGraph(graph, {}, outputs=[None] * len(results))
        schedule = fuse.schedule(lower.lower(aten, targets, config), targets, config)
        for step in schedule.steps:
            if isinstance(step, Extern) and step.device == self.device:
                return f"no kernel for {step.op.partition('.')[0]}"
        self.machine.texts(schedule, config)
        return ""


def compile_placed(aten: AtenGraph, compilers: Sequence[LoopCompiler], config: Config) -> Callable[..., Any]:
    """Compile a graph of which some ops are placed on the compilers' machines."""
    targets = {**find_targets((), config), **{c.name: c.target for c in compilers}}
    schedule = fuse.schedule(lower.lower(aten, targets, config), targets, config)
    artifact = runtime.build(host.generate(schedule, targets, config), config)
    driven = {c.device: c.machine.load(schedule, config) for c in compilers}
    return runtime.load(artifact, aten.constants, driven=driven)


def _alone(node: fx.Node, device: str) -> fx.GraphModule:
    """A graph of one op on a device; what it reads are inputs."""
    graph = fx.Graph()
    copy_of: dict[fx.Node, fx.Node] = {}
    for source in node.all_input_nodes:
        copy_of[source] = graph.placeholder(source.name)
        copy_of[source].meta = dict(source.meta)
    call = graph.node_copy(node, copy_of.__getitem__)
    call.meta["device"] = device
    results = [call]
    if isinstance(value_of(node), (tuple, list)):
        results = []
        for i, value in enumerate(value_of(node)):
            if value is not None:
                results.append(graph.call_function(operator.getitem, (call, i)))
                results[-1].meta = {"val": value, "device": device}
    graph.output(tuple(results))
    return fx.GraphModule(torch.nn.Module(), graph)


def _facts(value: Any) -> Any:
    """Arguments with tensors as their shapes, strides and dtypes."""
    if isinstance(value, fx.Node):
        return _facts(value_of(value))
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.dtype)
    if isinstance(value, (tuple, list)):
        return [_facts(v) for v in value]
    return {k: _facts(v) for k, v in value.items()} if isinstance(value, dict) else value
