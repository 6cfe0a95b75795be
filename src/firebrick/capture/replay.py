"""Calls of equal modules: executed symbolically once, replayed for the others.

A model of many equal layers makes the same nodes for each, with other parameters. What decides that is what
the guards say: whatever a call reads of its module is guarded. So a finished call is kept as a template: its
nodes, its result, and the guards that were asked for while it ran. Where another module of the class is called
with arguments of the same metadata, and every guard holds of it with the module's source put in place of the
first one's, its nodes are copied. Calls that change anything, look at identities or return other objects are
not kept; where anything differs, the call is executed as if there were no templates.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from firebrick import _native
from firebrick.capture.guards.guard_kinds import GROUP_KINDS, KINDS, Guard, id_guard
from firebrick.capture.inference_mode import made_of
from firebrick.capture.values.base import Args, Kwargs, LazyValue, Source, Tracer, Value
from firebrick.capture.values.classes import ClassValue
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.function import BoundMethodValue, CallableValue, CellValue, FunctionValue, PartialValue
from firebrick.capture.values.mapping import DictValue, SetValue
from firebrick.capture.values.object import ObjectValue
from firebrick.capture.values.sequence import SequenceValue, SliceValue, TupleValue
from firebrick.capture.values.size import SizeValue
from firebrick.capture.values.tensor import TensorValue
from firebrick.capture.wrappers import is_wrapper
from firebrick.ir.index.sizes import expressions, size_of

if TYPE_CHECKING:
    from firebrick.capture.values.module import ModuleValue


_FEWEST_NODES = 8
"""Smaller calls are executed as fast as they are replayed."""

_MOST_TEMPLATES = 4
"""Templates that are tried for one class and kind of arguments."""


_UNCHANGING = (ConstantValue, TensorValue, TupleValue, SliceValue, CallableValue, ClassValue)
"""Values without a source that can't change."""

_CHANGING = (SequenceValue, DictValue, SetValue, ObjectValue, CellValue, FunctionValue, BoundMethodValue, PartialValue)
"""Values that can, and whose `children` are all that they hold."""


class _Differs(Exception):
    """A module is not like the template's."""


@dataclass(slots=True)
class _Template:
    """One finished call."""

    module: ModuleValue
    arguments: list[Value]
    nodes: list[fx.Node]
    guards: list[tuple[Any, Guard]]
    result: Value
    ops: int
    steps: list[tuple[Source, int]] = field(default_factory=list)
    """Sources below the module's, each with the place of its base; place 0 is the module."""
    checks: list[tuple[Any, Guard, int, int]] = field(default_factory=list)
    """Guards with their key, the place of their source, and of the source in a SAME guard or -1."""
    tensors: list[tuple[fx.Node, int]] = field(default_factory=list)
    """Nodes of parameters and buffers, with the place of their source."""
    objects: list[Any] = field(default_factory=list)
    """The objects of the module's own call, by place."""

    def prepare(self, tracer: Tracer) -> None:
        """Order what depends on the module; raises _Differs: no other module can be like this one."""
        assert self.module.source is not None
        places: dict[Source, int] = {self.module.source: 0}

        def place(source: Source) -> int:
            position = places.get(source)
            if position is None:
                base = getattr(source, "base", None)
                before = -1 if base is None else place(base)
                position = -1
                if before >= 0:
                    self.steps.append((source, before))
                    position = len(self.steps)
                places[source] = position
            return position

        for value in tracer.objects.values():
            if value.compared and value.source is not None and place(value.source) >= 0:
                raise _Differs  # what the call does may depend on which object it is
        for key, guard in self.guards:
            if guard.kind in GROUP_KINDS:
                raise _Differs
            at = -1 if guard.source is None else place(guard.source)
            other = place(guard.payload) if guard.kind == "SAME" else -1
            if at >= 0 or other >= 0:
                self.checks.append((key, guard, at, other))
        inside = set(self.nodes)
        for node in self.nodes:
            if node.op == "get_attr":
                leaf = tracer.graph.known(node.meta.get("val"))
                if leaf is not None and leaf.source is not None and (at := place(leaf.source)) >= 0:
                    self.tensors.append((node, at))
            for used in node.all_input_nodes:
                leaf = tracer.graph.known(used.meta.get("val"))
                if used not in inside and leaf is not None and leaf.source and place(leaf.source) >= 0:
                    raise _Differs  # a parameter that was used before the call
        self.objects, _ = _walk(self, self.module)


