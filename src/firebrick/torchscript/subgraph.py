"""Subgraph compilers behind TorchScript: ops that one can handle are gathered into one node of the graph.

The node calls the operator `firebrick::group`, which compiles its subgraph when it first runs and caches it; the
interpreter runs the rest as before. The same `SubgraphCompiler` objects serve FX graphs.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from firebrick.config import Config
from firebrick.errors import PassError
from firebrick.extend import Partition, SubgraphCompiler, partition
from firebrick.extend.claimed_group import group_op
from firebrick.fakes.mode import new_fake_mode
from firebrick.torchscript.python import to_module
from firebrick.torchscript.rewriting import OptimizedScript, frozen_graph, nodes_of, overload_of


def compile_subgraphs(
    module: torch.jit.ScriptModule | OptimizedScript,
    compilers: Sequence[SubgraphCompiler],
    example_inputs: Sequence[Any],
    *,
    config: Config | None = None,
) -> tuple[OptimizedScript, Partition]:
    """Give parts of a TorchScript program to subgraph compilers.

    Args:
        module: a scripted, traced or loaded module, or the result of `optimize`.
        example_inputs: arguments of one call, for shapes and dtypes; other shapes work and are compiled then.

    Returns:
        The program to call, and the report of ops claimed and refused.

    Raises:
        PassError: the module writes its own attributes.
    """
    config = config or Config.from_env()
    if isinstance(module, OptimizedScript):
        graph, names = module.graph.copy(), module.parameters_of_call
    else:
        graph, names = frozen_graph(module)
    torch._C._jit_pass_dce(graph)
    copy = Mirror(graph)
    copy.infer(example_inputs)
    result = partition(copy.gm, compilers, config=config, as_op=True)
    copy.write_back(result)
    torch._C._jit_pass_dce(graph)
    torch._C._jit_pass_lint(graph)
    return OptimizedScript(graph, names, "forward"), result


class Mirror:
    """An FX graph with one node for each top-level node of a TorchScript graph, and the way back.

    Nodes carry `meta["script_node"]` and `meta["script_value"]`, which survive partitioning.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.fx = fx.Graph()
        self.root = nn.Module()
        self.values: dict[int, Any] = {}
        for value in graph.inputs():
            self._bind(value, self.fx.placeholder(_name(value)))
        for node in graph.nodes():
            self._add(node)
        self.fx.output(tuple(self.values[v.unique()] for v in graph.outputs()))
        self.gm = fx.GraphModule(self.root, self.fx, class_name="TorchScript")

    def _bind(self, value: Any, node: fx.Node) -> None:
        self.values[value.unique()] = node
        node.meta["script_value"] = value

    def _add(self, node: Any) -> None:
        kind = node.kind()
        inputs = [self.values[v.unique()] for v in node.inputs()]
        if kind == "prim::Constant":
            self._constant(node)
        elif kind in _CONTAINERS:
            # Part of the arguments of the nodes that read it; in the script graph it stays as it is.
            self.values[node.output().unique()] = _CONTAINERS[kind](inputs)
        elif kind in ("prim::ListUnpack", "prim::TupleUnpack") and isinstance(inputs[0], (list, tuple)):
            for source, output in zip(inputs[0], node.outputs(), strict=True):
                self.values[output.unique()] = source
        elif kind in ("prim::ListUnpack", "prim::TupleUnpack"):
            for i, output in enumerate(node.outputs()):
                self._bind(output, self.fx.call_function(operator.getitem, (inputs[0], i)))
                self.values[output.unique()].meta["script_node"] = node
        else:
            call = self._call(node, inputs)
            call.meta["script_node"] = node
            if node.outputsSize() == 1:
                self._bind(node.output(), call)
            else:
                for i, output in enumerate(node.outputs()):
                    self._bind(output, self.fx.call_function(operator.getitem, (call, i)))

    def _constant(self, node: Any) -> None:
        value = None if node.mustBeNone() else node.output().toIValue()
        if isinstance(value, torch.Tensor):
            name = f"constant_{node.output().unique()}"
            self.root.register_buffer(name, value)
            self._bind(node.output(), self.fx.get_attr(name))
        else:
            self.values[node.output().unique()] = value

    def _call(self, node: Any, inputs: list[Any]) -> fx.Node:
        op = overload_of(node) if node.kind().startswith("aten::") else None
        if op is None:
            return self.fx.call_function(_Opaque(node), tuple(inputs))
        arguments = list(zip(op._schema.arguments, inputs, strict=False))
        args = tuple(value for argument, value in arguments if not argument.kwarg_only)
        kwargs = {argument.name: value for argument, value in arguments if argument.kwarg_only}
        return self.fx.call_function(op, args, kwargs)

    def infer(self, example_inputs: Sequence[Any]) -> None:
        """Run the program once and note the shape of every value of its top level."""
        mode = new_fake_mode()
        probe = self.graph.copy()
        outputs = [v for node in probe.nodes() for v in node.outputs()]
        for _ in list(probe.outputs()):
            probe.eraseOutput(0)
        for value in outputs:
            probe.registerOutput(value)
        probe.makeMultiOutputIntoTuple()
        with torch.no_grad():
            results = torch._C._create_function_from_graph("probe", probe)(*example_inputs)
        results = results if len(outputs) != 1 else (results,)
        originals = [v for node in self.graph.nodes() for v in node.outputs()]
        value_of = {
            v.unique(): r for v, r in zip((*self.graph.inputs(), *originals), (*example_inputs, *results), strict=True)
        }
        for node in self.fx.nodes:
            value = node.meta.get("script_value")
            if value is not None:
                node.meta["val"] = tree_map(lambda v: _fake(v, mode), value_of[value.unique()])
            elif "script_node" in node.meta:
                parts = [value_of[v.unique()] for v in node.meta["script_node"].outputs()]
                node.meta["val"] = tree_map(lambda v: _fake(v, mode), parts) if parts else None
            if isinstance(node.target, _Opaque) and node.target.has_blocks:
                node.meta["barrier"] = True  # may do anything: nothing moves across it
        self.gm.meta["fake_mode"] = mode

    def write_back(self, result: Partition) -> None:
        """Bring the partition of the FX graph into the TorchScript graph."""
        if not result.claims:
            return
        end = self.graph.return_node()
        present: dict[int, Any] = {}
        moved: set[Any] = set()
        for node in self.gm.graph.nodes:
            if node.target is group_op():
                self._insert_group(node, end, present)
            elif "script_node" in node.meta:
                self._move(node.meta["script_node"], end, moved)
        self._move_containers(end, end, moved)
        torch._C._jit_pass_dce(self.graph)

    def _move(self, node: Any, end: Any, moved: set[Any]) -> None:
        if node not in moved:
            self._move_containers(node, end, moved)
            node.moveBefore(end)
            moved.add(node)

    def _move_containers(self, node: Any, end: Any, moved: set[Any]) -> None:
        """Lists and tuples have no node in the FX graph: they go with the first node that reads them."""
        inner = [node, *(n for block in node.blocks() for n in nodes_of(block))]
        for value in [v for n in inner for v in n.inputs()]:
            source = value.node()
            is_container = source.kind() in _CONTAINERS or (source.kind() in _UNPACKS and source not in moved)
            if is_container and source.owningBlock() == end.owningBlock():
                self._move(source, end, moved)

    def _insert_group(self, call: fx.Node, end: Any, present: dict[int, Any]) -> None:
        key, inputs = call.args
        graph = self.graph
        graph.setInsertPoint(end)
        name = graph.insertConstant(key)
        values = [n.meta["script_value"] for n in inputs]  # type: ignore[union-attr]
        listed = graph.create("prim::ListConstruct", [present.get(v.unique(), v) for v in values], 1)
        group = graph.create("firebrick::group", [name, listed.output()], 1)
        for node in (listed, group):
            node.output().setType(torch._C.ListType.ofTensors())
        unpack = graph.create("prim::ListUnpack", [group.output()], len(call.meta["val"]))
        for node in (listed, group, unpack):
            node.insertBefore(end)
        outputs = list(unpack.outputs())
        for pick in call.users:
            old, new = pick.meta["script_value"], outputs[pick.args[1]]  # type: ignore[index]
            new.setType(old.type())
            old.replaceAllUsesWith(new)
            present[old.unique()] = new


