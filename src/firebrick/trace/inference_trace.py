"""Traces a torch-level graph that needs no gradients to functional, decomposed ATen."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.fx.immutable_collections import immutable_list

from firebrick.config import Config
from firebrick.errors import LoweringError
from firebrick.fakes.mode import dispatches_itself, hooks_paused, new_fake_mode, with_kernels_in_python
from firebrick.fakes.strides import is_dense
from firebrick.ir.graph.aten import Alias, AtenGraph
from firebrick.ir.graph.calls import is_mutating, tensors_in
from firebrick.ir.index.sizes import expressions, has_symbols, size_of
from firebrick.runtime.bits import Bits, bits_of
from firebrick.targets.base import Target
from firebrick.trace.aliasing import Origin, Storage, Value, overlaps, restrided, switched
from firebrick.trace.attention_recipes import attention_functions
from firebrick.trace.function_recipes import FUNCTIONS
from firebrick.trace.recurrent_recipes import recurrent_functions
from firebrick.trace.tape import Record, module_of
from firebrick.trace.tracer import Tracer, fake_like

aten = torch.ops.aten

GRAD_MODE_TARGETS: frozenset[Any] = frozenset({torch._C._set_grad_enabled, torch.set_grad_enabled})
"""Calls of the graph that only switch grad mode: nothing here requires a gradient, so they are left out."""


def needs_grad(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Say whether running `gm` under the present grad mode can build an autograd graph."""
    switches = any(n.op == "call_function" and n.target in GRAD_MODE_TARGETS for n in gm.graph.nodes)
    if torch.is_inference_mode_enabled() or (not torch.is_grad_enabled() and not switches):
        return False
    tensors = [t for t in example_inputs if isinstance(t, torch.Tensor)]
    captured = (attrgetter(str(n.target))(gm) for n in gm.graph.nodes if n.op == "get_attr")
    tensors += [t for t in captured if isinstance(t, torch.Tensor)]
    if any(n.op == "call_module" for n in gm.graph.nodes):
        tensors += list(gm.parameters())
    return any(t.requires_grad for t in tensors) and _outputs_require_grad(gm)


def _outputs_require_grad(gm: fx.GraphModule) -> bool:
    """Believe the metadata of the graph's nodes, if capture left any."""
    inputs, results = gm.graph.find_nodes(op="placeholder"), gm.graph.output_node().all_input_nodes
    if any(n.meta.get("val") is None for n in (*inputs, *results)):
        return True
    if any(v.requires_grad for n in results for v in tensors_in(n.meta["val"])):
        return True
    return any(map(is_mutating, gm.graph.nodes))  # a tensor of the caller's may have a history then


def trace_alone(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config, targets: Mapping[str, Target] | None = None
) -> AtenGraph:
    """Trace `gm`, with calls for which `targets` have kernels; raises LoweringError: it has no functional form."""
    exact = config.numerics == "eager"
    functions = FUNCTIONS | recurrent_functions(targets) | attention_functions(targets) if targets else FUNCTIONS
    return Trace(gm, example_inputs, exact, functions).run()


def trace_function(function: Callable[..., Any], examples: Sequence[torch.Tensor]) -> fx.GraphModule:
    """Trace a function of tensors to functional ATen calls; patterns and replacements of passes are made so."""
    modes = [e.fake_mode for e in examples if isinstance(e, FakeTensor)]
    tracer = Tracer(modes[0] if modes else new_fake_mode())
    inputs = []
    with tracing_state():
        for i, example in enumerate(examples):
            fake = fake_like(tracer.fake_mode, example)
            record = tracer.tape.add("placeholder", (f"in_{i}",), {}, fake)
            tracer.fresh(record, fake, Origin("input", f"in_{i}", i))
            inputs.append(record)
        with tracer:
            result = function(*(record.val for record in inputs))
        results = result if isinstance(result, (tuple, list)) else (result,)
        flat = [tracer.read(tracer.value_of(r)) if isinstance(r, torch.Tensor) else r for r in results]
    return module_of(tracer.tape.to_graph(inputs, flat), tracer.constants)[0]


@contextmanager
def tracing_state(grad: bool = False) -> Iterator[None]:
    """The state of this thread while calls run on fake tensors; `grad`: the autograd engine records them."""
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        anomaly = torch.autograd.set_detect_anomaly(False)  # it would look for NaN in fake tensors
        alone = torch.autograd.set_multithreading_enabled(False)
        with hooks_paused(), anomaly, torch.inference_mode(False), torch.set_grad_enabled(grad), alone:
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)