class Repeats:
    """Templates of one capture."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._known: dict[Hashable, list[_Template]] = {}
        self._reach: tuple[int, bool] | None = None
        self._keep: list[list[Value]] = []  # the keys tell some arguments by identity

    def call(self, module: ModuleValue, args: Args, kwargs: Kwargs, run: Callable[[], Value]) -> Value:
        """The result of `run()`, which calls `module`, by a template if there is one."""
        tracer = self._tracer
        apart = tracer.graph.outer is not None or torch.autograd.forward_ad._current_level >= 0
        apart = apart or bool(tracer.saving)
        if module.source is None or module.fields or apart or not self._knows_reach():
            return run()  # in a nested graph, parameters are arguments; a copy would have no tangents
        arguments = [*args, *kwargs.values()]
        signature = _signature(arguments)
        if signature is None:
            return run()
        state = (
            tracer.effects.outside, *[repr(_native.state_read(kind)) for kind in _native.STATES.values()],
            len(tracer.graph.open_modes), tracer.graph.inference.on,
        )  # fmt: skip
        key = (module.cls, state, len(args), tuple(kwargs), signature)
        templates = self._known.get(key)
        if templates is None:
            templates = self._known[key] = []
            self._keep.append(arguments)
        for template in templates:
            try:
                return self._replay(template, module, arguments)
            except _Differs:
                continue
        if len(templates) >= _MOST_TEMPLATES:
            return run()
        before, start, guards = self._mark(), tracer.graph.last(), tracer.guards.begin()
        ops = tracer.graph.op_count
        written = len(tracer.graph.written)
        try:
            result = run()
        finally:
            added = tracer.guards.end(guards)
        if before == self._mark():
            nodes = tracer.graph.since(start)
            if len(nodes) >= _FEWEST_NODES and self._is_plain(result, nodes, tracer.graph.written[written:]):
                template = _Template(module, arguments, nodes, added, result, tracer.graph.op_count - ops)
                try:
                    template.prepare(tracer)
                except _Differs:
                    return result
                templates.append(template)
        return result

    def _mark(self) -> tuple[Any, ...]:
        """What a call must leave as it is."""
        tracer = self._tracer
        graph, effects = tracer.graph, tracer.effects
        unfinished = sum(not generator.frame.finished for _, generator in tracer.generators)
        sizes = graph.sizes.sizes
        counts = len(graph.inputs), len(graph.chosen), len(tracer.prelude), len(sizes.data), len(sizes.guessed)
        return (effects.outside, unfinished, *counts, tracer.early.count)

    def _knows_reach(self) -> bool:
        """Whether all new objects are known that others hold: a call might find and change them."""
        effects = self._tracer.effects
        if self._reach is None or self._reach[0] != effects.outside:
            stored = new_in_reach(effects.stored())
            self._reach = (effects.outside, stored is not None)
            effects.in_reach = {id(value) for value in stored or ()}
        return self._reach[1]

    def _is_plain(self, result: Value, nodes: list[fx.Node], written: list[torch.Tensor]) -> bool:
        """Whether a call can be repeated: it gives tensors with memory of their own, and writes to no others."""
        inside = set(nodes)
        taken = {
            storage
            for node in nodes
            for used in node.all_input_nodes
            if used not in inside or used.op == "get_attr"
            for storage in _storages(used.meta.get("val"))
        }
        if not taken.isdisjoint(_storages(written)) or any(is_wrapper(node.meta.get("val")) for node in nodes):
            return False
        seen: set[Value] = set()

        def plain(value: Value) -> bool:
            if isinstance(value, LazyValue):
                return False
            if isinstance(value, TensorValue):
                if value.node not in inside or value in seen:
                    return True
                seen.add(value)
                storage = _storages(value.fake)
                fresh = value.source is None and taken.isdisjoint(storage) and not value.fake.storage_offset()
                taken.update(storage)
                grown = not value.fake.requires_grad or (value.fake.is_contiguous() and not value.fake.is_leaf)
                return fresh and grown
            if isinstance(value, TupleValue):
                return value.source is None and all(map(plain, value.items))
            return isinstance(value, ConstantValue)

        return plain(result)

    def _replay(self, template: _Template, module: ModuleValue, arguments: list[Value]) -> Value:
        """Copy the nodes of a template for another module; raises _Differs: a guard does not hold, nothing changed."""
        tracer = self._tracer
        assert module.source is not None
        objects, sources = _walk(template, module)
        guards = self._checked(template, objects, sources)
        own = dict(template.tensors)
        for first, other in ((template.objects[at], objects[at]) for at in own.values()):
            if type(first) is not type(other) or _metadata(first) != _metadata(other):
                raise _Differs
        for key, guard in guards:
            tracer.guards.repeat(key, guard)
            if guard.kind == "ID" and isinstance(guard.payload.get(), torch.nn.Module) and guard.source is not None:
                tracer.module_path(guard.source)
        replaced = dict(_tensor_pairs(template.arguments, arguments))
        nodes = {old.as_argument(): new.as_argument() for old, new in replaced.items()}
        graph = tracer.graph
        graph.op_count += template.ops
        for node in template.nodes:
            at = own.get(node, -1)
            if at >= 0:
                nodes[node] = tracer.read(objects[at], sources[at]).realize().as_argument()
            elif node.op != "get_attr":
                copied = nodes[node] = graph.copy(node, nodes)
                place = str(copied.meta.get("module", ""))
                if place == template.module.path or place.startswith(f"{template.module.path}_"):
                    copied.meta["module"] = module.path + place.removeprefix(template.module.path)
        return self._result(template.result, nodes, replaced, {})

    def _checked(self, template: _Template, objects: list[Any], sources: list[Source]) -> list[tuple[Any, Guard]]:
        """The template's guards, made for other objects; raises _Differs: one does not hold."""
        twins: dict[int, Any] = {}
        paired: set[int] = set()
        checks: list[tuple[Any, Guard]] = []
        for key, guard, at, other in template.checks:
            kind, payload = guard.kind, guard.payload
            source = guard.source if at < 0 else sources[at]
            if kind == "SAME":
                # either side that lies outside the module is the same object in every call
                first = template.objects[max(at, other)] if min(at, other) < 0 else objects[other]
                if objects[at if at >= 0 else other] is not first:
                    raise _Differs
                payload = payload if other < 0 else sources[other]
            elif kind == "ID" and template.objects[at] is not objects[at]:
                if not self._is_twin(template.objects[at], objects[at], twins, paired):
                    raise _Differs
                assert source is not None
                checks.append((key, id_guard(source, objects[at])))
                continue
            elif not KINDS[kind].holds(objects[at], payload):
                raise _Differs
            checks.append((key, Guard(kind, source, payload)))
        return checks

    def _is_twin(self, first: Any, other: Any, twins: dict[int, Any], paired: set[int]) -> bool:
        """Whether a module or tensor stands for another, and for no third one."""
        twin = twins.get(id(first))
        if twin is not None:
            return twin is other
        if id(other) in self._tracer.objects or id(other) in paired or type(other) is not type(first):
            return False
        twins[id(first)] = other
        paired.add(id(other))
        return isinstance(other, (torch.nn.Module, torch.Tensor))

    def _result(
        self, value: Value, nodes: dict[fx.Node, fx.Node], arguments: dict[Value, Value], renewed: dict[Value, Value]
    ) -> Value:
        if isinstance(value, TensorValue):
            result = arguments.get(value) or renewed.get(value)
            if result is None:
                node = nodes.get(value.node)
                result = renewed[value] = value if node is None else self._tracer.graph.renew(node, value.fake)
            return result
        if isinstance(value, TupleValue):
            return TupleValue([self._result(item, nodes, arguments, renewed) for item in value.items], cls=value.cls)
        return value


