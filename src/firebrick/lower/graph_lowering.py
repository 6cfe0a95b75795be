"""From an ATen graph to a loop program: one rule an op, and what has no rule is a library call."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import fx

from firebrick.config import Config
from firebrick.errors import LoweringError
from firebrick.fakes.node_values import device_of, origins
from firebrick.ir.graph.aten import BY_LIBRARY, Alias, AtenGraph
from firebrick.ir.index.expr import ONE, ZERO, NeedsNumber, exprs, total
from firebrick.ir.index.sizes import size_of
from firebrick.ir.loops.dtypes import BY_TORCH
from firebrick.ir.loops.program import Extern, Load, LoopProgram, Recipe, Ref, device_type
from firebrick.ir.loops.values import values_of
from firebrick.lower import (
    bags,
    cuda_convolutions,
    cuda_dropout,
    indexing,
    indirect,
    library_calls,
    normalization,
    padding,
    pointwise,
    pooling,
    reductions,
    sampling,
    scans,
    updates,
    views,
)
from firebrick.lower.context import Declined, Lowering, strides_of
from firebrick.lower.exact import CALLED
from firebrick.lower.tensors import TensorValue
from firebrick.targets.base import Target

_TABLES: tuple[Any, ...] = (
    *(pointwise, views, reductions, normalization, indexing, indirect, updates, scans, padding, pooling, sampling),
    *(bags, cuda_convolutions, cuda_dropout, library_calls),
)
RULES: dict[Any, Callable[..., Any]] = {op: rule for table in _TABLES for op, rule in table.RULES.items()}
"""OpOverload -> rule, a function of the lowering and the op's arguments."""


def lower(aten: AtenGraph, targets: Mapping[str, Target], config: Config) -> LoopProgram:
    """Lower a functional graph to loops and library library_calls.

    Raises:
        LoweringError: the graph holds something that is neither; the caller runs the graph on eager kernels.
    """
    return _Lowerer(aten, targets, config).run()


def _is_rounded(node: fx.Node) -> bool:
    val = node.meta["val"]
    return (val[0] if isinstance(val, (tuple, list)) else val).is_floating_point()  # type: ignore[no-any-return]