class Trace:
    """One run over the nodes of a torch-level graph; records: autograd knows of the calls."""

    records = False

    def __init__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        exact: bool = False,
        functions: Mapping[Any, Callable[..., Any]] = FUNCTIONS,
    ) -> None:
        self.gm, self.example_inputs, self.functions = gm, example_inputs, functions
        mode = next((e.fake_mode for e in example_inputs if isinstance(e, FakeTensor)), gm.meta.get("fake_mode"))
        self.tracer = Tracer(mode if isinstance(mode, FakeTensorMode) else new_fake_mode(), exact)
        self.tape = self.tracer.tape
        self.regions: list[Any] = []  # autocast regions that are open
        self.env: dict[fx.Node, Any] = {}
        self.inputs: list[Value] = []
        self.names = {id(t): n for n, t in (*gm.named_parameters(), *gm.named_buffers())}

    def run(self) -> AtenGraph:
        """Trace the graph."""
        with tracing_state(self.records and torch.is_grad_enabled()):
            return Finish(self, self.walk()).run()

    def walk(self) -> Any:
        """Run every node; returns what the graph returns."""
        result: Any = ()
        try:
            for node in self.gm.graph.nodes:
                self.tape.stack = node.meta.get("stack", ())
                if node.op == "output":
                    result = self.returned(node)
                else:
                    self.env[node] = self.node(node)
        finally:
            for region in reversed(self.regions):
                _exit_autocast(region)
        return result

    # ------------------------------------------------------------ nodes

    def node(self, node: fx.Node) -> Any:
        """What a node stands for in those that follow."""
        return getattr(self, f"_{node.op}")(node)

    def returned(self, node: fx.Node) -> Any:
        """What the graph returns."""
        return self._resolve(node.args[0])

    def _placeholder(self, node: fx.Node) -> Any:
        index = len(self.inputs)
        example = self.example_inputs[index]
        if not isinstance(example, torch.Tensor):
            raise LoweringError(f"graph input {node.name} is a {type(example).__name__}, not a tensor")
        fake = example if isinstance(example, FakeTensor) else node.meta.get("val")
        if not isinstance(fake, FakeTensor) or fake.fake_mode is not self.tracer.fake_mode or _is_turned(fake, example):
            fake = fake_like(self.tracer.fake_mode, example)
        if has_symbols(fake) or any(fake is v.fake for v in self.inputs):
            fake = fake_like(self.tracer.fake_mode, fake)
        value = self.tracer.value_from("placeholder", fake, Origin("input", node.name, index))
        self.inputs.append(value)
        return value

    def _get_attr(self, node: fx.Node) -> Any:
        attribute = attrgetter(str(node.target))(self.gm)
        if not isinstance(attribute, torch.Tensor):
            return attribute
        fake = node.meta.get("val")
        if not isinstance(fake, FakeTensor) or fake.fake_mode is not self.tracer.fake_mode:
            fake = None
        return self.tracer.constant(attribute, str(node.target).replace(".", "_"), fake)

    def _call_module(self, node: fx.Node) -> Any:
        module = self.gm.get_submodule(str(node.target))
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            self.tracer.constant(tensor, f"{node.target}.{name}".replace(".", "_"))
        return self._dispatch(module, node)

    def _call_method(self, node: fx.Node) -> Any:
        return self._dispatch(str(node.target), node)

    def _call_function(self, node: fx.Node) -> Any:
        if node.target in GRAD_MODE_TARGETS:
            return torch._C._set_grad_enabled(self.records and bool(node.args[0]))
        if node.target is _enter_autocast:
            self.regions.append(_enter_autocast(*node.args, **node.kwargs))
            torch.set_autocast_cache_enabled(False)  # a region sets it, and capture's fakes may still lie in the cache
            return self.regions[-1]
        if node.target is _exit_autocast:
            region = self.env[node.args[0]]  # type: ignore[index]
            self.regions = [r for r in self.regions if r is not region]
            return _exit_autocast(region)
        if node.target is operator.getitem:
            container = self._resolve(node.args[0])
            if not isinstance(container, Value):
                return container[self._resolve(node.args[1])]
        return self._dispatch(node.target, node)

    def _resolve(self, arg: Any) -> Any:
        """Replace nodes by what they stand for."""
        return _mapped(arg, fx.Node, self.env.__getitem__)

    def _dispatch(self, target: Any, node: fx.Node) -> Any:
        """Call for real, on fake tensors, under the tracer."""
        args = self._bound(self._resolve(node.args))
        kwargs = self._bound(self._resolve(node.kwargs))
        with self.tracer:
            method = isinstance(target, str)
            recipe = self.functions.get(getattr(torch.Tensor, target, None) if method else target)
            result = NotImplemented
            if recipe is not None:
                result = with_kernels_in_python(lambda: recipe(*args, **kwargs))
            if result is NotImplemented:
                run = getattr(args[0], target) if method else target
                result = with_kernels_in_python(lambda: run(*args[method:], **kwargs))
        return self._values(result)

    def _bound(self, arg: Any) -> Any:
        return _mapped(arg, Value, self.tracer.bind)

    def _values(self, result: Any) -> Any:
        value_of = self.tracer.value_of
        return _mapped(result, torch.Tensor, lambda t: t if dispatches_itself(type(t)) else value_of(t))


