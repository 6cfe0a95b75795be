"""Tensors of classes with a `__torch_dispatch__`: the graph makes them of the plain tensors in them.

Calls of torch are nodes that run the class's own dispatch on fake tensors; traces go through it. What leaves the graph
are plain tensors, of which new code makes the tensor again.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.guards.sources import Applied, Attr
from firebrick.capture.hook import Wrapped
from firebrick.capture.marks import is_of_torch
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Source, Value, ValueEmitter
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.method import MethodValue
from firebrick.capture.values.object import MISSING, ObjectValue, bind, class_lookup
from firebrick.capture.values.sequence import SequenceValue
from firebrick.capture.values.tensor import TensorValue
from firebrick.capture.wrappers import Call, Layout, Unwrap, Wrap, leaves_of, refill, unwrap, wrapped

if TYPE_CHECKING:
    from firebrick.capture.graph import GraphBuilder
    from firebrick.capture.interpreter.frame_tracer import Tracer

_WRAPPED, _UNWRAP, _REFILLED = Wrapped(wrapped, None), Wrapped(unwrap, None), Wrapped(refill, None)
"""What new code calls: none of it is captured."""
_SIZES = ("shape", "nbytes", "size()", "stride()", "numel()", "nelement()", "storage_offset()")
_TENSOR = frozenset(torch.Tensor.__mro__)


class WrapperValue(TensorValue):
    """A tensor of such a class; the plain ones in it are values of the graph too."""

    __slots__ = ("given",)
    given: tuple[Any, ...]
    """Of one that was there before: its history of gradients and attributes, its layout, the plain tensors in it."""

    def _guard(self, interp: Interpreter) -> None:
        """Its layout is guarded as it is read."""

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """What its class and the instance define, by their rules; the rest as of other tensors."""
        entry, owner = interp.lookup(self.cls, name)
        if owner in _TENSOR or name in ("__class__", "__dict__"):
            self._refuse_ragged(name, ())
            return super().get_attr(interp, name)
        own = getattr(self.fake, "__dict__", {})
        if isinstance(entry, types.FunctionType) and is_of_torch(self.cls):
            return MethodValue(self, name)
        if owner is not None and name not in own and not hasattr(type(entry), "__set__"):
            assert entry is not MISSING
            return bind(interp, entry, owner, self, name)
        if isinstance(entry, property):
            return bind(interp, entry, self.cls, self, name)
        return self._held(interp, name)

    def _refuse_ragged(self, name: str, args: Args) -> None:
        if name in _SIZES and any(type(n) is not int for n in self.fake.shape):
            place = args[0].realize().as_constant() if len(args) == 1 else None
            if name not in ("size()", "stride()") or type(place) is not int or type(self.fake.size(place)) is not int:
                raise Break("tensor-subclass", f"{name} of a ragged {self.cls.__name__} is read")

    def _metadata(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        self._refuse_ragged(f"{name}()", args)
        return super()._metadata(interp, name, args, kwargs)

    def _held(self, interp: Interpreter, name: str) -> Value:
        """An attribute of the instance."""
        with interp.raising(AttributeError):
            inner = getattr(self.fake, name)
        if isinstance(inner, torch.Tensor):
            plain = interp.tracer.graph.known(inner)
            if plain is not None:
                return plain
            return interp.tracer.graph.call(interp, "call_function", getattr, (self, ConstantValue(name)), {})
        if self.obj is not None and self.source is not None:
            return interp.tracer.read(getattr(self.obj, name), Attr(self.source, name))
        return interp.tracer.known(inner)

    def set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """Breaks."""
        raise Break("tensor-subclass", f"{name} of {self.describe()} is set")

    def get_item(self, interp: Interpreter, key: Value) -> Value:
        """One row of a jagged tensor is as long as data say."""
        if self.fake.layout is torch.jagged and key.python_type() is int:
            return self.call_method(interp, "unbind", [], {}).get_item(interp, key)
        return super().get_item(interp, key)

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Methods of the class are inlined, those of torch's own classes are nodes, as are those of every tensor."""
        attribute, owner = class_lookup(self.cls, name)
        if name == "unbind" and self.fake.layout is torch.jagged:
            return interp.inline(interp.stand_in("unbind_jagged"), [self, *args], kwargs)
        if owner in _TENSOR:
            return super().call_method(interp, name, args, kwargs)
        if owner is not None and callable(attribute) and is_of_torch(owner):
            return call_with_objects(interp, name, [self, *args], kwargs)
        return self.get_attr(interp, name).realize().call(interp, args, kwargs)

    def replay(self, emitter: ValueEmitter) -> Callable[[], None]:
        """Put what was replaced into it, and count the writes: the graph makes them to what is in it."""
        own, layout, leaves = emitter.load_to_temp(self), Layout(self.fake), self.given[2:]
        same = [*map(operator.is_, layout.leaves(self.fake), leaves)]
        parts = _apart(emitter.graph, self, layout)[1] if not all(same) else []
        temp = emitter.load_to_temp([NONE if kept else part for part, kept in zip(parts, same, strict=False)])

        def store() -> None:
            if parts:
                emitter.run_call(_REFILLED, temps=[own, temp])
            for _ in range(self.fake._version):
                emitter.run_call(increment_version, temps=[own])

        return store

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Make it of the plain tensors in it."""
        layout = Layout(self.fake)
        gradients, leaves = _apart(emitter.graph, self, layout)
        emitter.load_call(_WRAPPED, layout, gradients, *leaves)
        emitter.remember(self)


def note_changed_wrappers(interp: Interpreter, fakes: Iterable[torch.Tensor] | None) -> None:
    """Those that were given hold what the class's dispatch has put into them, at a call with these (None: with any);
    raises Break: it has changed them otherwise, or their history of gradients."""
    by_fake = interp.tracer.graph._by_fake
    for value in [*by_fake.values()] if fakes is None else [by_fake.get(id(fake)) for fake in fakes]:
        if isinstance(value, WrapperValue) and value.obj is not None:
            state, layout, *leaves = value.given
            if _state(value.fake) != state or not layout.equals(Layout(value.fake), strides=False):
                raise Break("tensor-subclass", f"a {value.cls.__name__} that was given is changed")
            if value.fake._version or not all(map(operator.is_, leaves_of(value.fake), leaves)):
                interp.tracer.effects.mutated(value, always=True)


def _state(fake: Any) -> dict[str, Any]:
    """What else there is of one but its layout and its tensors; torch's own classes remember what they are asked."""
    own = {} if is_of_torch(type(fake)) else vars(fake)
    return {"grad_fn": fake.grad_fn} | {n: one for n, one in own.items() if not isinstance(one, torch.Tensor)}


