"""A target behind ops: groups are lowered to loops, fused, written in the target's text and run in its memory."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from firebrick import fuse, lower
from firebrick.backends.device_runner import DeviceProgram
from firebrick.config import Config
from firebrick.errors import FirebrickError
from firebrick.extend import SubgraphCompiler, value_of
from firebrick.fakes.node_values import attribute_of
from firebrick.ir.graph.aten import AtenGraph
from firebrick.ir.loops.bounds import CHECK
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Extern

if TYPE_CHECKING:
    from collections.abc import Sequence

    from firebrick.extend import Target
    from firebrick.ir.kernels.schedule import Schedule

__all__ = ["LoopCompiler"]


class LoopCompiler(SubgraphCompiler):
    """Claims what lowers to loops that the target can write, and the library calls that it has.

    `rewrite` may change a group before it is lowered, to bring in the machine's own ops.
    """

    devices = frozenset({"cpu"})

    def __init__(self, target: Target) -> None:
        self.target = target
        self.name = target.name
        self.dtypes = frozenset(DTYPES[d].torch for d in target.dtypes)
        self._known: dict[object, str] = {}

    def supports(self, node: fx.Node) -> bool | str:
        """Whether the op alone is something that the target can run; a text says what it lacks."""
        key = (node.target, repr(_facts(node.args)), repr(_facts(node.kwargs)))
        if key not in self._known:
            try:
                self._known[key] = self._lacks(self._schedule(_alone(node)))
            except FirebrickError as error:
                self._known[key] = str(error).splitlines()[0]
        return self._known[key] or True

    def rewrite(self, graph: fx.GraphModule) -> fx.GraphModule:
        """The group as the machine wants it; must not change `graph` itself."""
        return graph

    def compile(self, graph: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> DeviceProgram:
        """Lower, fuse, write and load."""
        del example_inputs
        graph = self.rewrite(graph)
        targets = dict.fromkeys(str(n.target) for n in graph.graph.nodes if n.op == "get_attr")
        constants = {name: attribute_of(graph, name).detach() for name in targets}
        return DeviceProgram(self._schedule(graph), self.target, constants, Config.from_env())

    def _schedule(self, graph: fx.GraphModule) -> Schedule:
        config, targets = Config.from_env(), {"cpu": self.target}
        results: Any = graph.graph.output_node().args[0]
        aten = AtenGraph(graph, {}, outputs=[None] * len(results), name=f"{self.name}_group")
        return fuse.schedule(lower.lower(aten, targets, config), targets, config)

    def _lacks(self, schedule: Schedule) -> str:
        for step in schedule.steps:
            if isinstance(step, Extern) and step.op != CHECK and not self.target.runs(step.op):
                return f"no kernel for {step.op.partition('.')[0]}"
        self.target.source(schedule, Config.from_env())
        return ""


def _alone(node: fx.Node) -> fx.GraphModule:
    """A graph of one op; what it reads are inputs."""
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    for source in node.all_input_nodes:
        known[source] = graph.placeholder(source.name)
        known[source].meta = dict(source.meta)
    made = graph.node_copy(node, known.__getitem__)
    results = [made]
    if isinstance(value_of(node), (tuple, list)):
        results = []
        for i, value in enumerate(value_of(node)):
            if value is not None:
                results.append(graph.call_function(operator.getitem, (made, i)))
                results[-1].meta = {"val": value}
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