_UNPACKS = ("prim::ListUnpack", "prim::TupleUnpack")
_CONTAINERS: dict[str, Any] = {"prim::ListConstruct": list, "prim::TupleConstruct": tuple}


def _fake(value: Any, mode: Any) -> Any:
    return mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value


class _Opaque:
    """A node that is no ATen operator: control flow, containers, numbers."""

    def __init__(self, node: Any) -> None:
        self.kind = node.kind()
        self.__name__ = self.kind.replace("::", "_")
        self.__module__ = "torchscript"
        self.has_blocks = bool(list(node.blocks()))

    def __call__(self, *args: Any) -> Any:
        raise PassError(f"{self.kind} runs in TorchScript only")


def _name(value: Any) -> str:
    name = "".join(c if c.isalnum() else "_" for c in value.debugName())
    return f"v{name}" if name[0].isdigit() else name


def _keeps_state(module: Any) -> bool:
    graph = module._c._get_method("forward").graph.copy()
    torch._C._jit_pass_inline(graph)
    return bool(nodes_of(graph, "prim::SetAttr"))


def to_fx(module: torch.jit.ScriptModule | OptimizedScript, example_inputs: Sequence[Any]) -> fx.GraphModule:
    """The FX graph of ATen operators that a TorchScript module runs on `example_inputs`.

    Control flow is followed as these inputs take it. For a program that takes its branches anew at every call, use
    `to_module` and `firebrick.compile`.

    Raises:
        PassError: the module writes its own attributes.
        Unsupported: an operation has no Python form.
    """
    if isinstance(module, OptimizedScript):
        copy = Mirror(module.graph)
        if not any(isinstance(n.target, _Opaque) for n in copy.fx.nodes):
            copy.infer(example_inputs)
            return copy.gm
        raise PassError("the optimized program has control flow", fix="convert the module before `optimize`")
    if _keeps_state(module):
        raise PassError(
            "the module writes its own attributes", fix="use firebrick.torchscript.to_module and firebrick.compile"
        )
    plain = to_module(module)
    tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]

    def call(*tensors_of_call: torch.Tensor) -> Any:
        values = iter(tensors_of_call)
        return plain(*(next(values) if isinstance(x, torch.Tensor) else x for x in example_inputs))

    with torch.no_grad():
        return make_fx(call)(*tensors)
