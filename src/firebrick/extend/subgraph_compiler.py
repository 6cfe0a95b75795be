"""Subgraph compilers: another engine, or another chip, behind some ops of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from firebrick.extend.pass_base import Level
from firebrick.ir.graph.calls import tensors_in, value_of


class SubgraphCompiler:
    """Claims ops of a graph and compiles connected groups of them. Derive from it; write `supports` and `compile`.

    Attributes:
        name: unique; reports and warnings use it.
        level: "aten" sees functional, decomposed ATen calls; "torch" the program's own torch calls.
        priority: compilers with a higher one choose first.
        min_size: groups of fewer ops are given back.
        version: raise it when equal graphs compile to something else; it is part of the disk cache's key.
        timeout: seconds that one `compile` may take; None takes `Config.build_timeout`.
        dtypes, devices: what the engine accepts (device types such as "cpu"); None accepts all.
        contiguous: the engine wants dense row-major tensors; others are copied before the call.
        device: ops are placed on this device of the same program instead, whose machine is `target`; `rewrite` may
            change a group before. `compile` is not called then.
        tolerance: relative error that `verify` accepts; None takes the dtype's.
    """

    name: str = ""
    level: Level = "aten"
    priority: int = 0
    min_size: int = 1
    version: int = 1
    timeout: float | None = None
    dtypes: frozenset[torch.dtype] | None = None
    devices: frozenset[str] | None = None
    contiguous: bool = False
    tolerance: float | None = None
    device: str = ""
    target: Any = None

    def rewrite(self, graph: fx.GraphModule) -> fx.GraphModule:
        """A group that will be placed, as the machine wants it; must not change `graph` itself."""
        return graph

    def supports(self, node: fx.Node) -> bool | str:
        """Whether the engine can run this op; a text says why not. `node.meta["val"]` holds shapes and dtypes."""
        raise NotImplementedError(f"{type(self).__name__}.supports")

    def compile(self, graph: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """Compile a group. The callable takes the group's inputs and returns its outputs, a tuple or one tensor.

        Weights are `get_attr` nodes of `graph`; all other tensors are placeholders. Called when the group first
        runs, and again for other shapes.
        """
        raise NotImplementedError(f"{type(self).__name__}.compile")

    def cost(self, nodes: Sequence[fx.Node]) -> float:
        """Microseconds that running this group here saves; a group is given back when it is negative."""
        del nodes
        return 0.0

    def serialize(self, compiled: Callable[..., Any]) -> bytes | None:
        """The compiled group as bytes for the disk cache; None keeps it out."""
        del compiled
        return None

    def deserialize(
        self, data: bytes, graph: fx.GraphModule, example_inputs: Sequence[torch.Tensor]
    ) -> Callable[..., Any]:
        """The inverse of `serialize`."""
        raise NotImplementedError(f"{type(self).__name__}.deserialize")

    @property
    def can_serialize(self) -> bool:
        """Whether the compiler writes its own `serialize`."""
        return type(self).serialize is not SubgraphCompiler.serialize

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def tensor_facts_refuse(compiler: SubgraphCompiler, node: fx.Node) -> str:
    """Why the engine's dtype and device facts exclude the node; empty when they don't."""
    if compiler.dtypes is None and compiler.devices is None:
        return ""
    for source in (node, *node.all_input_nodes):
        for value in tensors_in(value_of(source)):
            if compiler.dtypes is not None and value.dtype not in compiler.dtypes:
                return f"dtype {str(value.dtype).removeprefix('torch.')}"
            if compiler.devices is not None and value.device.type not in compiler.devices:
                return f"device {value.device.type}"
    return ""
