"""Which callables of torch go into the graph, and rules for those that do not."""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
import torch._jit_internal
import torch.fx.traceback
import torch.jit._trace
import torch.nn.functional
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.guards.sources import Applied, Pick, is_picked
from firebrick.capture.interpreter.function_modes import overridden, overrides_calls, under_mode
from firebrick.capture.library.autograd_functions import Named
from firebrick.capture.library.known_callables import (
    CODE_HANDLERS,
    FOLDABLE,
    FOLDABLE_MODULES,
    GRAPH_FUNCTIONS,
    GRAPH_TYPES,
    NAMED,
    TRANSPARENT,
    TRANSPARENT_MODULES,
    handles,
    handles_all,
    handles_each,
    key_of,
    replaces,
    unwrapped,
)
from firebrick.capture.library.polyfills import index_by_tensors
from firebrick.capture.library.torch_settings import fixed_call, say, told
from firebrick.capture.marks import graph_break
from firebrick.capture.values.array import ArrayValue
from firebrick.capture.values.base import Args, Interpreter, Kwargs, NotConstant, Value
from firebrick.capture.values.computed import ComputedValue, tensor_of_open
from firebrick.capture.values.constant import CONSTANT_METHODS, NONE, ConstantValue, is_none
from firebrick.capture.values.context_manager import ContextValue
from firebrick.capture.values.made import NumberValue, tensor_of_number
from firebrick.capture.values.mapping import DictValue
from firebrick.capture.values.module import ModuleValue
from firebrick.capture.values.scalar import expect, is_late, may_be_expected
from firebrick.capture.values.sequence import ListValue, SequenceValue, TupleValue
from firebrick.capture.values.size import SizeValue
from firebrick.capture.values.subclass import as_subclass, make_subclass
from firebrick.capture.values.tensor import TENSOR_METHODS, TensorValue
from firebrick.capture.values.wrapper import WrapperValue, call_with_objects

# -- the graph's functions ---------------------------------------------------------------------

_NAMESPACES: tuple[Any, ...] = (
    torch, torch._C._VariableFunctions, torch._C._nn, torch.nn.functional, torch.special, torch.linalg, torch.fft,
    torch.functional, vars(torch._C)["_sparse"],
)  # fmt: skip

_NOT_IN_GRAPH = frozenset(
    name
    for names in (
        "compile save load manual_seed seed initial_seed set_rng_state get_rng_state is_tensor set_default_dtype",
        "set_default_device set_default_tensor_type set_num_threads set_printoptions set_num_interop_threads",
        "use_deterministic_algorithms set_autocast_enabled set_flush_denormal from_numpy frombuffer is_storage",
        "typename vmap cond while_loop set_warn_always import_ir_module set_float32_matmul_precision from_dlpack",
        "to_dlpack fork wait has_torch_function has_torch_function_unary has_torch_function_variadic",
        "assert_int_or_pair overload boolean_dispatch get_device_module _assert is_autocast_cpu_enabled",
        "get_autocast_cpu_dtype get_autocast_gpu_dtype get_deterministic_debug_mode sym_int sym_float sym_max sym_min",
        "sym_not sym_sum sym_sqrt sym_ite sym_fresh_size classproperty get_file_path unravel_index",
        "prepare_multiprocessing_environment set_deterministic_debug_mode",
    )
    for name in names.split()
)
"""Functions of these namespaces that are no operations on tensors."""


def _collect() -> None:
    for namespace in _NAMESPACES:
        for name in dir(namespace):
            if name in _NOT_IN_GRAPH or name.startswith(("__", "_check")):
                continue
            function = getattr(namespace, name, None)
            if isinstance(function, (types.BuiltinFunctionType, types.FunctionType, types.BuiltinMethodType)) or (
                type(function).__name__ == "builtin_function_or_method"
            ):
                if getattr(function, "__module__", None) in ("typing", "functools", "importlib", "torch.overrides"):
                    continue
                GRAPH_FUNCTIONS[id(function)] = function


