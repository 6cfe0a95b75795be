"""The FX graph under construction: inputs, parameters, calls evaluated on fake tensors, outputs."""

from __future__ import annotations

import contextlib
import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.emit.prelude import Made
from firebrick.capture.guards.torch_state import default_device
from firebrick.capture.inference_mode import InferenceMode, storage_of
from firebrick.capture.interpreter.function_modes import overridden
from firebrick.capture.packed import PACKED, is_packed
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Source, Value
from firebrick.capture.values.computed import call_with_floats
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.leaf import leaf_by_option
from firebrick.capture.values.made import MadeTensor, NumberInGraph
from firebrick.capture.values.mapping import DictValue
from firebrick.capture.values.object import Overridden
from firebrick.capture.values.opaque import Opaque, OpaqueValue
from firebrick.capture.values.random_state import Draws, drawn
from firebrick.capture.values.scalar import read_size
from firebrick.capture.values.sequence import ListValue, TupleValue
from firebrick.capture.values.size import SizeNodes
from firebrick.capture.values.tensor import TensorValue, is_new_leaf
from firebrick.capture.values.wrapper import WrapperValue, note_changed_wrappers
from firebrick.capture.wrappers import Wrap, is_wrapper, leaves_of
from firebrick.errors import DataDecides, HookRefused
from firebrick.fakes.data_sizes import as_size, as_true, fake_size, is_integer
from firebrick.fakes.function_forms import SHAPES
from firebrick.fakes.mode import fake_of, new_fake_mode, refusing, with_kernels_in_python
from firebrick.fakes.strides import dense_strides
from firebrick.ir.graph.calls import written_by
from firebrick.ir.graph.nested import Hooked, Nested

if TYPE_CHECKING:
    from firebrick.capture.values.context_manager import ContextValue

_NAME = re.compile(r"[^0-9A-Za-z_]+")
_REFUSING = frozenset(
    name
    for names in (
        "embedding embedding_bag gather take take_along_dim index_select index_fill index_add index_copy scatter",
        "scatter_add scatter_reduce nll_loss cross_entropy binary_cross_entropy one_hot inv inverse cholesky solve",
        "cholesky_ex lu_factor lu eigh svd qr matrix_power multi_margin_loss ctc_loss _pack_padded_sequence",
    )
    for name in names.split()
)
"""Calls that may refuse numbers of their arguments: they run, and raise, though nothing reads their results."""


def has_tensor(value: Value) -> bool:
    """Whether a tensor is somewhere in the value."""
    value = value.realize()
    if isinstance(value, TensorValue):
        return True
    return any(has_tensor(child) for child in value.children())


class LeavesEscape(Exception):
    """Leaves that a graph was to make itself are to be made before it."""