class _Lowerer:
    """Walks the graph once."""

    def __init__(self, aten: AtenGraph, targets: Mapping[str, Target], config: Config) -> None:
        self.aten = aten
        self.lw = Lowering(targets, config)
        self.env: dict[fx.Node, Any] = {}
        self.computable: dict[tuple[fx.Node, str], bool] = {}
        self.used: dict[fx.Node, set[int]] = {}
        self.near: dict[tuple[fx.Node, str], TensorValue] = {}
        self.copied: list[Extern] = []
        self.returned: set[str] = set()
        self.inputs: list[TensorValue] = []
        self.consts: dict[str, TensorValue] = {}
        self.derived: dict[str, TensorValue] = {}
        self.placeholders: dict[str, TensorValue] = {}

    def run(self) -> LoopProgram:
        """Lower every node."""
        self._declare_constants()
        recipe = self._recipe()
        outputs: tuple[object, ...] = ()
        same = representatives(self.aten.gm.graph)
        users, self.used = user_counts(same), used_results(same)
        for node in self.aten.gm.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "get_attr":
                self.env[node] = self.derived[node.target] if node.target in self.derived else self.consts[node.target]
            elif node.op == "call_function":
                first = same[node]
                if first is not node:
                    self.env[node] = self.env[first]
                    continue
                self.env[node] = result = self._call(node)
                if isinstance(result, TensorValue) and users[node] > 1:
                    self.lw.share(result)
            elif node.op == "output":
                outputs = self._outputs(node)
        lw = self.lw
        returned = {o.buffer for o in outputs if isinstance(o, Ref)}
        derived = {_buffer_of(v) for v in self.derived.values()}
        kinds = {**dict.fromkeys(returned, "output"), **dict.fromkeys(derived, "derived")}
        buffers = tuple(replace(b, kind=kinds.get(b.name, b.kind)) if b.kind == "temp" else b for b in lw.buffers)
        inputs = tuple(_buffer_of(v) for v in self.inputs)
        recipe = Recipe((*recipe.calls, *self.copied))
        return LoopProgram(self.aten.name, buffers, tuple(lw.nodes), inputs, tuple(self.consts), outputs, recipe)

    # ------------------------------------------------------------ nodes

    def _declare_constants(self) -> None:
        """Constants keep the names by which the caller binds them, so they are declared first."""
        derived = self.aten.derived()
        recipe = () if self.aten.recipe is None else self.aten.recipe.nodes
        for node in (*self.aten.gm.graph.nodes, *recipe):
            if node.op == "get_attr" and node.target not in self.consts and node.target not in derived:
                self.consts[node.target] = self.lw.declare(node.target, node.meta["val"], "const")

    def _recipe(self) -> Recipe:
        """The calls that compute derived constants."""
        if self.aten.recipe is None:
            return Recipe()
        lw = self.lw
        used = used_results({node: node for node in self.aten.recipe.nodes})
        for node in self.aten.recipe.nodes:
            if node.op == "get_attr":
                self.env[node] = self.consts[node.target]
            else:
                lw.node, lw.origin, lw.own, lw.operands, lw.used = node, "", (), (), used.get(node, set())
                lw.device = device_of(node)
                kwargs = {k: self._arguments(v) for k, v in node.kwargs.items()}
                self.env[node] = self.derived[node.name] = library_calls.call_on_constants(
                    lw, *self._arguments(node.args), **kwargs
                )
        calls = tuple(n for n in lw.nodes if isinstance(n, Extern))
        lw.nodes.clear()
        return Recipe(calls)

    def _placeholder(self, node: fx.Node) -> None:
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor):
            raise LoweringError(f"graph input {node.name} is not a tensor")
        value = self.lw.declare(node.name, val, "input")
        self.inputs.append(value)
        self.placeholders[node.name] = value
        self.env[node] = value

    def _call(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            source, position = node.args
            return self.env[source][position]  # type: ignore[index]
        lw = self.lw
        stack = node.meta.get("stack")
        lw.node, lw.origin, lw.own = node, str(stack[-1]) if stack else "", origins(node)
        lw.used, lw.device = self.used.get(node, set()), device_of(node)
        lw.operands = tuple([v for v in (self.env[n] for n in node.all_input_nodes) if isinstance(v, TensorValue)])
        lw.alone = all(v.ref is not None or not v.cost for v in lw.operands) and not _feeds_loops(node)
        rule = RULES.get(node.target)
        exact = lw.config.numerics == "eager" and node.target in CALLED and _is_rounded(node)
        if exact or node.meta.get(BY_LIBRARY):
            rule = None
        result: Any = None
        by_loops = rule is not None and (node.target in views.RULES or self._computable(node))
        # Library calls take numbers that lie on a CPU as they are.
        here = by_loops and node.target not in library_calls.RULES
        args = self._arguments(node.args, here)
        kwargs = {k: self._arguments(v, here) for k, v in node.kwargs.items()}
        if rule is not None and by_loops:
            try:
                result = rule(lw, *args, **kwargs)
            except Declined:
                rule = None
            except NeedsNumber:  # the library's kernel takes sizes as they come
                if node.target in views.RULES or not isinstance(node.target, torch._ops.OpOverload):
                    raise
                rule = None
        else:
            rule = None
        if rule is None:
            if not isinstance(node.target, torch._ops.OpOverload):
                raise LoweringError(f"{node.target} is not an operator")
            result = library_calls.call(lw, *args, **kwargs)
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, TensorValue):
                tensor.device = tensor.device or lw.device
                if tensor.ref is None and not tensor.parts:
                    tensor.parts = lw.parts
        return result

    def _computable(self, node: fx.Node) -> bool:
        """Whether the loops of the node's device may compute it."""
        device = self.lw.device
        target = self.lw.targets.get(device_type(device))
        if target is None:
            return False
        for n in (node, *node.all_input_nodes):
            computable = self.computable.get((n, target.name))
            if computable is None:
                computable = self.computable[n, target.name] = _are_known(n.meta["val"], target)
            if not computable or device_of(n) not in (device, "cpu"):
                return False
        return True

    def _near(self, node: fx.Node, number: bool = False) -> Any:
        """A node's value where torch's tensors of the present device lie, or in the memory of its own that it has.

        number: one on a CPU is copied too, to where loops compute with it, unless they take it by value.
        """
        value, device = self.env[node], self.lw.device
        if not isinstance(value, TensorValue) or value.device == device:
            return value
        apart = self._is_apart(device)
        if not (apart or self._is_apart(value.device) or (number and value.device == "cpu")):
            return value
        copy = self.near.get((node, device))
        if copy is None:
            ref = self.lw.realize(value)
            if number and not apart and self.lw.is_number(ref):
                name, device = ref.buffer, value.device
            elif apart and node.op == "get_attr" and (node.target in self.derived or node.target in self.aten.frozen):
                name = self._resident(ref.buffer)
            else:
                name = self.lw.moved(ref.buffer, device)
            copy = TensorValue(value.shape, value.dtype, value.strides, ref=replace(ref, buffer=name), device=device)
            self.near[node, self.lw.device] = copy
        return copy

    def _is_apart(self, device: str) -> bool:
        """Whether a device has memory that torch's tensors can't lie in."""
        target = self.lw.targets.get(device_type(device))
        return target is not None and not target.shares_memory

    def _resident(self, constant: str) -> str:
        """A buffer of the present device that holds a constant: it is copied once."""
        name = self.lw.moved(constant, self.lw.device)
        self.copied.append(cast("Extern", self.lw.nodes.pop()))
        b = self.lw.buffers[-1]
        self.derived[name] = TensorValue(b.shape, b.dtype, b.strides, ref=Ref(name, b.shape, b.strides, ZERO))
        return name

    def _arguments(self, value: Any, here: bool = False) -> Any:
        """Arguments with values for nodes; `here`: on the device where the node is computed."""
        if isinstance(value, fx.Node):
            return self._near(value, here)
        if isinstance(value, (list, tuple)):
            return [self._arguments(v, here) for v in value]
        if isinstance(value, torch.SymFloat):
            return value.node.settled()
        return size_of(value) if isinstance(value, torch.SymInt) else value

    # ------------------------------------------------------------ outputs

    def _outputs(self, node: fx.Node) -> tuple[object, ...]:
        results: Any = node.args[0]
        self.lw.origin, self.lw.own, self.lw.operands = "", (), ()
        written = [self._target(name) for name in self.aten.mutated]
        count = len(written)
        written_buffers = {_buffer_of(v) for v in written}
        buffers_of_caller = {_buffer_of(v) for v in (*self.inputs, *self.consts.values(), *self.derived.values())}
        aliases = self.aten.outputs or [None] * (len(results) - count)
        # By position in the graph's flat results: outputs made here, then the bases that only aliases show.
        own = {
            i: self._fresh(results[i], buffers_of_caller)
            for i in range(count, len(results))
            if i - count >= len(aliases) or aliases[i - count] is None
        }
        outputs = [self._alias(a, own) if a is not None else own[count + i] for i, a in enumerate(aliases)]
        final = []
        for target, result in zip(written, results, strict=False):
            self.lw.device = target.device
            final.append(self._near(result))
        self._write_back(written, final, written_buffers)
        return tuple(outputs)

    def _target(self, name: str) -> TensorValue:
        return self.placeholders[name] if name in self.placeholders else self.consts[name]

    def _alias(self, alias: Alias, own: dict[int, object]) -> object:
        if alias.base == "output":
            base: Any = own[int(alias.index)]
        elif alias.base == "input":
            base = self.inputs[int(alias.index)].ref
        else:
            base = self.consts[str(alias.index)].ref
        if not isinstance(base, Ref):
            raise LoweringError(f"output aliases {alias.base} {alias.index}, which is no tensor")
        dtype = BY_TORCH[alias.dtype].name if alias.dtype is not None else base.dtype
        return Ref(base.buffer, exprs(alias.shape), exprs(alias.strides), base.offset + alias.offset, dtype)

    def _fresh(self, result: Any, foreign: set[str]) -> object:
        if not isinstance(result, fx.Node):
            return result
        self.lw.device = str(result.meta["val"].device) if isinstance(result.meta["val"], torch.Tensor) else ""
        value = self._near(result)
        if not isinstance(value, TensorValue):
            raise LoweringError(f"output {result} is not a tensor")
        lw = self.lw
        lw.node, lw.device = result, value.device
        strides = strides_of(result.meta["val"])
        ref = lw.realize(value) if value.base is not None else value.ref
        # Results that eager makes apart don't share memory here either, nor with arguments, whatever a pass left out.
        if ref is not None and ref.buffer not in foreign | self.returned and _same_layout(ref, strides):
            self.returned.add(ref.buffer)
            return Ref(ref.buffer, ref.shape, strides, ref.offset, ref.dtype)
        name = lw.buffer(value.dtype, value.shape, strides, device=value.device)
        copied = Ref(name, value.shape, strides, ZERO)
        lw.store(value, copied)
        if ref is None:
            value.stored(copied)
            self.returned.add(name)
        return copied

    def _write_back(self, targets: list[TensorValue], values: list[TensorValue], written_buffers: set[str]) -> None:
        """Copy the final values of mutated arguments into them, reading all old values before."""
        lw = self.lw
        pending: list[tuple[TensorValue, Ref]] = []
        for target, value in zip(targets, values, strict=True):
            place, lw.device = target.ref, value.device
            assert place is not None
            if value.ref is not None and value.ref == place:
                continue
            if value.ref is not None:
                safe = value.ref.buffer not in written_buffers
            else:
                safe = self._reads_in_place(value, place, written_buffers)
            if not safe:
                copy = TensorValue(value.shape, value.dtype, value.strides, formula=value.at, cost=value.cost)
                copy.parts, copy.device = value.parts, value.device
                lw.realize(copy)
                value = copy
            pending.append((value, place))
        for value, place in pending:
            lw.store(value, place)

    def _reads_in_place(self, value: TensorValue, place: Ref, written_buffers: set[str]) -> bool:
        """Whether a formula reads mutated arguments only where it is going to be written itself."""
        _, index = self.lw.axes(place.shape, place.strides)
        at = place.offset + total(i * s for i, s in zip(index, place.strides, strict=True))
        loads = () if ZERO in place.shape else (v for v in values_of(value.at(index)) if isinstance(v, Load))
        return all(v.buffer not in written_buffers or (v.buffer == place.buffer and v.index is at) for v in loads)


