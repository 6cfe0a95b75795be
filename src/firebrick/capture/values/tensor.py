"""Tensors: nodes of the graph that is being built, with the fake tensor that says what they are like."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from firebrick.capture.breaks.catalogue import Break, breaks
from firebrick.capture.guards.sources import Attr
from firebrick.capture.inference_mode import is_inference
from firebrick.capture.interpreter.function_modes import method_under_modes, seen
from firebrick.capture.values.base import Args, ComparedValue, Interpreter, Kwargs, Source, Value, ValueEmitter
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.method import MethodValue
from firebrick.capture.values.sequence import CONTAINER_METHODS, ListValue, TupleValue
from firebrick.capture.values.size import SizeValue

Method = Callable[["Interpreter", "TensorValue", Args, Kwargs], Value]

_METADATA = frozenset(
    {
        "device", "dtype", "is_cpu", "is_cuda", "is_leaf", "is_meta", "is_mkldnn", "is_mps", "is_nested",
        "is_quantized", "is_sparse", "is_sparse_csr", "is_xla", "is_xpu", "itemsize", "layout", "names", "nbytes",
        "ndim", "requires_grad", "retains_grad", "shape",
    }
)  # fmt: skip
"""Attributes that the fake tensor answers."""

_VIEWS = frozenset({"H", "T", "data", "imag", "mH", "mT", "real"})
"""Attributes that are tensors: `getattr` nodes."""

_METADATA_METHODS = frozenset(
    {
        "dim", "dim_order", "element_size", "get_device", "has_names", "is_complex", "is_conj", "is_contiguous",
        "is_floating_point", "is_neg", "is_shared", "is_signed", "ndimension", "nelement", "numel", "size",
        "storage_offset", "stride", "type",
    }
)  # fmt: skip
"""Methods that the fake tensor answers, where they give no tensor."""

_READS = {
    **{name: f"Tensor.{name}()" for name in ("__bool__", "__float__", "__index__", "__int__", "item", "tolist")},
    "__complex__": "complex() of a tensor",
    "data_ptr": "Tensor.data_ptr()",
    "untyped_storage": "Tensor.untyped_storage()",
    "storage": "Tensor.storage()",
}
"""Methods that need the tensor's data now."""
_COUNTED = frozenset(
    "values _values indices _indices crow_indices col_indices ccol_indices row_indices _nnz is_coalesced".split()
)
"""Methods that tell of the elements that a sparse tensor holds, of which a fake one has none."""