_collect()
GRAPH_FUNCTIONS.update({id(function): function for function in (forward_ad.make_dual, forward_ad.unpack_dual)})
GRAPH_TYPES.extend((torch._ops.OpOverload, torch._ops.OpOverloadPacket))

# -- state that can be asked ---------------------------------------------------------------------


def _asks(*functions: Any, state: str = "") -> None:
    """Functions that are called now; what they tell is guarded at all times, or as a kind of state."""

    @handles_each(*functions)
    def rule(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        if state:
            interp.tracer.guards.state(state)
        return interp.fold(function, args, kwargs)


_asks(
    *(torch.is_grad_enabled, torch.get_default_dtype, torch.get_default_device, torch.is_warn_always_enabled),
    *(torch.is_autocast_enabled, torch.get_autocast_dtype, torch.is_autocast_cache_enabled),
    *(torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled),
    *(torch.cuda.is_available, torch.cuda.device_count, torch.cuda.is_current_stream_capturing),
    *(torch.backends.mps.is_available, torch.distributed.is_available, torch.distributed.is_initialized),
    *(torch.finfo, torch.iinfo, torch.device, torch.dtype, torch.promote_types, torch.can_cast),
    torch.torch_version.TorchVersion,
    *(torch._C._nn._parse_to, torch._C._get_tracing_state, torch._C._functorch.maybe_current_level),
)


handles(torch._C._are_functorch_transforms_active)(
    lambda at, *_: ConstantValue(at.tracer.graph.in_transform or torch._C._are_functorch_transforms_active())
)


_asks(torch.get_num_threads, state="THREADS")
_asks(torch.get_float32_matmul_precision, state="MATMUL_PRECISION")


def _constant(value: Any, *functions: Any) -> None:
    handles(*functions)(lambda interp, args, kwargs: ConstantValue(value))


_constant(
    False, torch._jit_internal.is_scripting, torch.jit._trace.is_tracing, torch.fx._symbolic_trace.is_fx_tracing,
    torch.onnx.is_in_onnx_export, torch.compiler.is_exporting, torch._C._is_tracing,
)  # fmt: skip


@handles_each(torch.nn.ModuleList.__getitem__, torch.nn.Sequential.__getitem__)
def _item_of_modules(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """The module at a place that varies is whichever lies there: what is captured serves all that are alike."""
    modules, place = [arg.realize() for arg in args]
    fixed = not is_picked(modules.source) and interp.tracer.graph.outer is None
    if fixed and isinstance(modules, ModuleValue) and "_modules" not in modules.fields and isinstance(place, SizeValue):
        nodes, obj, expr = place.nodes, modules.obj, place.nodes.sizes.settled(place.expr)
        within = not nodes.sizes.of_data(expr) and nodes.asked(">=", expr, 0) and nodes.asked("<", expr, len(obj))
        if within and len([*expr.vars()]) == 1:
            (symbol,) = expr.vars()
            source, owner = nodes.operand(symbol), str(modules.source).replace("{", "{{").replace("}", "}}")
            text = f"{owner}[{expr.show().replace(symbol.name, '{0.base}')}]"
            pick = Pick(weakref.ref(obj), text, lambda number: expr.evaluate({symbol.name: number}))
            return interp.tracer.read(obj[nodes.sizes.hint(expr)], Applied(source, pick, text))
    return interp.inline(interp.tracer.function(function), args, kwargs)


_CALL_IMPL: Any = torch.nn.Module._call_impl


@handles(torch.compiler.is_compiling)
def _is_compiling(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return ConstantValue(interp.code is not _CALL_IMPL.__code__)  # which would call fewer hooks where code raises


_constant(0, torch._C._len_torch_dispatch_stack)  # nothing is captured under a mode


@handles(*(getattr(torch.overrides, "has_torch_function" + end) for end in ("", "_unary", "_variadic")))
def _has_torch_function(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return ConstantValue(
        bool(interp.tracer.function_modes)
        or any(overrides_calls(value) for arg in args for value in (arg.realize(), *arg.realize().children()))
    )


def _handle_torch_function(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not interp.tracer.function_modes:
        return overridden(interp, args[0].realize().as_constant(), args[2:], kwargs)
    kinds = [arg.realize().python_type() for arg in interp.iterate(args[1])]
    if not {*kinds} <= {torch.Tensor, torch.nn.Parameter}:
        raise Break("tensor-subclass", "a tensor of another class under a mode of functions")
    types = TupleValue([interp.tracer.known(kind) for kind in dict.fromkeys(kinds)])
    return under_mode(interp, [args[0], types, TupleValue(list(args[2:])), DictValue.of(kwargs)])


@handles(torch.Size)
def _size(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    items = list(interp.iterate(args[0])) if args else []
    return TupleValue([ConstantValue(interp.index_of(item)) for item in items], cls=torch.Size)


def _expect_true(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    """What `torch._check` and its kin ask of their condition."""
    condition = args[0].realize()
    if not may_be_expected(interp, condition):
        return ConstantValue(condition.truth(interp))
    expect(interp, condition)
    return ConstantValue(True)


NAMED["torch.fx.experimental.symbolic_shapes", "expect_true"] = _expect_true
NAMED["torch.fx.experimental.symbolic_shapes", "_advise_is_size"] = lambda interp, function, args, kwargs: NONE


_COPIES = (
    "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
    "sourceTensor.detach().clone().requires_grad_(True), rather than torch.tensor(sourceTensor)."
)


def _new_tensor(interp: Interpreter, args: Args, kwargs: Kwargs, *, copy: bool) -> Value:
    if not args and "data" not in kwargs:
        raise Break("unsupported-call", "torch.tensor() is called without data")
    first = (args[0] if args else kwargs["data"]).realize()
    options = {name: value for name, value in kwargs.items() if name != "data"}
    if isinstance(first, (SizeValue, ComputedValue)) and not is_late(first):
        return tensor_of_open(interp, first, options)
    if isinstance(first, NumberValue):
        return tensor_of_number(interp, first, options)
    if not isinstance(first, (TensorValue, ArrayValue)):
        leaves: list[Value] = []
        shape = _elements(interp, first, leaves)
        closed = all(isinstance(leaf, ConstantValue) and leaf.is_constant() for leaf in leaves)
        if closed or len(args) > 1 or ({*options} - {"dtype"} and all(isinstance(v, ConstantValue) for v in leaves)):
            return interp.tracer.graph.call(interp, "call_function", torch.tensor, args, kwargs)
        return _joined(interp, leaves, shape, options)
    if len(args) > 1 or set(kwargs) - {"dtype", "device", "data"}:
        raise Break("unsupported-call", "torch.tensor() of a tensor with such arguments")
    if copy and isinstance(first, TensorValue):
        say(interp, ConstantValue(_COPIES))
    targets = [value for name in ("device", "dtype") if not is_none(value := kwargs.get(name, NONE))]
    if copy or isinstance(first, ArrayValue):
        tensor, scalar = (first.tensor, first.scalar) if isinstance(first, ArrayValue) else (first, False)
        if not copy and not scalar:
            interp.tracer.graph.inference.check_array(tensor.fake)
        first = tensor.call_method(interp, "detach", [], {}).realize()
        if copy or scalar:
            first = first.call_method(interp, "clone", [], {}).realize()
    for value in targets:
        first = first.call_method(interp, "to", [value], {}).realize()
    return first


def _elements(interp: Interpreter, data: Value, leaves: list[Value]) -> list[int]:
    """The shape of nested sequences, whose elements are added to `leaves`."""
    if not isinstance(data := data.realize(), SequenceValue):
        leaves.append(data)
        return []
    shapes = [_elements(interp, item, leaves) for item in interp.iterate(data)]
    if any(shape != shapes[0] for shape in shapes):
        raise Break("unsupported-call", "torch.tensor() of sequences of different lengths")
    return [len(shapes), *(shapes[0] if shapes else ())]


def _joined(interp: Interpreter, leaves: list[Value], shape: list[int], kwargs: Kwargs) -> Value:
    """`torch.tensor` of tensors without dimensions, and of numbers that differ from call to call."""
    call = partial(interp.tracer.graph.call, interp, "call_function")
    for leaf in leaves:
        if not isinstance(leaf, (ConstantValue, NumberValue)) and (type(leaf) is not TensorValue or leaf.fake.ndim):
            raise Break("unsupported-call", f"torch.tensor() of a list that holds {leaf.describe()}")
    kinds = [v.fake.dtype if isinstance(v, TensorValue) else torch.tensor(v.python_type()()).dtype for v in leaves]
    promoted = reduce(torch.promote_types, kinds)
    dtype = kwargs["dtype"].realize().as_constant() if "dtype" in kwargs else promoted
    if set(kwargs) - {"dtype"} or not torch.can_cast(promoted, dtype) or dtype.itemsize < promoted.itemsize:
        raise Break("unsupported-call", "torch.tensor() of a list that holds tensors, with such arguments")
    to: Kwargs = {"dtype": ConstantValue(dtype)}
    parts = [
        call(torch.Tensor.to, [call(torch.Tensor.detach, [leaf], {})], to)
        if isinstance(leaf, TensorValue)
        else tensor_of_number(interp, leaf, to)
        if isinstance(leaf, NumberValue)
        else tensor_of_open(interp, leaf, to)
        if isinstance(leaf, (SizeValue, ComputedValue)) and not is_late(leaf)
        else call(torch.tensor, [leaf], to)
        for leaf in leaves
    ]
    return call(
        torch.reshape, [call(torch.stack, [ListValue(parts)], {}), TupleValue(list(map(ConstantValue, shape)))], {}
    )


# -- modes of the thread ---------------------------------------------------------------------------


def set_grad_mode(interp: Interpreter, mode: bool) -> Any:
    """Switch gradient recording, for this capture and in the graph."""
    if torch.is_grad_enabled() != mode:
        if mode and interp.tracer.graph.inference.on:
            raise Break("unsupported-call", "gradients are switched on in inference mode")
        torch._C._set_grad_enabled(mode)
        interp.tracer.graph.statement(interp, torch._C._set_grad_enabled, (mode,))


@handles(torch.inference_mode)
def _inference_mode(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    mode = args[0].realize() if args else kwargs.get("mode", ConstantValue(True)).realize()
    if not mode.is_constant() or not isinstance(mode.as_constant(), bool):
        return interp.decorate_with(_inference_context(True), mode)
    return _inference_context(mode.as_constant())


def _inference_context(mode: bool) -> ContextValue:
    return ContextValue(torch.inference_mode, [ConstantValue(mode)], partial(_switch_inference, mode))


def _switch_inference(mode: bool, interp: Interpreter) -> Callable[[Interpreter], None]:
    graph = interp.tracer.graph
    if graph.outer is not None and graph.inference.on is not mode:
        raise Break("unsupported-call", f"torch.inference_mode({mode}) is entered in a transform or a branch")
    before, recorded, depth = graph.inference.on, torch.is_grad_enabled(), len(graph.open_modes)
    graph.inference.switch(mode)
    set_grad_mode(interp, not mode)

    def leave(at: Interpreter) -> None:
        if len(graph.open_modes) > depth + 1:
            raise Break("unsupported-call", "inference mode is left before a mode that was entered in it")
        graph.inference.switch(before)
        set_grad_mode(at, recorded)

    return leave


TRANSPARENT.add(torch.inference_mode.clone)
TRANSPARENT_MODULES.update(("torch.autograd.grad_mode", "torch.utils._contextlib"))
NAMED["torch._dynamo.decorators", "error_on_graph_break"] = lambda interp, *_: _no_context(interp, (), {})


def _nothing(interp: Interpreter) -> Callable[[Interpreter], None]:
    return lambda at: None


@handles(torch.autograd.profiler.record_function, torch.fx.traceback.annotate)
def _no_context(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """A name for a profiler or an exporter: nothing to do here."""
    return ContextValue(contextlib.nullcontext, [], _nothing)


@handles(torch.overrides.TorchFunctionMode.__enter__, torch.overrides.TorchFunctionMode.__exit__)
def _function_mode(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """A mode of the user's is active from here on; in one of torch's an index of one element stays a tensor."""
    mode, tracer, enters = args[0].realize(), interp.tracer, len(args) == 1
    kind = mode.python_type()
    if (kind.__module__, kind.__name__) == ("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex"):
        tracer.index_by_tensors += 1 if enters else -1
    elif tracer.overrides_off or tracer.graph.outer is not None or kind is DeviceContext:
        raise Break("unsupported-call", f"a mode of functions, {kind.__name__}, is entered or left")
    elif enters:
        tracer.function_modes = [*tracer.function_modes, mode]
        tracer.early.off = True
    elif tracer.function_modes:
        tracer.function_modes = tracer.function_modes[:-1]
    else:
        raise Break("unsupported-call", f"a mode of functions, {kind.__name__}, that was entered elsewhere is left")
    return mode if enters else NONE


def _count(name: str, interp: Interpreter) -> Callable[[Interpreter], None]:
    """Enter a context in which one of the tracer's counters is higher."""
    setattr(interp.tracer, name, getattr(interp.tracer, name) + 1)
    return lambda at: setattr(at.tracer, name, getattr(at.tracer, name) - 1)


@handles_each(torch._C.DisableTorchFunction, torch._C.DisableTorchFunctionSubclass)
def _switches_overrides(cls: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return ContextValue(cls, [], partial(_count, "overrides_off"))


TENSOR_METHODS["as_subclass"] = as_subclass


def _as_function(function: Any, interp: Interpreter, tensor: Value, args: Args, kwargs: Kwargs) -> Value:
    return interp.tracer.known(function).call(interp, [tensor, *args], kwargs)


for _name in ("equal", "allclose", "istft", "cov", "corrcoef", "kron", "take_along_dim"):
    TENSOR_METHODS[_name] = partial(_as_function, getattr(torch, _name))


@handles_each(torch.autocast, torch.cpu.amp.autocast, torch.cuda.amp.autocast)  # type: ignore[attr-defined]
def _autocasts(make: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = told(interp, make, args, kwargs)
    state = (value.device, value.fast_dtype, value._enabled, value._cache_enabled)
    again = [ConstantValue(item) for item in state]
    if not value._enabled and not torch.is_autocast_enabled(value.device):
        return ContextValue(torch.autocast, again, _nothing)
    return ContextValue(torch.autocast, again, lambda at: _enter_autocast(at, state))


def _enter_autocast(interp: Interpreter, state: tuple[Any, ...]) -> Callable[[Interpreter], None]:
    context = _ENTER(*state)
    node = interp.tracer.graph.statement(interp, _ENTER, state)

    def leave(at: Interpreter) -> None:
        _EXIT(context)
        at.tracer.graph.statement(at, _EXIT, (node,))

    return leave


def _handle_made(cls: Any, enter_of: Any, *, gives_itself: bool = False) -> None:
    """Contexts that were made elsewhere, as those of decorators are, and those that an ExitStack enters."""

    @handles(cls.__enter__)
    def entered(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        manager = args[0].realize()
        if any(context.make is _itself and context.args[0] is manager for context in interp.tracer.graph.open_modes):
            raise Break("unsupported-call", f"a context of {cls.__name__} is entered again before it is left")
        context = (
            manager
            if isinstance(manager, ContextValue)
            else ContextValue(_itself, [manager], enter_of(interp, manager))
        )
        context.call_method(interp, "__enter__", [], {})
        return manager if gives_itself else NONE

    @handles(cls.__exit__)
    def left(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        return _leave(interp, args[0].realize(), cls.__name__)


def _made_autocast(interp: Interpreter, manager: Value) -> Any:
    fields = ("device", "fast_dtype", "_enabled", "_cache_enabled")
    state = tuple(manager.get_attr(interp, name).realize().as_constant() for name in fields)
    return lambda at: _enter_autocast(at, state)


_handle_made(torch.autocast, _made_autocast, gives_itself=True)
_handle_made(
    torch.inference_mode,
    lambda interp, made: partial(_switch_inference, interp.flag(made.get_attr(interp, "mode"), True)),
)


def _itself(manager: Any) -> Any:
    return manager


def _device_entered(interp: Interpreter, device: Value, args: Args, kwargs: Kwargs) -> Value:
    """The device is entered while the code is captured, so that nodes name it; the graph enters nothing."""
    if interp.tracer.function_modes:
        raise Break("unsupported-call", "a device is entered under a mode of functions")

    def enter(at: Interpreter) -> Callable[[Interpreter], None]:
        device.as_constant().__enter__()
        return lambda at: device.as_constant().__exit__(None, None, None)

    ContextValue(_itself, [device], enter).call_method(interp, "__enter__", [], {})
    return device


def _leave(interp: Interpreter, manager: Value, name: str) -> Value:
    for context in reversed(interp.tracer.graph.open_modes):
        if context is manager or (context.make is _itself and context.args[0] is manager):
            return context.call_method(interp, "__exit__", [], {})
    raise Break("unsupported-call", f"a context of {name} that was entered elsewhere is left")


CONSTANT_METHODS[torch.device, "__enter__"] = _device_entered
CONSTANT_METHODS[torch.device, "__exit__"] = lambda interp, device, args, kwargs: _leave(interp, device, "a device")


_ENTER: Any = torch.amp.autocast_mode._enter_autocast
_EXIT: Any = torch.amp.autocast_mode._exit_autocast


FOLDABLE.update({key_of(obj): obj for obj in (torch._C._get_privateuse1_backend_name, torch._C._get_accelerator)})


handles_all(
    {
        torch.is_inference_mode_enabled: lambda interp, args, kwargs: ConstantValue(interp.tracer.graph.inference.on),
        torch.is_inference: lambda interp, args, kwargs: (
            args[0].realize().call_method(interp, "is_inference", args[1:], kwargs)
        ),
        torch.as_tensor: lambda interp, args, kwargs: _new_tensor(interp, args, kwargs, copy=False),
        torch.asarray: lambda interp, args, kwargs: _new_tensor(interp, args, kwargs, copy=False),
        torch.tensor: lambda interp, args, kwargs: _new_tensor(interp, args, kwargs, copy=True),
        index_by_tensors: lambda interp, args, kwargs: ContextValue(
            contextlib.nullcontext, [], partial(_count, "index_by_tensors")
        ),
        torch._C._is_torch_function_enabled: lambda at, args, kwargs: ConstantValue(not at.tracer.overrides_off),
        torch.overrides.handle_torch_function: _handle_torch_function,
        torch._C._set_grad_enabled: lambda at, args, kwargs: set_grad_mode(at, at.flag(args[0], True)) or NONE,
        torch.Tensor._make_subclass: make_subclass,
        torch.autograd.profiler.record_function.__enter__: lambda interp, args, kwargs: args[0],
        torch.autograd.profiler.record_function.__exit__: lambda interp, args, kwargs: NONE,
    }
)


# -- tensors of classes with a `__torch_dispatch__`: distributed tensors, nested ones, the user's own ---

_DISTRIBUTED = "torch.distributed.tensor"
_C10D = "torch.distributed.distributed_c10d"
_FUNCTIONAL = "torch.distributed._functional_collectives"


_SHAPES = "torch.fx.experimental.symbolic_shapes"
NAMED.update(
    {
        (f"{_DISTRIBUTED}._api", f"DTensor.{name}"): call_with_objects
        for name in ("from_local", "to_local", "full_tensor", "redistribute")
    }
)
FOLDABLE_MODULES.add(f"{_DISTRIBUTED}.placement_types")
TRANSPARENT_MODULES.update({f"{_DISTRIBUTED}._api", f"{_DISTRIBUTED}.parallel.style", _FUNCTIONAL})


def _world(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    """`dist.group.WORLD`, which another group may become."""
    world = function.__globals__["_world"]
    return interp.tracer.known(world).realize().get_attr(interp, "_default_pg")


NAMED.update(
    {
        **{
            (_SHAPES, name): lambda at, _, *call: at.tracer.known(bool).call(at, *call)
            for name in ("guard_or_false", "guard_or_true", "statically_known_true")
        },
        (_SHAPES, "has_free_unbacked_symbols"): lambda *_: ConstantValue(False),
        **{  # a process group, mesh or list of ranks, known by identity, as the name by which ops know the group
            (_FUNCTIONAL, name): lambda at, fn, *call: fixed_call(at, fn.__globals__["_resolve_group_name"], *call)
            for name in ("_resolve_group", "_resolve_group_name")
        },
        (_C10D, "_get_group_size_by_name"): fixed_call,
        (_C10D, "_WorldMeta.WORLD"): _world,
    }
)


@handles(torch.unbind)
def _unbind(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if args and isinstance(nested := args[0].realize(), WrapperValue):
        return nested.call_method(interp, "unbind", args[1:], kwargs)
    return interp.tracer.graph.call(interp, "call_function", torch.unbind, args, kwargs)


_to_padded: Any = torch._C._nested.nested_to_padded_tensor  # type: ignore[attr-defined]
GRAPH_FUNCTIONS[id(_to_padded)] = _to_padded


# -- TorchScript's functions in Python code -------------------------------------------------------------

handles(torch.jit.annotate)(lambda interp, args, kwargs: args[1] if len(args) > 1 else kwargs["the_value"])
replaces(torch.jit.isinstance)(torch._jit_internal._isinstance)  # type: ignore[no-untyped-call]
_sample: Any = torch.jit.script_if_tracing(lambda: None)
CODE_HANDLERS[_sample.__code__] = unwrapped  # nothing is traced where code is captured


# -- constructors -------------------------------------------------------------------------------------

_KINDS = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")


def _constructs(dtype: torch.dtype | None) -> Any:
    def old_tensor(*args: Any, device: Any = None) -> Any:
        """A new tensor of sizes, one of data, or the tensor given."""
        kind, first = dtype or torch.get_default_dtype(), args[0] if args else 0
        if isinstance(first, torch.Tensor) and len(args) == 1 and first.dtype is kind and first.device.type == "cpu":
            return torch.ops.aten.alias(first)
        if isinstance(first, (list, tuple)) and not isinstance(first, torch.Size) and len(args) == 1:
            return torch.tensor(first, dtype=kind, device="cpu")
        if device is not None or not isinstance(first, (int, torch.Size)):
            graph_break()
        return torch.empty(first if isinstance(first, torch.Size) else args or 0, dtype=kind, device="cpu")

    return old_tensor


TRANSPARENT_MODULES.add(__name__)
for _cls in (torch.Tensor, *(getattr(torch, f"{kind}Tensor") for kind in _KINDS)):
    replaces(_cls)(_constructs(None if _cls is torch.Tensor else _cls.dtype))


def _type(interp: Interpreter, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """`Tensor.type`; a class of tensors is given by its name."""
    if not args and "dtype" not in kwargs:
        return ConstantValue(tensor.fake.type())
    first, *rest = args or [kwargs["dtype"]]
    try:
        kind = first.realize().as_constant()
    except NotConstant:
        raise Break("unsupported-call", "Tensor.type() of what is not known") from None
    if not isinstance(kind, (str, torch.dtype)):
        kind = f"{kind.__module__}.{kind.__name__}"
    named = {name: value for name, value in kwargs.items() if name != "dtype"}
    return interp.tracer.graph.call(interp, "call_method", "type", [tensor, ConstantValue(kind), *rest], named)


TENSOR_METHODS["type"] = _type


def _scripted(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    function = getattr(args[0].realize(), "obj", None)
    if not isinstance(function, torch.jit.ScriptFunction):
        raise Break("unsupported-call", "a function of TorchScript that is not known is called")
    return interp.tracer.graph.call(interp, "call_function", Named(function, str(function.name)), args[1:], kwargs)


handles(vars(torch.jit.ScriptFunction)["__call__"])(_scripted)
# torch.testing puts this in its place, for the whole process.
NAMED["torch.testing._internal.common_utils", "prof_func_call"] = lambda interp, _, args, kwargs: _scripted(
    interp, args, kwargs
)