class GraphBuilder:
    """Builds one FX graph; every call is run once, on fake tensors, as it is added."""

    def __init__(self, outer: GraphBuilder | None = None) -> None:
        self.outer = outer  # the builder of the graph that this one is nested in
        self.in_transform: bool = outer is not None and outer.in_transform  # of torch.func
        self.graph = fx.Graph()
        self.mode: FakeTensorMode = new_fake_mode() if outer is None else outer.mode
        self.inputs: list[TensorValue] = []
        self.made_inputs: list[tuple[fx.Node, MadeTensor]] = []
        self.attributes: dict[str, torch.Tensor] = {}
        self.outputs: list[TensorValue] = []
        self.chosen: list[Any] = []  # each one of two tensors, by what data decide
        self.op_count = 0
        self.new_objects: dict[int, Value] = {} if outer is None else outer.new_objects
        """Classes that captured code made, and what belongs to them, by identity of what stands in for them."""
        self.written: list[torch.Tensor] = []  # fake tensors that calls wrote to
        self.read_only: set[Any] = set()  # memory that two arguments share
        self.copied: set[Any] = set()  # memory of what leaves were made of, which is another one in the graph
        self.replaced: list[TensorValue] = []  # those whose data were set
        self.open_modes: list[ContextValue] = []  # entered and not left, the outermost first
        self.modes_at_start = 0
        self.grad_at_start = torch.is_grad_enabled()
        self.inference: InferenceMode = InferenceMode() if outer is None else outer.inference
        self.closed = False
        self._first_versions: list[int] = []
        self.changed_blindly = False  # a tensor without a version was written to
        self.watched = False  # calls after a write may raise where the program has done, or would do, something else
        self.unread = 0  # results behind the outputs, of calls that may raise
        self.refusals_caught = False  # a call whose numbers may be refused stands where the program catches that
        self.beyond_undoing = False  # a tensor that was there before has another history of gradients now
        self._attribute_nodes: dict[int, TensorValue] = {}
        self._by_fake: dict[int, TensorValue] = {}
        self._last_placeholder: fx.Node | None = None
        self._argument_names: set[str] = set()
        self._output_index: dict[TensorValue, int] = {}
        self._versions: list[tuple[torch.Tensor, int]] = []
        self.sizes = SizeNodes(self)
        self.numbers: dict[Any, Any] = {}  # numbers in tensors that are known as sizes, by their places
        self.keeps_sizes = False  # the backend takes numbers that are computed of sizes as they are
        if outer is not None:
            self.sizes.leaves = outer.sizes.leaves
        self.histories: Any = None  # of what gradients are asked for
        self.is_whole = False  # a break is an error
        self.leaves_before = False  # leaves that gather gradients are made before the graph
        self.switches: set[Any] = set()  # functions that the graph calls to switch modes of the thread

    # -- leaves ---------------------------------------------------------------

    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor with the metadata of a real one; raises Break: torch won't tell how it was made."""
        try:
            with _versions_kept():
                fake = self.mode.from_tensor(tensor, static_shapes=True)
        except RuntimeError as error:  # a view whose base was written to in another grad mode, say
            raise Break("fake-tensor-failed", f"a tensor like one that was given: {error}") from error
        self.inference.met(tensor, fake)
        return self.watch(fake)

    def watch(self, fake: torch.Tensor) -> torch.Tensor:
        """Keep the version that a tensor has now, if it has one."""
        self._versions.extend((fake, version) for version in _versions([fake]) if version >= 0)
        return fake

    def changed(self) -> list[TensorValue]:
        """Tensors that were there before the graph and that it writes to, if only through `.data`."""
        changes = [(fake, fake._version != version) for fake, version in self._versions]
        written = {storage_of(fake) for fake in self.written}
        return [self._by_fake[id(fake)] for fake, counted in changes if counted or storage_of(fake) in written]

    def uncounted(self) -> list[TensorValue]:
        """Such tensors whose versions do not say so."""
        counted = {id(fake) for fake, version in self._versions if fake._version != version}
        return [value for value in self.changed() if id(value.fake) not in counted]

    def input(self, tensor: torch.Tensor, source: Source) -> TensorValue:
        """A placeholder for a tensor that is read from `source`."""
        fake = self.fake_of(tensor)
        node = self.placeholder(_NAME.sub("_", str(source)).strip("_") or "tensor", fake)
        value = TensorValue(node, fake, source, type(tensor), tensor)
        self._by_fake[id(fake)] = value
        self.inputs.append(value)
        self._first_versions.extend(_versions([fake]))
        return value

    def made(self, name: str, made: Made, example: torch.Tensor) -> MadeTensor:
        """A placeholder for what a call before the graph gives, like `example`; raises Break: graphs are nested."""
        if self.outer is not None:
            raise Break("unsupported-call", "a tensor that no graph can make is made in a nested function")
        with _versions_kept():
            fake = self.mode.from_tensor(example, static_shapes=True)
        self.inference.met(example, fake)
        value = MadeTensor(self.placeholder(name, fake), fake, made, example)
        self._by_fake[id(fake)] = value
        self.made_inputs.append((value.node, value))
        return value

    def placeholder(self, name: str, fake: torch.Tensor) -> fx.Node:
        """A new node for an argument, behind those that there are."""
        while name in self._argument_names:  # `a.b` and `a_b` are two
            name += "_"
        self._argument_names.add(name)
        last = self._last_placeholder
        first = next(iter(self.graph.nodes), None)
        with self.graph.inserting_after(last) if last is not None else self.graph.inserting_before(first):
            node = self._last_placeholder = self.graph.placeholder(name)
        node.meta["val"] = fake
        return node

    def lift(self, node: fx.Node) -> fx.Node:
        """What stands in this graph for a node of it; raises Break: it is one of a graph that is nested in this one."""
        if node.graph is not self.graph:
            raise Break("unsupported-call", "a tensor that is made in a nested function is used outside of it")
        return node

    def attribute(self, tensor: torch.Tensor, path: str, source: Source) -> TensorValue:
        """A `get_attr` node for a tensor of a guarded module tree; one node a tensor."""
        attribute = self._attribute_nodes.get(id(tensor))
        if attribute is not None:
            return attribute
        name = _NAME.sub("_", path).strip("_")
        if not name or name[0].isdigit():
            name = f"attribute_{name}"
        while name in self.attributes:
            name += "_"
        self.attributes[name] = tensor
        node = self.graph.create_node("get_attr", name, (), {}, name=name)
        fake = self.fake_of(tensor)
        node.meta["val"] = fake
        value = TensorValue(node, fake, source, type(tensor), tensor)
        self._by_fake[id(fake)] = value
        self._attribute_nodes[id(tensor)] = value
        return value

    def constants(self) -> Iterator[tuple[Source, torch.Tensor, torch.Tensor]]:
        """Tensors of module trees that the graph holds: where they were read, themselves, and what is like them."""
        for value in self._attribute_nodes.values():
            if value.source is not None and value.obj is not None:
                yield value.source, value.obj, value.fake

    # -- calls ----------------------------------------------------------------

    def known(self, fake: torch.Tensor | None) -> TensorValue | None:
        """The value of a fake tensor."""
        return self._by_fake.get(id(fake))

    def last(self) -> fx.Node:
        """The last node so far."""
        return self.graph._root.prev

    def since(self, node: fx.Node) -> list[fx.Node]:
        """The nodes after one."""
        nodes: list[fx.Node] = []
        last = self.graph._root.prev
        while last is not node and last is not self.graph._root:
            nodes.append(last)
            last = last.prev
        return nodes[::-1]

    def copy(self, node: fx.Node, replaced: Mapping[fx.Node, fx.Node]) -> fx.Node:
        """Add a node like another one, of other arguments; what it computes has the same metadata."""
        return self.graph.node_copy(node, lambda used: replaced.get(used, used))

    def renew(self, node: fx.Node, like: Any) -> TensorValue:
        """The value of a copied node, with a fake tensor of its own."""
        with _versions_kept():
            fake: torch.Tensor = fake_of(self.mode, like)
            if fake.requires_grad:
                with self.mode:
                    fake = fake.clone()  # not a leaf
        node.meta["val"] = fake
        self.inference.give(like, fake)
        return self._tensor(node, fake)

    def call(self, interp: Interpreter, op: str, target: Callable[..., Any] | str, args: Args, kwargs: Kwargs) -> Value:
        """Add a node and give its result; numbers and None that the call returns become constants."""
        if interp.tracer.function_modes:  # this is no call of the program, but of a rule
            raise Break("unsupported-call", f"{_name_of(target)}() under a mode of functions")
        try:
            node_args = tuple([arg.realize().as_argument() for arg in args])
            node_kwargs = {name: arg.realize().as_argument() for name, arg in kwargs.items()}
        except Overridden:
            return overridden(interp, target, args, kwargs)
        except NumberInGraph:
            return call_with_floats(interp, op, target, args, kwargs)
        except Draws:
            return drawn(interp, op, target, args, kwargs)
        if node_kwargs.get("requires_grad") is True and not isinstance(target, str):
            return leaf_by_option(interp, target, args, kwargs)
        if target is operator.imatmul:  # tensors have none, and code for it would give the left operand's name away
            target = operator.matmul
        if target in _device_constructors() and node_kwargs.get("device") is None and (device := default_device()):
            node_kwargs["device"] = device  # where the graph runs, the mode may be another one or left
        if self.outer is not None:
            node_args, node_kwargs = fx.map_arg((node_args, node_kwargs), self.lift)  # type: ignore[assignment]
        fakes: list[torch.Tensor] = []

        def fake_of_node(node: fx.Node) -> Any:
            fake = node.meta["val"]
            if node.graph is not self.graph:
                self.lift(node)
            fakes.extend([fake] if isinstance(fake, torch.Tensor) else [])
            return fake

        fake_args = fx.map_arg(node_args, fake_of_node)
        fake_kwargs = fx.map_arg(node_kwargs, fake_of_node) if node_kwargs else {}
        versions = _versions(fakes)
        if self.written and interp.is_watched():
            self.watched = True
            if self.beyond_undoing:
                raise Break("unsupported-operation", f"{_name_of(target)} may raise after a write that can't be undone")
        if _name_of(target).removeprefix("linalg_") in _REFUSING and interp.is_watched():
            self.refusals_caught = True
        if isinstance(target, Nested):
            self.inference.check_nested(fakes)
        self.inference.check_used(fakes)
        before = len(self.sizes.sizes.data)
        hooks = interp.tracer.saving[-1:]
        with self.inference.noting(fakes, bool(hooks)) as saved:
            try:
                out = self._run(op, target, fake_args, fake_kwargs)
            except Break as error:
                if self.is_whole and "leaf Variable" in error.detail and _have_histories(interp, fakes):
                    return self.call(interp, op, target, args, kwargs)
                read = functools.partial(read_size, interp)
                numbers = interp.tracer.early.numbers(args, kwargs, read) if error.is_of_data() else None
                _let_catch(interp, error)
                if numbers is None:
                    raise
                return self.call(interp, op, target, *numbers)
        data_sized = len(self.sizes.sizes.data) > before or is_packed(target, node_args)
        declared = written_by(target, fake_args, fake_kwargs)  # the fake kernel of an operator of others may not write
        mutated = bool(declared) or versions != _versions(fakes) or (-1 in versions and _is_in_place(target, kwargs))
        if mutated:
            written = [f for f, v in zip(fakes, versions, strict=True) if v < 0 or v != f._version]
            written += [f for f in declared if all(f is not w for w in written)]
            self._note_written(target, fake_args, fakes, written)
        note_changed_wrappers(interp, None if mutated else fakes)
        self.changed_blindly |= mutated and -1 in versions
        if isinstance(out, torch.Tensor) and not mutated:
            value = self._by_fake.get(id(out))
            if value is not None and value.fake is out and _name_of(target).rstrip("_") + "_" == _name_of(target):
                raise Break("unsupported-call", f"{_name_of(target)}() changes what no graph records")
            if value is not None and value.fake is out and not isinstance(target, Nested):
                # `x.contiguous()` of a contiguous x is x; but the code in a checkpoint may still raise
                return value.owner or value
        with hooks[0].around(interp, saved) if hooks else _NOTHING:
            node = self.graph.create_node(op, target, node_args, node_kwargs)
            node.meta.update([("data_sized", True)] * data_sized, stack=interp.user_stack(), module=interp.module)
            self.op_count += 1
            return self._result(interp, node, out)

    def set_data(self, interp: Interpreter, value: TensorValue, data: TensorValue) -> None:
        """Let a tensor show the memory of another one, with a version of its own."""
        plain = TensorValue(data.node, data.fake)
        detached = self.call(interp, "call_function", getattr, (plain, ConstantValue("data")), {})
        before = TensorValue(value.node, value.fake, value.source, value.cls, value.obj)
        self._by_fake[id(value.fake)] = before
        self.inputs = [before if one is value else one for one in self.inputs]
        value.become(detached)
        self._by_fake[id(value.fake)] = value
        self.replaced.append(value)

    def _note_written(self, target: Any, args: Any, fakes: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        """Keep what a call wrote to; kernels refuse to write where a place is met twice, which fakes do not see."""
        self.written += written
        if self.read_only.intersection(map(storage_of, written)):
            raise Break("unsupported-operation", "a tensor that a parameter was made of is written to")
        inference = (value for value in self._by_fake.values() if value.obj is not None and value.obj.is_inference())
        self.inference.check_written(written, {storage_of(value.fake) for value in inference})
        if any(value.fake.requires_grad for value in self.replaced):
            raise Break("unsupported-operation", "a tensor is given a history of gradients after its data was set")
        if any(fake.requires_grad for fake in written):
            self.beyond_undoing = not all(value.differs_in_data() for value in self.changed())
        if self.refusals_caught and self.beyond_undoing and self.uncounted():
            raise Break("unsupported-operation", "calls that may raise are followed by a write that can't be undone")
        key = args[1] if target is operator.setitem and isinstance(args[1], tuple) else args[1:2]
        if target is operator.setitem and not all(k is None or k is ... or type(k) in (int, slice) for k in key):
            fakes = []  # a scatter looks only at the memory that it writes to
        elif target is operator.setitem:
            with self.mode:
                written, fakes = [args[0][args[1]]], [fake for fake in fakes if fake is args[2]]
        try:
            clashes = any(_clash(one, other) for one in written for other in (one, *fakes))
        except DataDecides:
            clashes = True
        if clashes:
            raise Break("unsupported-operation", f"{_name_of(target)} writes to memory that it meets twice")

    def add(self, interp: Interpreter, target: Callable[..., Any], args: Args, out: Any) -> Value:
        """Add a node whose results are known to be like the fake tensors in `out`."""
        if interp.tracer.saving and torch.is_grad_enabled():
            raise Break("unsupported-call", f"{_name_of(target)}() where hooks on saved tensors are set")
        node_args = tuple([arg.realize().as_argument() for arg in args])
        node = self.graph.create_node("call_function", target, fx.map_arg(node_args, self.lift), {})
        self.inference.check_nested([used.meta["val"] for used in node.all_input_nodes])
        node.meta["stack"] = interp.user_stack()
        self.op_count += 1
        return self._result(interp, node, out)

    def statement(self, interp: Interpreter, target: Callable[..., Any], args: tuple[Any, ...]) -> fx.Node:
        """Add a call that is made for its effect on the thread's modes."""
        self.switches.add(target)
        if target is torch.amp.autocast_mode._enter_autocast:
            self.sizes.sizes.takes_data = False  # a graph is cut at data's sizes, and a block of autocast is one piece
        node = self.graph.create_node("call_function", target, args, {})
        node.meta["stack"] = interp.user_stack()
        node.meta["val"] = None
        return node

    def sharing(self, fake: torch.Tensor) -> list[TensorValue]:
        """The values whose tensors show the memory of one."""
        mine = storage_of(fake)
        return [value for value in self._by_fake.values() if storage_of(value.fake) == mine]

    def _run(self, op: str, target: Any, args: Any, kwargs: Any) -> Any:
        shapes: Mapping[Any, Any] = {} if torch._C._autograd._top_saved_tensors_default_hooks(True) else SHAPES
        try:
            with _versions_kept(), refusing(self.mode), self.mode:
                if op == "call_method":
                    return with_kernels_in_python(lambda: getattr(args[0], target)(*args[1:], **kwargs))
                if target in (as_size, as_true):
                    return fake_size(self.sizes.sizes, *args)
                if is_packed(target, args):
                    if not self.sizes.sizes.takes_data:
                        raise DynamicOutputShapeException(target)
                    return PACKED[target](self, *args, **kwargs)
                return with_kernels_in_python(lambda: shapes.get(target, target)(*args, **kwargs), target, args, kwargs)
        except DataDependentOutputException as error:
            raise Break("data-dependent-value", f"{_name_of(target)} reads data ({error.func})") from error
        except DynamicOutputShapeException as error:
            raise Break("data-dependent-shape", f"the result of {_name_of(target)}") from error
        except UnsupportedOperatorException as error:
            raise Break("fake-tensor-failed", f"{error.func} has no fake implementation") from error
        except DataDecides as error:
            raise Break("data-dependent-branch", f"{_name_of(target)}: {error} of a size that data decide") from error
        except Exception as error:
            words = f"{_name_of(target)}: {type(error).__name__}: {str(error).split(chr(10), 1)[0]}"
            is_torch = isinstance(target, str) or _OF_TORCH.match(str(target.__module__))
            raises = functools.partial(_refusal, op, target, args, kwargs) if is_torch else None
            raise Break("fake-tensor-failed", words, raises=raises) from error

    def _result(self, interp: Interpreter, node: fx.Node, out: Any) -> Value:
        node.meta["val"] = out
        if isinstance(out, torch.Tensor):
            value = self._tensor(node, out)
            return value.owner or value
        if isinstance(out, Opaque):
            return OpaqueValue(node)
        if isinstance(out, (tuple, list)):
            items: list[Value] = []
            for index, item in enumerate(out):
                if isinstance(item, (torch.Tensor, tuple, list, dict, Opaque)):
                    child = self.graph.create_node("call_function", operator.getitem, (node, index), {})
                    child.meta.update({k: node.meta[k] for k in ("stack", "module") if k in node.meta})
                    items.append(self._result(interp, child, item))
                else:
                    items.append(interp.tracer.known(item))
            return ListValue(items) if type(out) is list else TupleValue(items, cls=type(out))
        if isinstance(out, dict):
            parts = {key: self.graph.create_node("call_function", operator.getitem, (node, key), {}) for key in out}
            return DictValue.of({key: self._result(interp, parts[key], item) for key, item in out.items()})
        if not node.all_input_nodes:
            self.graph.erase_node(node)
        return interp.tracer.known(out)

    def _tensor(self, node: fx.Node, fake: torch.Tensor) -> TensorValue:
        if is_wrapper(fake) and all(isinstance(leaf, FakeTensor) for leaf in leaves_of(fake)):
            return self._by_fake.setdefault(id(fake), WrapperValue(node, fake, cls=type(fake)))
        if not isinstance(fake, FakeTensor):
            raise Break("fake-tensor-failed", f"{_name_of(node.target)} gives a real tensor")
        existing = self._by_fake.get(id(fake))
        if existing is not None and existing.fake is fake:
            return existing  # an in-place operation returns its input
        value = TensorValue(node, fake)
        self._by_fake[id(fake)] = value
        self.inference.note(node, fake)
        self.sizes.read_data(value)
        return value

    # -- results ----------------------------------------------------------------

    def output(self, value: TensorValue) -> int:
        """Place of a tensor among the graph's results."""
        index = self._output_index.get(value)
        if index is None:
            if storage_of(value.fake) in self.copied:
                raise Break("no-reconstruction", "a tensor leaves that a leaf on its memory was made of")
            self.lift(value.node)
            self.inference.check_result(value.fake)
            base = self.known(self.inference.base_of(value.fake))
            if base is not None and base.obj is None:
                self.output(base)
            index = self._output_index[value] = len(self.outputs)
            self.outputs.append(value)
        return index

    def changes_inputs(self) -> bool:
        """Whether a call changes the data of an input."""
        written = {storage_of(fake) for fake in self.written}
        return (
            self.changed_blindly
            or self._first_versions != _versions([value.fake for value in self.inputs])
            or any(storage_of(value.fake) in written for value in self.inputs)
        )

    def close(self, interp: Interpreter) -> None:
        """Let the graph leave the thread's modes as they were; what the code changed for good is done after it."""
        while len(self.open_modes) > self.modes_at_start:
            if (leave := self.open_modes.pop().leave) is not None:
                leave(interp)
        if torch.is_grad_enabled() != self.grad_at_start and not self.closed:
            self.statement(interp, torch._C._set_grad_enabled, (self.grad_at_start,))
        self.closed = True

    def finish(self) -> fx.GraphModule | None:
        """Close the graph; None if it computes nothing. Inputs that nothing uses are dropped.

        Raises:
            HookRefused: a result has a hook, which autograd would not call for a gradient of the result itself.
            LeavesEscape: what it gives, or writes to, has a history that leads to a leaf of its own.
        """
        results = [value.node for value in self.outputs]
        if getattr(self.histories, "own_leaves", ()):
            with_history = [v for v in (*self.outputs, *self.changed()) if v.fake.requires_grad and not is_new_leaf(v)]
            if self.histories.escape(with_history):
                raise LeavesEscape
        hooked = {id(n.args[0].meta["val"]) for n in self.graph.nodes if isinstance(n.target, Hooked)}  # type: ignore[union-attr]
        if hooked and any(id(value.fake) in hooked for value in self.outputs):
            raise HookRefused("Tensor.register_hook() is called on a tensor that leaves the graph")
        unread = [] if self.outer is not None else _unread_checks(self.graph, results)
        self.unread = len(unread)
        self.graph.output((*results, *unread))
        self._drop_unused()
        if not any(node.op in ("call_function", "call_method") for node in self.graph.nodes):
            return None
        root = torch.nn.Module()
        for name, tensor in self.attributes.items():
            if isinstance(tensor, torch.nn.Parameter):
                root.register_parameter(name, tensor)
            else:
                root.register_buffer(name, tensor)
        module = _LazyGraphModule(root, self.graph)
        module.meta["fake_mode"] = self.mode
        prelude = [node for node, _ in self.made_inputs if not node.meta["val"]._version]
        module.meta["uncounted"] = frozenset(node.name for node in (*prelude, *(v.node for v in self.uncounted())))
        return module

    def _drop_unused(self) -> None:
        sizes = self.sizes.sizes  # what is expected of a number in a tensor is looked for where it is read
        expected = any(sizes.of_data(fact.difference) for fact in sizes.facts.values())
        for node in reversed(list(self.graph.nodes)):
            if node.users or node.op == "output" or (expected and node.target is as_size):
                continue
            if node.op in ("placeholder", "get_attr") or _is_pure(node):
                if node.op == "get_attr":
                    self.attributes.pop(node.target, None)
                self.graph.erase_node(node)
        self.inputs = [value for value in self.inputs if not value.node._erased]
        self.made_inputs = [one for one in self.made_inputs if not one[0]._erased]


def _unread_checks(graph: fx.Graph, results: list[fx.Node]) -> list[fx.Node]:
    """Calls that may refuse their arguments and that no result needs."""
    live, unread = set(results), []
    for node in reversed(graph.nodes):
        inputs, value = node.all_input_nodes, node.meta.get("val")
        writes = value is None or any(value is one.meta.get("val") for one in inputs)
        if node not in live and not writes:
            indexed = node.target is operator.getitem and len(inputs) > 1
            named = node.op != "placeholder" and _name_of(node.target).removeprefix("linalg_") in _REFUSING
            if not (named or indexed) or not isinstance(value, torch.Tensor):
                continue
            unread.append(node)
        live.update(inputs)
    return unread[::-1]


def arguments(graph: GraphBuilder) -> list[TensorValue]:
    """The values of a graph's placeholders, in their order."""
    values: dict[fx.Node, TensorValue] = {value.node: value for value in graph.inputs}
    values.update(graph.made_inputs)
    return [values[node] for node in graph.graph.nodes if node.op == "placeholder"]


def examples(graph: GraphBuilder) -> list[Any]:
    """A tensor like each argument of a graph."""
    return [value.example if isinstance(value, MadeTensor) else value.obj for value in arguments(graph)]


_LARGEST_REAL = 1 << 22
_OF_TORCH = re.compile(r"(torch|_operator)\b(?!\._ops\.(?!aten))")


def _have_histories(interp: Interpreter, fakes: list[torch.Tensor]) -> bool:
    """Whether inputs were leaves as fake tensors alone; now they have a history, as what they are like, and can be
    written to. Such graphs have no gradients of gradients, so it is better done by Python where that may be."""
    graph, places = interp.tracer.graph, {*map(storage_of, fakes)}
    inputs = [v for v in graph.inputs if v.fake.requires_grad and v.fake.is_leaf and storage_of(v.fake) in places]
    inputs = [value for value in inputs if value.obj is not None and not value.obj.is_leaf]
    for value in inputs:
        if value.get_attr(interp, "retains_grad").as_constant():  # torch's autograd functions fail for those
            raise Break("unsupported-operation", f"{value.source} is written to, whose gradient is to be retained")
        with graph.mode:
            history = torch.zeros((), dtype=value.fake.dtype, device=value.fake.device, requires_grad=True)
            value.fake.requires_grad_(False).copy_(history)
    return bool(inputs)


def _let_catch(interp: Interpreter, error: Break) -> None:
    """Raise what a call that fails on fake tensors raises for real, where the program handles exceptions."""
    if interp.is_caught() and not interp.tracer.symbols.in_use() and (refusal := error.raises()):
        refusal.__context__ = refusal.__traceback__ = None  # their frames hold what the program lets go
        interp.raise_real(refusal)


def _refusal(op: str, target: Any, args: Any, kwargs: Any) -> Exception | None:
    """What a call raises for real too, on tensors of ones."""

    def real(fake: Any) -> Any:
        if not isinstance(fake, torch.Tensor):
            return fake
        if fake.numel() > _LARGEST_REAL or is_wrapper(fake):
            raise MemoryError
        return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device).fill_(1)

    state = torch.get_rng_state()
    try:
        positional, named = pytree.tree_map(real, (args, kwargs))
    except Exception:  # noqa: BLE001  such a tensor can't be made
        return None
    try:
        # Bound, a method would be named after the object's class in what it refuses.
        (getattr(type(positional[0]), target) if op == "call_method" else target)(*positional, **named)
    except Exception as error:  # noqa: BLE001  the user's program gets it when it runs
        return error
    finally:
        torch.set_rng_state(state)
    return None