def _mapped(arg: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """An argument or result with a function of what is of this kind in its place."""
    if isinstance(arg, kind):
        return function(arg)
    if isinstance(arg, (tuple, list)):
        return _rebuild(arg, [_mapped(a, kind, function) for a in arg])
    if isinstance(arg, dict):
        return {k: _mapped(v, kind, function) for k, v in arg.items()}
    if isinstance(arg, slice):
        return slice(*[_mapped(end, kind, function) for end in (arg.start, arg.stop, arg.step)])
    return arg


def _rebuild(value: Any, items: list[Any]) -> Any:
    """Make a sequence of `value`'s type from `items`."""
    kind = type(value)
    if kind is immutable_list:
        return items
    if kind is torch.Size and any(isinstance(i, Value) for i in items):
        return tuple(items)
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


class Finish:
    """Decides how each output is returned and which inputs are written back, then makes the graph.

    keeps_bits: results have the negative and conjugate bits that they have in eager mode.
    """

    keeps_bits = True

    def __init__(self, trace: Trace, result: Any) -> None:
        self.trace, self.tracer = trace, trace.tracer
        self.results = list(result) if isinstance(result, (tuple, list)) else [result]
        self.flat: list[Any] = []  # the graph's outputs: records and plain values
        self.shown: dict[int, FakeTensor] = {}  # position in `flat` -> the tensor of the trace that it is
        self.mutated: dict[Origin, Storage] = {}
        self.outputs: list[Alias | None] = []
        self.bits: dict[str | int, Bits] = {}  # of outputs that have any

    def run(self) -> AtenGraph:
        """Make the graph."""
        self.find_results()
        gm, constants = self.graph(self.flat)
        names = [o.name for o in self.mutated]
        frozen, bits = frozenset(constants) - set(names), {**self.tracer.bits, **self.bits}
        return AtenGraph(gm, constants, names, self.outputs, frozen, bits=bits)

    def find_results(self) -> None:
        """Fill `flat`, `shown`, `mutated` and `outputs`."""
        self.mutated = self._mutations()
        for position, storage in enumerate(self.mutated.values()):
            self.shown[position] = storage.base
            self.flat.append(self._own(storage.record, storage.record))
        self.outputs = self._outputs()

    def graph(self, flat: list[Any]) -> tuple[fx.GraphModule, dict[str, torch.Tensor]]:
        """Make the graph that returns `flat`, and the constants that it reads."""
        tape = self.tracer.tape
        placeholders = [r for r in tape.records if r.op == "placeholder"]
        shown = {o.name for o in self.mutated if o.kind == "const"}
        shown |= {str(a.index) for a in self.outputs if a is not None and a.base == "const"}
        return module_of(tape.to_graph(placeholders, flat, shown), self.tracer.constants)

    def _mutations(self) -> dict[Origin, Storage]:
        """Return the storages of inputs and constants that were written, inputs first."""
        written: dict[Origin, Storage] = {}
        for value in (*self.trace.inputs, *self.tracer._constant_values.values()):
            origin = value.storage.origin
            if value.storage.version and origin is not None and origin.name not in self.tracer.literals:
                written[origin] = value.storage
        self._check_overlap(written)
        for origin, storage in written.items():
            if overlaps(storage.base):
                raise LoweringError(f"{origin.name} is written and holds several elements in one place")
        return written

    def _check_overlap(self, written: dict[Origin, Storage]) -> None:
        """Two tensors of the caller that share memory are two values here: right only while neither is written."""
        if not written:
            return
        inputs = [n.name for n in self.trace.gm.graph.nodes if n.op == "placeholder"]
        tensors = {("input", name): t for name, t in zip(inputs, self.trace.example_inputs, strict=False)}
        tensors |= {("const", name): t for name, t in self.tracer.constants.items()}
        owners = Counter(t.untyped_storage()._cdata for t in tensors.values() if t.layout == torch.strided)
        for origin in written:
            if owners[tensors[origin.kind, origin.name].untyped_storage()._cdata] > 1:
                raise LoweringError(f"{origin.name} is written and shares memory with another tensor of the graph")

    def _own(self, record: Record, root: Record) -> Record:
        """Copy a record whose root is another tensor of the caller, or that another output already returns."""
        if root.op in ("placeholder", "get_attr") or any(record is r for r in self.flat):
            return self.tracer.emit(aten.clone.default, record)
        return record

    def _outputs(self) -> list[Alias | None]:
        counts = Counter(id(r.storage) for r in self.results if isinstance(r, Value))
        outputs: list[Alias | None] = []
        bases: dict[int, int] = {}
        extra: list[Any] = []
        first_extra = len(self.flat) + len(self.results)
        for result in self.results:
            if not isinstance(result, Value):
                self.flat.append(result)
                outputs.append(None)
                continue
            if self.keeps_bits and any(bits_of(result.fake)):
                self.bits[len(outputs)] = bits_of(result.fake)
            storage, origin = result.storage, result.storage.origin
            if origin is not None and origin.name not in self.tracer.literals:
                index = origin.position if origin.kind == "input" else origin.name
                outputs.append(self._alias(origin.kind, index, result))
                self.flat.append(None)
            elif counts[id(storage)] == 1:
                self.shown[len(self.flat)] = result.fake
                self.flat.append(self._returned(result))
                outputs.append(None)
            elif id(storage) in bases:
                outputs.append(self._alias("output", bases[id(storage)], result))
                self.flat.append(None)
            elif not result.chain:
                bases[id(storage)] = len(self.flat)
                self.shown[len(self.flat)] = storage.base
                self.flat.append(_whole(self._returned(result), storage))
                outputs.append(None)
            else:
                bases[id(storage)] = first_extra + len(extra)
                self.shown[first_extra + len(extra)] = storage.base
                extra.append(_whole(self._own(storage.record, storage.record), storage))
                outputs.append(self._alias("output", bases[id(storage)], result))
                self.flat.append(None)
        self.flat += extra
        return outputs

    def _alias(self, kind: str, index: int | str, value: Value) -> Alias:
        fake, base, origin = value.fake, value.storage.base, value.storage.origin
        if not self.keeps_bits and (any(bits_of(fake)) or (origin is not None and origin.name in self.tracer.bits)):
            raise LoweringError("a result that needs gradients is the negative or conjugate view of another tensor")
        if fake.dtype.itemsize != base.dtype.itemsize:
            raise LoweringError(
                "a result shows the parts of complex numbers of another tensor, or its bytes as numbers of another size"
            )
        offset = size_of(fake.storage_offset()) - size_of(base.storage_offset())
        dtype = fake.dtype if fake.dtype != base.dtype else None
        return Alias(kind, index, expressions(fake.shape), expressions(fake.stride()), offset, dtype)

    def _returned(self, value: Value) -> Record:
        record = self.tracer.read(value)
        if self.keeps_bits:
            record = switched(record, bits_of(value.fake), self.tracer.emit)
        record = restrided(record, value.fake, self.tracer.emit)
        root = record
        while isinstance(root.op, torch._ops.OpOverload) and root.op.is_view:
            root = root.args[0]
        return self._own(record, root)


def _whole(record: Record, storage: Storage) -> Record:
    """The record, which other results are views of: they go by the strides that the memory has in eager mode."""
    strides = tuple(storage.base.stride())
    if not is_dense(storage.base.shape, strides) and tuple(record.val.stride()) != strides:
        raise LoweringError("several results are views of memory with gaps that was written")
    return record


def _is_turned(fake: FakeTensor, example: torch.Tensor) -> bool:
    """Whether the graph makes another view of its argument, in place: capture's fake tensor lies as that at its end."""
    if has_symbols(fake) or fake.numel() != example.numel():  # resized: an `out=` argument
        return False
    return (fake.shape, fake.stride()) != (example.shape, example.stride())


_DEVICES = ("cpu", "cuda")


class TracingState:
    """The grad and inference mode, autocast and default dtype of the thread that makes it."""

    def __init__(self) -> None:
        self.grad, self.dtype = torch.is_grad_enabled(), torch.get_default_dtype()
        self.inference = torch.is_inference_mode_enabled()
        self.autocast = {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Have this state in the block: a backward is traced when nobody remembers what the forward ran under."""
        now = TracingState()
        with ExitStack() as stack:
            if now.inference != self.inference:
                stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for device, (enabled, dtype) in self.autocast.items():
                if now.autocast[device] != (enabled, dtype):
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            torch.set_default_dtype(self.dtype)
            stack.callback(torch.set_default_dtype, now.dtype)
            yield


def fakes_of(tensors: Sequence[Any]) -> list[Any]:
    """Return fake tensors with the metadata of `tensors`."""
    mode = new_fake_mode()
    return [fake_like(mode, t, grad=True) if isinstance(t, torch.Tensor) else t for t in tensors]
