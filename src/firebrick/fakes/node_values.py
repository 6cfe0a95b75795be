"""The fake values that every node carries: find their mode, compute missing ones, copy graphs with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from firebrick.errors import PassError
from firebrick.fakes.mode import new_fake_mode
from firebrick.ir.graph.calls import is_mutating, tensors_in
from firebrick.ir.index.sizes import has_symbols


def drop_dead(graph: fx.Graph) -> None:
    """Erase nodes that nothing reads, but not those that write or act: fx knows only some of them."""
    graph.eliminate_dead_code(lambda node: node.is_impure() or is_mutating(node) or acts(node))


def release(graph: fx.Graph) -> None:
    """Empty a graph that nothing needs any more, and the module around it: its nodes are cycles, which would live on
    while none are collected, and the weights with them."""
    for node in reversed(list(graph.nodes)):
        node.meta.clear()
        graph.erase_node(node)
    graph._graph_namespace._obj_to_name.clear()
    if graph.owning_module is not None:
        graph.owning_module._parameters.clear()
        graph.owning_module._buffers.clear()


def number_nodes(graph: fx.Graph) -> None:
    """Note each node's place in the graph at its user location, which goes with whatever is made of the node."""
    for number, node in enumerate(graph.nodes):
        stack = node.meta.get("stack")
        if stack:
            node.meta["stack"] = (*stack[:-1], replace(stack[-1], nodes=(number,)))


def origins(node: fx.Node) -> tuple[int, ...]:
    """Numbers of the captured graph's nodes that a node was made of."""
    stack = node.meta.get("stack")
    return stack[-1].nodes if stack else ()


def absorb(node: fx.Node, gone: Iterable[fx.Node]) -> None:
    """Note that a node also does the work of nodes that it takes the place of."""
    stack = node.meta.get("stack")
    if stack:
        nodes = tuple(sorted({*(n for g in gone for n in origins(g)), *stack[-1].nodes}))
        node.meta["stack"] = (*stack[:-1], replace(stack[-1], nodes=nodes))


def acts(node: fx.Node) -> bool:
    """Whether a call is there for what it does: it returns no value."""
    return node.op in ("call_function", "call_method") and "val" in node.meta and node.meta["val"] is None


def device_of(node: fx.Node) -> str:
    """Where a node is computed, "cuda:0": where it was placed, or where its (first) result lies."""
    placed = node.meta.get("device")
    if placed is not None:
        return str(placed)
    return next((str(t.device) for t in tensors_in(node.meta.get("val"))), "cpu")


def fake_mode_of(gm: fx.GraphModule) -> FakeTensorMode | None:
    """The mode of the graph's fake values; None when its nodes carry none."""
    mode = gm.meta.get("fake_mode")
    if isinstance(mode, FakeTensorMode):
        return mode
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return None


def fill_meta(gm: fx.GraphModule, node: fx.Node, mode: FakeTensorMode, recorded: bool = False) -> None:
    """Compute `node.meta["val"]` from its arguments' values, unless it is there; `recorded`: with its history.

    Raises:
        PassError: the node can't be run on its arguments' shapes and dtypes.
    """
    if "val" in node.meta or node.op in ("placeholder", "output"):
        return
    if node.op == "get_attr":
        value = attrgetter(str(node.target))(gm)
        node.meta["val"] = mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value
        return
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    try:
        with mode, torch.set_grad_enabled(recorded):
            if node.op == "call_method":
                node.meta["val"] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            elif node.op == "call_module":
                node.meta["val"] = attrgetter(str(node.target))(gm)(*args, **kwargs)
            else:
                node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception as error:
        raise PassError(f"{node.name} can't be run on its arguments: {error}") from error


def fill_metas(gm: fx.GraphModule) -> None:
    """Give every node without a value one, and an empty stack where it has none."""
    mode = fake_mode_of(gm)
    for node in gm.graph.nodes:
        if mode is not None:
            fill_meta(gm, node, mode)
        node.meta.setdefault("stack", ())


def set_fake_values(gm: fx.GraphModule, inputs: Sequence[Any], mode: FakeTensorMode | None = None) -> fx.GraphModule:
    """Give a graph that carries no values (of `fx.symbolic_trace`, say) those of a call on `inputs`."""
    mode = mode or next((t.fake_mode for t in inputs if isinstance(t, FakeTensor)), None) or new_fake_mode()
    arguments = iter(inputs)
    gm.meta["fake_mode"] = mode
    recorded = any(node.target is torch.autograd.grad for node in gm.graph.nodes)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            value = next(arguments)
            if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
                value = mode.from_tensor(value, static_shapes=True)
            node.meta["val"] = value
        else:
            fill_meta(gm, node, mode, recorded)
    return gm


def values_for(gm: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """`gm` itself if its values are those of a call on `inputs`, else a copy that has them."""
    present = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"]
    if all(_alike(a, b) for a, b in zip(present, inputs, strict=True)):
        return gm
    return set_fake_values(plain_copy(gm, keep=lambda name: name != "val"), inputs)


def plain_copy(gm: fx.GraphModule, keep: Callable[[str], bool] = lambda _: False) -> fx.GraphModule:
    """A copy of a graph without our metadata, but for those names that are to be kept."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        node.meta = {k: v for k, v in node.meta.items() if keep(k)}
    return fx.GraphModule(gm, graph)


def _alike(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return not has_symbols(a) and a.shape == b.shape and a.dtype == b.dtype and a.device == b.device


def copy_into(
    gm: fx.GraphModule, source: fx.GraphModule, inputs: Sequence[fx.Node], copies: list[fx.Node]
) -> list[fx.Node]:
    """Copy `source`'s nodes to `gm`'s current insertion point; appends to `made` and returns the outputs."""
    copy_of: dict[fx.Node, fx.Node] = {}
    arguments = iter(inputs)
    outputs: list[fx.Node] = []
    for node in source.graph.nodes:
        if node.op == "placeholder":
            copy_of[node] = next(arguments)
        elif node.op == "output":
            flat = node.args[0] if isinstance(node.args[0], (tuple, list)) else [node.args[0]]
            outputs = [copy_of[n] if isinstance(n, fx.Node) else n for n in flat]
        elif node.op == "get_attr":
            name = _new_attribute(gm, attrgetter(str(node.target))(source))
            copy_of[node] = gm.graph.get_attr(name)
            copies.append(copy_of[node])
        else:
            copy = gm.graph.node_copy(node, lambda n: copy_of[n])
            copy.meta = {}
            copy_of[node] = copy
            copies.append(copy)
    return outputs


def _new_attribute(gm: fx.GraphModule, value: Any) -> str:
    i = 0
    while hasattr(gm, name := f"_rule_constant_{i}"):
        if getattr(gm, name) is value:
            return name
        i += 1
    setattr(gm, name, value)
    return name