class TensorValue(ComparedValue):
    """A tensor; `node` computes it and `fake` has its shape, strides, dtype and device."""

    __slots__ = ("attributes", "cls", "data_version", "fake", "leaf", "node", "obj", "owner")

    def __init__(
        self,
        node: fx.Node,
        fake: torch.Tensor,
        source: Source | None = None,
        cls: type = torch.Tensor,
        obj: torch.Tensor | None = None,
    ) -> None:
        self.source, self.node, self.fake, self.cls, self.obj = source, node, fake, cls, obj
        self.attributes: dict[str, Value] | None = None  # those that captured code has set
        self.data_version: int | None = None  # if `data` was set: what the fake tensor's would be without writes since
        self.leaf: Value | None = None  # one that is made before the graph, which it has become
        self.owner: Value | None = None  # the tensor of another class that this is the plain one of

    def differs_in_data(self) -> bool:
        """Whether the graph has changed nothing of a tensor from outside but its data."""
        old, new = self.obj, self.fake
        if old is None:
            return False
        alike = (old.shape, old.stride(), old.requires_grad) == (new.shape, new.stride(), new.requires_grad)
        try:
            return alike and (new.is_leaf or not new.requires_grad)
        except RuntimeError:  # torch refuses to tell: a view from under `no_grad` of what was written to
            return False

    def become(self, other: Value) -> None:
        """Stand for what another value is from here on, as the same object."""
        assert isinstance(other, TensorValue)
        self.node, self.fake = other.node, other.fake

    def as_argument(self) -> Any:
        """Its node; raises Break: its history of gradients is not that of its data."""
        if self.data_version is not None and torch.is_grad_enabled() and self._wants_gradient():
            raise Break("unsupported-operation", "a tensor that wants gradients is used where its data was set")
        return self.node

    def _wants_gradient(self) -> bool:
        return self.fake.requires_grad or (self.obj is not None and self.obj.requires_grad)

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """Metadata are constants under the tensor's guard; the rest are nodes or bound methods."""
        told = seen(interp, operator.attrgetter(name), [self], {}) if interp.tracer.function_modes else None
        if told is not None:
            return told
        if name in ("is_leaf", "retains_grad") and self.obj is not None and self.source is not None:
            attribute = getattr(self.obj, name)  # no metadata that the fake tensor or the guard knows
            interp.tracer.guards.equals(Attr(self.source, name), attribute)
            return ConstantValue(attribute)
        if name == "data" and self.data_version is not None:
            plain = TensorValue(self.node, self.fake)
            return interp.tracer.graph.call(interp, "call_function", getattr, (plain, ConstantValue(name)), {})
        if name == "requires_grad" and self.data_version is not None:
            self._guard(interp)
            return ConstantValue(self._wants_gradient())
        if name in _METADATA:
            self._guard(interp)
            if not hasattr(self.fake, name):
                interp.raise_new(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")
            return interp.tracer.known(getattr(self.fake, name))
        if self.attributes is not None and name in self.attributes:
            return self.attributes[name]
        if name in _VIEWS:
            return interp.tracer.graph.call(interp, "call_function", getattr, (self, ConstantValue(name)), {})
        if name == "__class__":
            return interp.tracer.known(self.cls)
        if name == "grad":
            return self._grad(interp)
        if name == "grad_fn" and (not self._wants_gradient() or (self.obj is None and self.fake.is_leaf)):
            self.get_attr(interp, "requires_grad")  # guards it
            return NONE
        if name in ("grad_fn", "_version", "_backward_hooks", "_base"):
            raise Break("unsupported-attribute", f"{name} of a tensor is read")
        if self.obj is not None and name in getattr(self.obj, "__dict__", {}):
            return interp.tracer.own_attribute(self, name)
        if not _defines(self.cls, name):
            if self.obj is not None and self.source is not None:
                interp.tracer.guards.lacks_attribute(self.source, name)
            interp.raise_new(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")
        return MethodValue(self, name)

    def _guard(self, interp: Interpreter) -> None:
        """What is asked of a parameter, which is known by identity, stays."""
        if self.obj is not None and self.source is not None:
            interp.tracer.guards.tensor(self.source, self.obj)

    def _grad(self, interp: Interpreter) -> Value:
        if self.obj is None and self.fake.is_leaf:
            return NONE
        if self.obj is None:
            raise Break("unsupported-attribute", "grad of a tensor made in captured code is read")
        return interp.tracer.own_attribute(self, "grad")

    def set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """`grad` and what its class does not know is written as an effect; what changes the graph breaks."""
        real = value.realize()
        if name == "requires_grad" and real.is_constant() and isinstance(real.as_constant(), bool):
            self.call_method(interp, "requires_grad_", [real], {})
            return
        if name == "grad":
            self._check_gradient(real)
        elif name == "data":
            value = self._set_data(interp, real)
            if self.source is None:
                return
        elif _defines(self.cls, name):
            raise Break("unsupported-attribute", f"{name} of a tensor is set")
        interp.tracer.effects.mutated(self, always=True)
        if self.attributes is None:
            self.attributes = {}
        self.attributes.pop(name, None)  # what fits its data is stored after them
        self.attributes[name] = value

    def _set_data(self, interp: Interpreter, value: Value) -> Value:
        """Stand for the memory of another tensor from here on; the value returned is what to store."""
        graph, kinds = interp.tracer.graph, (torch.Tensor, torch.nn.Parameter)
        if (
            not isinstance(value, TensorValue)
            or not {self.cls, value.cls} <= {*kinds}
            or (self.owner or value.owner or graph.outer) is not None
            or any(getattr(value.fake, name) != getattr(self.fake, name) for name in ("dtype", "device", "layout"))
            or (self.attributes and "grad" in self.attributes and self.fake.shape != value.fake.shape)
            or graph.inference.on
            or any(is_inference(one.fake) for one in (self, value))
            or (self.obj is None and (self.fake.requires_grad or self.fake._is_view()))
            or (self.obj is not None and self.source is None)
        ):
            raise Break("unsupported-attribute", "data of a tensor is set")
        writes = 0 if self.data_version is None else self.fake._version - self.data_version
        graph.set_data(interp, self, value)
        self.data_version = self.fake._version - writes
        return TensorValue(self.node, self.fake)

    def _check_gradient(self, value: Value) -> None:
        if isinstance(value, TensorValue):
            same = [getattr(value.fake, name) == getattr(self.fake, name) for name in ("shape", "dtype", "device")]
            if all(same) and value is not self:
                return
        elif isinstance(value, ConstantValue) and value.value is None:
            return
        raise Break("unsupported-attribute", "grad of a tensor is set to what does not fit it")

    def replay(self, emitter: ValueEmitter) -> Callable[[], None]:
        """Load the new attributes; the function returned stores them."""
        temps = {name: emitter.load_to_temp(value) for name, value in (self.attributes or {}).items()}
        own = emitter.load_to_temp(self)

        def store() -> None:
            for name, temp in temps.items():
                emitter.load_fast(temp)
                emitter.load_fast(own)
                emitter.store_attr(name)
            if self.data_version is not None:
                for _ in range(self.fake._version - self.data_version):
                    emitter.run_call(torch.autograd.graph.increment_version, temps=[own])

        return store

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Metadata are evaluated now; what reads data breaks; the rest are nodes."""
        if interp.tracer.function_modes:
            return method_under_modes(interp, name, [self, *args], kwargs)
        if name in _COUNTED and self.fake.layout not in (torch.strided, torch.jagged):
            raise Break("data-dependent-shape", f"Tensor.{name}() of a sparse tensor")
        if name in _METADATA_METHODS and not (name == "type" and (args or kwargs)):
            return self._metadata(interp, name, args, kwargs)
        self._check_arguments(interp, name, args, kwargs)
        method = TENSOR_METHODS.get(name)
        if method is not None:
            return method(interp, self, args, kwargs)
        if name in _READS:
            raise Break("data-dependent-value", _READS[name])
        if not _defines(self.cls, name):
            interp.raise_new(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")
        try:
            return interp.tracer.graph.call(interp, "call_method", name, (self, *args), kwargs)
        except Break as error:
            if isinstance(error.__cause__, TypeError) and " takes no " in (text := str(error.__cause__)):
                interp.raise_new(TypeError, text.replace(type(self.fake).__name__, "TensorBase", 1))
            raise

    def _check_arguments(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> None:
        """Raise what Python raises, or break, where a method that has a rule is called with what it does not take."""
        method = getattr(self.cls, name, None)
        if (name in _READS or name in ("detach_", "is_inference")) and isinstance(method, types.MethodDescriptorType):
            if args or kwargs:
                what = "keyword arguments" if kwargs else f"arguments ({len(args)} given)"
                interp.raise_new(TypeError, f"TensorBase.{name}() takes no {what}")
        elif name in _ARITIES and (kwargs or len(args) != _ARITIES[name]):
            raise Break("unsupported-call", f"Tensor.{name}() is called with arguments that it does not take")

    def _metadata(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        self._guard(interp)
        if not args and not kwargs:
            return interp.tracer.known(getattr(self.fake, name)())
        return interp.fold(functools.partial(getattr(torch.Tensor, name), self.fake), args, kwargs)

    def get_item(self, interp: Interpreter, key: Value) -> Value:
        """An indexing node."""
        if interp.tracer.index_by_tensors and (places := _places(interp, key)):
            return interp.tracer.graph.call(
                interp, "call_function", torch.ops.aten.index.Tensor, (self, ListValue(places)), {}
            )
        if isinstance(key.realize(), SizeValue) and self.fake.dim():
            return interp.tracer.graph.call(interp, "call_function", torch.select, (self, ConstantValue(0), key), {})
        return interp.operate(operator.getitem, self, key)

    def set_item(self, interp: Interpreter, key: Value, value: Value) -> None:
        """An in-place node."""
        interp.operate(operator.setitem, self, key, value)

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """Rows."""
        if interp.tracer.function_modes:
            return interp.iterate(method_under_modes(interp, "__iter__", [self], {}))
        if self.fake.ndim == 0:
            interp.raise_new(TypeError, "iteration over a 0-d tensor")
        return (self._all_places(interp) or self).call_method(interp, "unbind", [], {}).iterate(interp)

    def _all_places(self, interp: Interpreter) -> Value | None:
        """What `x.nonzero()` of a row gives where all of it is true, as of experts that tokens were sent to."""
        graph, inputs = interp.tracer.graph, self.node.all_input_nodes
        if getattr(self.node.target, "__name__", self.node.target) not in ("nonzero", "argwhere") or len(inputs) != 1:
            return None
        row = inputs[0].meta["val"].shape
        if len(row) != 1 or type(row[0]) is not int or not graph.sizes.takes_for_granted(self.fake.shape[0], row[0]):
            return None
        device = {"device": ConstantValue(self.fake.device)}
        places = graph.call(interp, "call_function", torch.arange, [ConstantValue(row[0])], device)
        return graph.call(interp, "call_method", "unsqueeze", [places, ConstantValue(1)], {})

    def length(self, interp: Interpreter) -> int:
        """Size of the first dimension."""
        return int(self.length_value(interp).as_constant())

    def length_value(self, interp: Interpreter) -> Value:
        """The same, which may be a symbol."""
        if interp.tracer.function_modes:
            return method_under_modes(interp, "__len__", [self], {}).realize()
        if self.fake.ndim == 0:
            interp.raise_new(TypeError, "len() of a 0-d tensor")
        return interp.tracer.known(self.fake.shape[0])

    def truth(self, interp: Interpreter) -> bool:
        """Depends on data."""
        truth = interp.tracer.early.read(self, bool)
        if truth is None:
            raise Break("data-dependent-branch", "the truth of a tensor is asked")
        return bool(truth)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Take it from the graph's results; a parameter is made of one."""
        if self.leaf is not None and self.node is self.leaf.as_argument():
            emitter.load(self.leaf)
            return
        leaf = bool(getattr(emitter.graph.histories, "own_leaves", ())) and is_new_leaf(self)
        if not leaf and self.cls is not torch.nn.Parameter:
            emitter.load_graph_output(self)
            return
        emitter.load_callable(new_leaf if leaf else torch.nn.Parameter)
        emitter.load_graph_output(self)
        if not leaf:
            emitter.load_const(self.fake.requires_grad)
        emitter.call(2 - leaf)
        emitter.remember(self)


class TruthValue(Value):
    """`bool(tensor)`, as the instructions before a branch make it; the branch itself breaks."""

    __slots__ = ("tensor",)
    cls = bool
    held = ("tensor",)

    def __init__(self, tensor: TensorValue) -> None:
        self.tensor = tensor

    def truth(self, interp: Interpreter) -> bool:
        """Depends on data."""
        return self.tensor.truth(interp)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """`bool(tensor)`."""
        emitter.load_call(bool, self.tensor)


def _detach(interp: Interpreter, value: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    if value._wants_gradient():
        if value.obj is not None:
            raise Break("unsupported-call", "Tensor.detach_() is called on a tensor made elsewhere")
        value.become(value.call_method(interp, "detach", [], {}))
    return value


def _set(interp: Interpreter, value: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """Of a tensor that nothing has used yet: by its data, since nobody can have looked at its version."""
    other = args[0].realize() if len(args) == 1 and not kwargs else None
    new = value.obj is None and value.cls is torch.Tensor and interp.tracer.graph.sharing(value.fake) == [value]
    if not new or value.node.users or not isinstance(other, TensorValue) or other.fake.requires_grad:
        raise Break("unsupported-call", "Tensor.set_() is called")
    value.set_attr(interp, "data", other)
    return value


def _is_inference(interp: Interpreter, value: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    if interp.tracer.graph.outer is not None:
        raise Break("unsupported-call", "is_inference() is asked in a function that is transformed or a branch")
    value._guard(interp)
    return ConstantValue(is_inference(value.fake))


def new_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf on the memory of a tensor; called by compiled code too, for results may be one object."""
    return tensor.detach().requires_grad_()


def is_new_leaf(value: TensorValue) -> bool:
    """Whether a tensor is a leaf of the graph's own, by `requires_grad_()`, or a view of one made without gradients."""
    fake, node = value.fake, value.node
    if value.cls is not torch.Tensor or not (fake.requires_grad and fake.is_leaf):
        return False
    while node.target != "requires_grad_" and node.all_input_nodes and getattr(node.meta["val"], "is_leaf", True):
        node = node.all_input_nodes[0]
    return node.target == "requires_grad_"


def _defines(cls: type, name: str) -> bool:
    """Whether instances have an attribute by their class: what only its metaclass has is none of theirs."""
    return any(name in vars(base) for base in cls.__mro__)


def _places(interp: Interpreter, key: Value) -> list[Value]:
    """The tensors that a key consists of, and numbers beside them as tensors; none for other keys."""
    key = key.realize()
    parts = [part.realize() for part in key.items] if isinstance(key, TupleValue) else [key]
    kinds = {type(part) if isinstance(part, TensorValue) else part.python_type() for part in parts}
    if not kinds <= {TensorValue, int} or TensorValue not in kinds:
        return []
    call = interp.tracer.graph.call
    return [
        part if isinstance(part, TensorValue) else call(interp, "call_function", torch.tensor, [part], {})
        for part in parts
    ]


_ARITIES = {"__contains__": 1, "__getitem__": 1, "__len__": 0, "__setitem__": 2, "as_subclass": 1}
"""Methods with a rule that looks at arguments by place -> how many they take."""

TENSOR_METHODS: dict[str, Method] = {
    "__contains__": breaks("data-dependent-branch", "`in` on a tensor"),
    **{name: CONTAINER_METHODS[name] for name in ("__getitem__", "__setitem__")},
    "__len__": lambda interp, value, args, kwargs: value.length_value(interp),
    "detach_": _detach,
    "is_inference": _is_inference,
    "set_": _set,
    **{
        name: breaks("unsupported-call", f"Tensor.{name}() is called")
        for name in (
            *("_is_view", "backward", "register_post_accumulate_grad_hook", "resize_", "resize_as_"),
            *("retain_grad", "share_memory_"),
        )
    },
}
"""Methods of tensors that are no plain nodes -> their rules."""