def _buffer_of(value: TensorValue) -> str:
    assert value.ref is not None
    return value.ref.buffer


def _feeds_loops(node: fx.Node) -> bool:
    """Whether a result is read by loops, also through views."""
    for user in node.users:
        if user.target is operator.getitem or user.target in views.RULES:
            if _feeds_loops(user):
                return True
        elif user.target in RULES and user.target not in library_calls.RULES:
            return True
    return False


def _are_known(val: Any, target: Target) -> bool:
    """Whether a target's loops compute with a value: every tensor of it of a dtype and layout that they know."""
    if isinstance(val, torch.Tensor):
        row = BY_TORCH[val.dtype]
        return row.loops and val.layout is torch.strided and target.computes(row.name)
    return all(_are_known(v, target) for v in val) if isinstance(val, (list, tuple)) else val is None


def _same_layout(ref: Ref, strides: tuple[Any, ...]) -> bool:
    return all(n is ONE or a is b for n, a, b in zip(ref.shape, ref.strides, strides, strict=True))


def representatives(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Node -> the first node that computes the same, itself for most."""
    first: dict[Hashable, fx.Node] = {}
    same: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        key: Hashable = node
        if node.op == "get_attr":
            key = ("get_attr", node.target)
        elif node.op == "call_function" and not _differs_each_time(node.target):
            key = (node.target, _key(node.args, same), _key(node.kwargs, same))
        same[node] = first.setdefault(key, node)
    return same


def user_counts(same: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, int]:
    """Representative -> how many different nodes use it."""
    users: dict[fx.Node, set[fx.Node]] = {}
    for node, representative in same.items():
        users.setdefault(representative, set()).update(same.get(u, u) for u in node.users)
    return {node: len(users_of_node) for node, users_of_node in users.items()}


def used_results(same: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, set[int]]:
    """Representative -> which of its results are used, its own or those of a node that computes the same."""
    used: dict[fx.Node, set[int]] = {}
    for node in same:
        if node.target is operator.getitem and node.users:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            used.setdefault(same[source], set()).add(node.args[1])  # type: ignore[arg-type]
    return used


def _differs_each_time(target: Any) -> bool:
    """Whether two calls with equal arguments may differ: random numbers, and memory that nobody filled."""
    tags = getattr(target, "tags", ())
    schema = getattr(target, "_schema", None)
    if schema is not None and (schema.is_mutable or not schema.returns):
        return True
    return torch.Tag.nondeterministic_seeded in tags


def _key(value: Any, same: Mapping[fx.Node, fx.Node]) -> Hashable:
    """Arguments as something that is equal only if the arguments are; 1, 1.0 and True differ, and 0.0 and -0.0."""
    if isinstance(value, fx.Node):
        return same[value]
    if isinstance(value, (list, tuple)):
        return tuple(_key(v, same) for v in value)
    if isinstance(value, dict):
        return tuple((k, _key(v, same)) for k, v in value.items())
    if isinstance(value, (bool, int, float, complex)):
        return type(value), repr(value)
    return type(value), str(value)