def is_wrapper_class(cls: type) -> bool:
    """Whether instances of a class are such tensors."""
    return issubclass(cls, torch.Tensor) and is_traceable_wrapper_subclass_type(cls)


def make_wrapper(interp: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> Value:
    """`cls(...)` as a node: what is in the tensor has no history of its own."""
    operands = [arg.realize() for arg in (*args, *kwargs.values())]
    if any(isinstance(arg, TensorValue) and arg.fake.requires_grad for arg in operands) and torch.is_grad_enabled():
        raise Break("tensor-subclass", f"a {cls.__name__} is made of a tensor that wants gradients")
    tensor = call_with_objects(interp, cls, args, kwargs)
    if isinstance(tensor, TensorValue) and tensor.fake.requires_grad:
        raise Break("tensor-subclass", f"a {cls.__name__} that wants gradients is made")
    return tensor


def read_wrapper(tracer: Tracer, obj: Any, source: Source) -> Value:
    """The value of a real tensor of such a class; raises Break: what graphs can't hold of it."""
    graph = tracer.graph
    try:
        layout = Layout(obj)
    except Exception as error:  # one whose `__init__` has not run, say
        raise Break("tensor-subclass", f"{source}, a {type(obj).__name__}: {type(error).__name__}: {error}") from error
    if graph.outer is not None or obj.is_inference():
        raise Break("tensor-subclass", f"{source} is a {type(obj).__name__}")
    tracer.guards.equals(Applied(source, layout, "{0.base} is a {0.applied}"), True)
    path = tracer.parameter_path(source)
    if path is not None:
        tracer.guards.identity(source, obj)
    if obj.requires_grad and torch.is_grad_enabled():
        unwrapped = tracer.prelude.add(_UNWRAP, [source])  # gradients go through this call before the graph
        items = ((tracer.prelude.add(operator.getitem, [unwrapped, i]), leaf) for i, leaf in enumerate(unwrap(obj)))
        leaves: list[TensorValue] = [graph.made("part", item, leaf) for item, leaf in items]
    else:
        leaves = list(_parts(tracer, obj, layout, source, path))
    node = graph.graph.create_node("call_function", Wrap(layout), tuple(leaf.node for leaf in leaves), {})
    node.meta["val"] = fake = graph._run("call_function", node.target, [leaf.fake for leaf in leaves], {})
    node.meta["stack"] = ()
    value = graph._by_fake[id(fake)] = WrapperValue(node, fake, source, type(obj), obj)
    value.given = (_state(fake), Layout(fake), *leaves_of(fake))
    return value


def _apart(graph: GraphBuilder, value: WrapperValue, layout: Layout) -> tuple[Layout | None, list[TensorValue]]:
    """How gradients of a tensor are laid out, and the plain tensors in it, with its history."""
    leaves = [graph.known(leaf) for leaf in layout.leaves(value.fake)]
    if not value.fake.requires_grad and None not in leaves:
        return None, [leaf for leaf in leaves if leaf is not None]
    with graph.mode:
        unwrap = Unwrap(value.fake)
    node = graph.graph.create_node("call_function", unwrap, (value.node,), {})
    node.meta["stack"] = ()
    node.meta["val"] = fakes = graph._run("call_function", unwrap, (value.fake,), {})
    items = [graph.graph.create_node("call_function", operator.getitem, (node, i), {}) for i in range(len(fakes))]
    for item, fake in zip(items, fakes, strict=True):
        item.meta.update(val=fake, stack=())
    tensors = [graph._tensor(*pair) for pair in zip(items, fakes, strict=True)]
    return unwrap.gradients, [
        one if leaf is None or (one.fake.requires_grad and one.fake.numel()) else leaf
        for one, leaf in zip(tensors, leaves, strict=True)
    ]


def _parts(tracer: Tracer, obj: Any, layout: Layout, source: Source, path: str | None) -> Iterator[TensorValue]:
    """The plain tensors, each where it is."""
    for name, inner in layout.inner:
        part, at = getattr(obj, name), Attr(source, name)
        if inner is not None:
            yield from _parts(tracer, part, inner, at, None if path is None else f"{path}_{name}")
        elif path is not None:
            tracer.guards.identity(at, part)
            yield tracer.graph.attribute(part, f"{path}_{name}", at)
        else:
            before, tracer.symbols.dynamic = tracer.symbols.dynamic, False
            value = tracer.read(part, at).realize()
            tracer.symbols.dynamic = before
            if not isinstance(value, TensorValue):
                raise Break("tensor-subclass", f"{at} is a {type(part).__name__}")
            yield value


def object_of(interp: Interpreter, value: Value) -> Any:
    """The real object of a value that no node can hold, known by identity; MISSING for what nodes take."""
    value = value.realize()
    if isinstance(value, SequenceValue) and value.items:
        objects = [object_of(interp, item) for item in value.items]
        return MISSING if any(one is MISSING for one in objects) else value.python_type()(objects)
    if not isinstance(value, ObjectValue) or value.obj is None or value.changed or value.overrides():
        return MISSING
    interp.tracer.guards.pin(value)
    return value.obj


def call_with_objects(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    """A node for a call, some of whose arguments are objects."""
    objects: dict[int | str, Any] = {}
    places: list[tuple[int | str, Value]] = [*enumerate(args), *kwargs.items()]
    for place, value in places:
        if (obj := object_of(interp, value)) is not MISSING:
            objects[place] = obj
    rest = [arg for place, arg in enumerate(args) if place not in objects]
    named = {name: arg for name, arg in kwargs.items() if name not in objects}
    return interp.tracer.graph.call(interp, "call_function", Call(function, objects), rest, named)