def _versions_kept() -> contextlib.AbstractContextManager[Any]:
    """In inference mode, make fake tensors that count writes all the same: it is how writes are noticed.

    No gradients are recorded there, even where they are switched on.
    """
    if not torch.is_inference_mode_enabled():
        return _NOTHING
    stack = contextlib.ExitStack()
    stack.enter_context(torch.inference_mode(mode=False))
    stack.enter_context(torch.no_grad())
    return stack


_NOTHING = contextlib.nullcontext()


def _versions(tensors: Sequence[Any]) -> list[int]:
    """Version counters; -1 for inference tensors, which have none."""
    plain = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return [-1 if tensor.is_inference() else tensor._version for tensor in plain]


def _moving(tensor: torch.Tensor) -> list[Any]:
    """The strides of dimensions in which there is more than one place."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def _clash(written: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a kernel that writes to one tensor and reads the other finds that they overlap in part."""
    if written is other:
        dims = zip(written.shape, written.stride(), strict=True)  # a stride that is a size is that of a dense tensor
        return any(type(stride) is int and stride == 0 and size > 1 for size, stride in dims)
    if storage_of(written) != storage_of(other) or not written.numel() or not other.numel():
        return False
    if any(dense_strides(tensor) != tensor.stride() for tensor in (written, other)):
        return False  # kernels do not look so close
    begin, end = written.storage_offset(), other.storage_offset()
    if begin == end and written.numel() == other.numel():
        return _moving(written) != _moving(other)
    return begin < end + other.numel() and end < begin + written.numel()