def _walk(template: _Template, module: ModuleValue) -> tuple[list[Any], list[Source]]:
    """The objects and sources of another module's call, by place."""
    assert module.source is not None
    objects, sources = [module.obj], [module.source]
    for source, before in template.steps:
        try:
            objects.append(source.follow(objects[before]))
        except (LookupError, AttributeError, TypeError):
            raise _Differs from None
        sources.append(source.rebased(sources[before]))
    return objects, sources


def _metadata(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        raise _Differs
    return (
        expressions(tensor.shape), expressions(tensor.stride()), tensor.dtype, tensor.device, tensor.requires_grad,
        size_of(tensor.storage_offset()), tensor.is_leaf, tensor.is_inference(), made_of(tensor), tensor.is_conj(),
        tensor.is_neg(),
    )  # fmt: skip


def _signature(arguments: Sequence[Value]) -> Hashable | None:
    """What two calls' arguments must have in common; None where calls can't be compared."""
    order: dict[Value, int] = {}

    def of(value: Value) -> Hashable:
        if isinstance(value, LazyValue):
            if value._real is None:
                return ("lazy", value.source, value.pinned, id(value.obj))
            value = value._real
        if isinstance(value, SizeValue):
            return value.expr
        if isinstance(value, ConstantValue):
            return (type(value.value), repr(value.value), id(type(value.value)))
        if isinstance(value, TensorValue) and value.source is None:
            return (order.setdefault(value, len(order)), value.cls, *_metadata(value.fake))
        if isinstance(value, TupleValue) and value.source is None:
            return (value.cls, *[of(item) for item in value.items])
        if value.source is not None or isinstance(value, (CallableValue, ClassValue)):
            return ("same", id(value))
        raise _Differs

    try:
        return tuple([of(value) for value in arguments])
    except _Differs:
        return None


def _tensor_pairs(first: Sequence[Value], other: Sequence[Value]) -> list[tuple[Value, Value]]:
    """Tensors that take each other's place in two calls."""
    pairs: list[tuple[Value, Value]] = []
    for old, new in zip(first, other, strict=True):
        one, two = _looked_at(old), _looked_at(new)
        if isinstance(one, TensorValue):
            pairs.append((one, two))
        elif isinstance(one, TupleValue) and isinstance(two, TupleValue):
            pairs += _tensor_pairs(one.items, two.items)
    return pairs


def new_in_reach(values: Sequence[Value]) -> list[Value] | None:
    """Objects that captured code made, can change, and are reached from others; None if that is not known of all."""
    seen: set[int] = set()
    new_values: list[Value] = []
    todo = list(values)
    while todo:
        value = _looked_at(todo.pop())
        if id(value) in seen or isinstance(value, LazyValue):
            continue
        seen.add(id(value))
        if value.source is None and not isinstance(value, _UNCHANGING):
            if not isinstance(value, _CHANGING):
                return None
            new_values.append(value)
        todo += value.children()
    return new_values


def _looked_at(value: Value) -> Value:
    return value._real if isinstance(value, LazyValue) and value._real is not None else value


def _storages(fake: Any) -> list[int]:
    """The memory of a fake tensor, or of several."""
    if isinstance(fake, torch.Tensor):
        return [fake.untyped_storage()._cdata]
    return [one for item in fake for one in _storages(item)] if isinstance(fake, (tuple, list)) else []