def _is_in_place(target: Any, kwargs: Kwargs) -> bool:
    name = _name_of(target)
    return name.endswith("_") or name.startswith(("i", "set")) or "out" in kwargs or "inplace" in kwargs


PURE: frozenset[Any] = frozenset(
    (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.matmul)
    + (operator.and_, operator.or_, operator.neg, operator.invert)
    + (operator.eq, operator.ne, operator.ge, operator.gt, operator.le, operator.lt, getattr)
    + (torch.arange, torch.cat, torch.matmul, torch.ones, torch.sym_max, torch.sym_min, torch.zeros)
)
"""Functions whose calls may be dropped if nothing uses the result."""

PURE_METHODS = frozenset(
    {"contiguous", "detach", "expand", "flatten", "permute", "reshape", "size", "transpose", "unsqueeze", "view"}
)
"""Methods whose calls may be dropped if nothing uses the result."""


def _is_pure(node: fx.Node) -> bool:
    """Whether nothing is lost with a call whose result is not used; unsure means no."""
    if "out" in node.kwargs or node.kwargs.get("inplace") or node.op not in ("call_function", "call_method"):
        return False
    if node.target is operator.getitem or isinstance(node.target, Wrap):
        return True
    if node.target is as_size:
        return is_integer(node.args[0].meta["val"])  # type: ignore[union-attr,arg-type]
    return node.target in PURE or (node.op == "call_method" and node.target in PURE_METHODS)


def _name_of(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))
