"""A FakeTensorMode that starts and dispatches fast.

PyTorch's own mode imports `torch._dynamo` when it is made and sympy when it first dispatches, 1.6 s
in all, and spends 100 us an op. Most calls need none of that: they are one run of the op's meta
kernel and one wrap of its result. `new_fake_mode` does those itself and leaves symbolic sizes,
data-dependent ops, sparse tensors, constants and custom ops to PyTorch's code.

Most results follow from a rule of `firebrick.fakes.shape_rules`. Views and the remaining ops run on plain
meta tensors, one kept beside each fake one: calls on fake ones make PyTorch import its distributed package.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch._decomp import decomposition_table, meta_table
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_impls import op_implementations_dict, stride_incorrect_op
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConverter, FakeTensorMode, in_kernel_invocation_manager
from torch.nested._internal.nested_int import NestedIntNode
from torch.utils._python_dispatch import TorchDispatchMode

from firebrick.fakes.data_sizes import DATA_SIZED, is_data_sized
from firebrick.fakes.foreach import calls_of, op_of
from firebrick.fakes.function_forms import kernel_of_calls
from firebrick.fakes.mutation import checked_outs, written_arguments
from firebrick.fakes.promotion import ops
from firebrick.fakes.refusals import check_accepted
from firebrick.fakes.shape_rules import CONSTRUCTORS, LAYOUTS, NoRule, Spec, convolution_shape, find_rule
from firebrick.fakes.strides import by_stride, channels_last, contiguous, dense_strides
from firebrick.fakes.view_rules import VIEWS
from firebrick.ir.index.expr import Expr
from firebrick.ir.index.sizes import Sizes, has_symbols, now, settled
from firebrick.runtime.bits import bits_of, toggled

aten = torch.ops.aten

_CPU, _META = torch.device("cpu"), torch.device("meta")
_TWIN = "_firebrick_meta"
_NOTHING: Mapping[str, Any] = MappingProxyType({})

_FIRST_ARGUMENT_DEVICE: frozenset[OpOverload] = ops(
    "index.Tensor index_put.default index_put_.default _unsafe_index.Tensor _unsafe_index_put.default "
    "copy.default copy_.default slice_scatter.default diagonal_scatter.default embedding.default"
)
"""Ops whose result lives where their first argument does, wherever the others are."""

_PLAIN_IMPLS = _FIRST_ARGUMENT_DEVICE | ops("view.default _unsafe_view.default select.int slice.Tensor")
"""Ops that PyTorch's mode treats specially only for symbolic sizes or devices."""

_LAID_OUT_BY_KERNEL = ops(
    "_fft_c2r.default _fft_r2c.default _fft_c2c.default _linalg_svd.default linalg_eig.default "
    "ldexp.Tensor igamma.default igammac.default"
)
"""Ops whose results lie as a library or a kernel of this build of PyTorch lays them: it is asked, on zeros."""

_TELLS_ONE = frozenset({aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims})
"""Ops that do something else to dimensions of one element."""

_SLOW_TAGS = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})

_RAGGED = itertools.count(1 << 40)
"""Numbers of ragged sizes of fake tensors; PyTorch counts those of real ones from 0."""

_CONCRETE: Mapping[Any, Callable[[torch.Tensor], Any]] = {
    aten.size.default: lambda x: tuple(map(int, x.shape)),
    aten.stride.default: lambda x: tuple(map(int, x.stride())),
    aten.storage_offset.default: lambda x: int(x.storage_offset()),
}
"""What kernels of libraries in C++ ask, which know numbers only."""

_LOG = torch._subclasses.fake_tensor.log
_NUMBERS_ONLY = re.compile("SymIntArrayRef expected to contain only|Cannot call numel.. on tensor with symbolic")
"""What operators written in C++ say that take no symbols; torch 2.11's matmul says the second."""


class AskedForNumbers(Exception):
    """A kernel in C++ wants sizes as numbers; one in Python may not, see `with_kernels_in_python`."""


def with_kernels_in_python(call: Callable[[], Any], *asked: Any) -> Any:
    """Make a call; if kernels in C++ need numbers, by those in Python where there are some, which refuse less: `asked`
    is the call that eager must take too."""
    try:
        return call()
    except (AskedForNumbers, RuntimeError) as error:
        if not isinstance(error, AskedForNumbers) and not _NUMBERS_ONLY.search(str(error)):
            raise
        with enable_python_dispatcher():
            result = call()
        if asked:
            check_accepted(asked[0], asked[1], asked[2], result)
        return result


class _Slow(Exception):
    """This call is left to PyTorch's mode."""


_dispatch: Callable[..., Any] = inspect.unwrap(FakeTensorMode.__torch_dispatch__)
"""PyTorch's own way, without the wrapper whose first call imports torch._dynamo: a second, and 80 MiB."""


class _FakeMode(FakeTensorMode):
    """See the module. Has every attribute that FakeTensorMode's own constructor sets; a test compares them."""

    def __init__(self) -> None:  # the base's constructor is what imports torch._dynamo
        TorchDispatchMode.__init__(self)
        self.allow_fallback_kernels = True
        self.propagate_real_tensors = False
        self.fake_tensor_converter = FakeTensorConverter(copy_data=False, export=False)
        self.static_shapes = True
        self.allow_scalar_outputs = False
        self._allow_unsafe_data_ptr_access = True
        self.allow_meta = True
        self.cache_enabled = True
        self.cache_crosscheck_enabled = False
        self.allow_non_fake_inputs = False
        self.in_kernel_invocation = False
        self.enter_stack = []
        self.shape_env = None
        self._stack_trace = traceback.StackSummary()
        self._stack = None
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        self.nt_tensor_id_initial_count = self.nt_tensor_id_counter = 0
        self.has_drawn = False
        """Whether an operation was run whose result depends on the state of a random generator."""
        self.asks = False
        self._fakes: dict[int, tuple[weakref.ref[torch.Tensor], FakeTensor]] = {}
        self.sizes = Sizes()
        """The symbols in the sizes of its tensors."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would wrap `__torch_dispatch__` so that its first call imports torch._dynamo

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = _NOTHING
    ) -> Any:
        """Run one op on fake tensors."""
        if types and any(map(dispatches_itself, types)):
            return NotImplemented
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        if func in _CONCRETE:
            if not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher):
                raise AskedForNumbers
            return _CONCRETE[func](args[0])
        args, kwargs = tuple(args), dict(kwargs)
        if self.sizes.takes_data and is_data_sized(func, args) and not _all_constant(args):
            with self:
                return DATA_SIZED[func.name()](self.sizes, *args, **kwargs)
        path = _PATHS.get(func) or _PATHS.setdefault(func, _choose(func))
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()) and is_random(func, args, kwargs):
            self.has_drawn = True
        if not self.asks or path is _composite:
            return self._answer(path, func, types, args, kwargs)
        self.asks = False  # what a decomposition calls is not the program's
        try:
            result = self._answer(path, func, types, args, kwargs)
            check_accepted(func, args, kwargs, result)
        finally:
            self.asks = True
        return result

    def _answer(self, path: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        how, self.sizes.how = self.sizes.how, "exactly" if func in _TELLS_ONE else "ones"
        was_quiet, _LOG.disabled = _LOG.disabled, True  # what fails is a break, which says where
        try:
            if path is not _lift and _all_constant(args):
                return _compute(self, func, args, kwargs)
            return path(self, func, args, kwargs)
        except (_Slow, NotImplementedError):
            self.cache_enabled = not self.sizes.symbols  # the cache takes no symbols but torch's
            return _dispatch(self, func, types, args, kwargs)
        finally:
            self.sizes.how, _LOG.disabled = how, was_quiet

    def from_tensor(self, tensor: torch.Tensor, **options: Any) -> FakeTensor:
        """Return the fake tensor of `tensor`, the same one each time."""
        remembered = self._fakes.get(id(tensor))
        if remembered is not None and remembered[0]() is tensor:
            return remembered[1]
        if options.get("symbolic_context") is not None or not is_plain(tensor):
            return super().from_tensor(tensor, **options)
        fake = fake_of(self, tensor)
        self._fakes[id(tensor)] = (weakref.ref(tensor), fake)
        return fake

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> torch.SymInt:
        """A ragged size that equals no other one."""
        return torch.SymInt(NestedIntNode(next(_RAGGED), 1))  # type: ignore[no-any-return]

    def from_layout(self, tensor: torch.Tensor, shape: Sequence[Expr], strides: Sequence[Expr]) -> FakeTensor:
        """Return the fake tensor of `tensor` with sizes and strides that are expressions."""
        sizes, steps = (tuple(map(self.sizes.size, values)) for values in (shape, strides))
        with torch._C._DisableTorchDispatch():
            meta = toggled(_empty(sizes, steps, tensor.dtype, tensor.storage_offset()), bits_of(tensor))
        fake = _fake(self, meta, tensor.device, tensor.requires_grad)
        self._fakes[id(tensor)] = (weakref.ref(tensor), fake)
        return fake


def dispatches_itself(cls: type) -> bool:
    """Whether tensors of a class are made of others: calls of them go to their class first."""
    return hasattr(cls, "__tensor_flatten__") and not issubclass(cls, FakeTensor)


def new_fake_mode(sizes: Sizes | None = None) -> FakeTensorMode:
    """Return a mode to use as a FakeTensorMode is used; `sizes` are those of another mode."""
    mode = _FakeMode()
    mode.sizes = mode.sizes if sizes is None else sizes
    return mode


@contextlib.contextmanager
def refusing(mode: FakeTensorMode) -> Iterator[None]:
    """While a program's own calls are run on fake tensors: they raise what eager's kernels raise."""
    assert isinstance(mode, _FakeMode)
    before, mode.asks = mode.asks, True
    try:
        yield
    finally:
        mode.asks = before


def _popped() -> list[Any]:
    popped = []
    top: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks
    while hooks := top(True):
        popped.append(hooks)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    return popped


@contextlib.contextmanager
def hooks_paused() -> Iterator[list[Any]]:
    """Keep hooks on saved tensors (checkpointing, offloading) from what the engine saves of fake tensors."""
    paused = _popped()
    try:
        yield paused
    finally:
        _popped()  # what a trace that failed has left
        for hooks in reversed(paused):
            torch._C._autograd._push_saved_tensors_default_hooks(*hooks)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor has nothing but sizes, strides and a dtype that a fake one must have."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and not (tensor.requires_grad and tensor._is_view())
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _fake(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device, requires_grad: bool = False) -> FakeTensor:
    """Make a fake tensor of a meta tensor and keep that beside it."""
    fake = FakeTensor(mode, meta, device)
    if requires_grad:  # torch 2.11 has no argument for it
        fake.requires_grad_()
    fake.__dict__[_TWIN] = meta
    return fake


def _twin(fake: FakeTensor) -> torch.Tensor:
    """The meta tensor of a fake one, on the same memory; torch sets the bits of a fake view after it was made."""
    meta: torch.Tensor | None = fake.__dict__.get(_TWIN)
    if meta is None or bits_of(meta) != bits_of(fake):
        meta = _meta_of(fake)
        if not fake._is_zerotensor():  # which has no memory
            (offset,) = settled([fake.storage_offset()])
            meta = meta.set_(fake.untyped_storage(), offset, meta.shape, meta.stride())
        fake.__dict__[_TWIN] = meta
    return meta


def _meta_of(tensor: torch.Tensor) -> torch.Tensor:
    shape, stride, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    if has_symbols(tensor):
        shape, stride, (offset,) = settled(shape), settled(stride), settled([offset])
    return toggled(_empty(shape, stride, tensor.dtype, offset), bits_of(tensor))


def _empty(shape: tuple[Any, ...], stride: tuple[Any, ...], dtype: torch.dtype, offset: Any = 0) -> torch.Tensor:
    if type(offset) is int and not offset:
        return torch.empty_strided(shape, stride, dtype=dtype, device=_META)
    extent = offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True) if n)
    return torch.empty(extent, dtype=dtype, device=_META).as_strided(shape, stride, offset)


def fake_of(mode: FakeTensorMode, tensor: torch.Tensor, grad: bool = True) -> FakeTensor:
    """Make a new fake tensor with the metadata of a plain or fake tensor; `grad`: also whether it requires one."""
    with torch._C._DisableTorchDispatch():
        meta = _meta_of(tensor)
    device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
    fake = _fake(mode, meta, device, requires_grad=grad and tensor.requires_grad)
    if isinstance(tensor, torch.nn.Parameter):
        fake._is_param = True
    return fake


# ---------------------------------------------------------------- paths


def is_random(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an op that may draw random numbers does."""
    names = [argument.name for argument in func._schema.arguments]
    if "dropout_p" not in names:
        return True
    place = names.index("dropout_p")
    return bool(args[place] if place < len(args) else kwargs.get("dropout_p"))


def _choose(func: Any) -> Callable[..., Any]:
    if not isinstance(func, torch._ops.OpOverload) or func.namespace not in ("aten", "prims", "firebrick"):
        return _packed_transposed if str(func).startswith("mkldnn._convolution_transpose_pointwise") else _slow
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return _composite
    if find_rule(func) is not None:
        return _by_rule
    if func.is_view and torch.Tag.inplace_view not in func.tags:
        return _view
    if any(a.name == "device" for a in func._schema.arguments) and func.namespace == "aten":
        return _with_device
    if _is_special(func):
        return _slow
    if op_of(func) is not None:
        return _each
    if func.namespace == "prims" or func._opname.startswith(("_foreach", "_sparse", "_nested", "_fused")):
        return _slow
    if torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "Meta"):
        return _kernel
    return _decompose if func in decomposition_table else _slow


def _is_special(func: Any) -> bool:
    """Whether the op's meta kernel alone does not tell what the op does."""
    if func.tags and not _SLOW_TAGS.isdisjoint(func.tags) and func is not aten.index.Tensor:
        return True
    return (func in op_implementations_dict and func not in _PLAIN_IMPLS) or stride_incorrect_op(func)


def _slow(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise _Slow


def _each(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    calls = calls_of(func, args, kwargs)
    if calls is None:
        raise _Slow
    results = [mode.__torch_dispatch__(op, (), positional, named) for op, positional, named in calls]
    return results if func._schema.returns else None


def _composite(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with mode:
        return func.decompose(*args, **kwargs)


def _decompose(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    function = decomposition_table.get(func) or meta_table.get(func) or kernel_of_calls(func)
    with mode:
        result = NotImplemented if function is None else function(*args, **kwargs)
    if result is NotImplemented:
        raise _Slow
    return result


def _lift(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tensor made from a Python literal; small ones stay known, so that `item` works."""
    tensor = args[0]
    if type(tensor) is not torch.Tensor or not is_plain(tensor):
        raise _Slow
    fake = fake_of(mode, tensor)
    if tensor.device.type == "cpu" and tensor.numel() <= 1:
        with torch._C._DisableTorchDispatch():
            fake.constant = tensor.clone()
    return fake


class _Devices:
    """The common device of a call's tensors."""

    __slots__ = ("common", "constants", "mode", "scalar", "tensors")

    def __init__(self, mode: _FakeMode) -> None:
        self.mode = mode
        self.common: torch.device | None = None
        self.scalar = False  # `common` comes from 0-dimensional CPU tensors only
        self.tensors = self.constants = 0  # how many tensors, and how many of them have a known value

    def add(self, arg: Any) -> None:
        kind = type(arg)
        if kind is FakeTensor:
            self._add_tensor(arg)
        elif kind is list or kind is tuple:
            for item in arg:
                if item is not None and not isinstance(item, (int, float, torch.SymInt)):
                    self.add(item)
        elif isinstance(arg, (torch.Tensor, torch.SymFloat, torch.SymBool)):
            raise _Slow

    def _add_tensor(self, arg: FakeTensor) -> None:
        if arg.fake_mode is not self.mode or arg.layout != torch.strided:
            raise _Slow
        self.tensors += 1
        self.constants += arg.constant is not None
        device = arg.fake_device
        scalar = device.type == "cpu" and arg.dim() == 0
        if self.common is None or (self.scalar and not scalar):
            self.common, self.scalar = device, scalar
        elif device != self.common and not scalar:
            raise _Slow


def _all_constant(args: tuple[Any, ...]) -> bool:
    """Say cheaply whether every tensor argument may have a known value; lists are left to the slow path."""
    any_tensor = False
    for arg in args:
        if isinstance(arg, FakeTensor):
            if arg.constant is None:
                return False
            any_tensor = True
        elif isinstance(arg, (list, tuple)) and any(isinstance(a, torch.Tensor) for a in arg):
            return False
    return any_tensor


def _devices_of(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Devices:
    """Look at every tensor of a call; raises _Slow: the fast path can't do the call."""
    devices = _Devices(mode)
    if func in _FIRST_ARGUMENT_DEVICE:
        for arg in (*args[1:], *kwargs.values()):
            for item in arg if isinstance(arg, (list, tuple)) else (arg,):
                other = _Devices(mode)
                other.add(item)
                devices.tensors += other.tensors
                devices.constants += other.constants
        devices.add(args[0])
    else:
        for arg in args:
            devices.add(arg)
        for arg in kwargs.values():
            devices.add(arg)
    if devices.constants and func._schema.is_mutable and _writes_constant(func, args, kwargs):
        raise _Slow  # PyTorch's code forgets the values that are written
    return devices


def _writes_constant(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    targets = [args[i] if i < len(args) else kwargs.get(name) for i, name in written_arguments(func)]
    return any(not isinstance(target, FakeTensor) or target.constant is not None for target in targets)


def _by_rule(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    devices = _devices_of(mode, func, args, kwargs)
    rule = find_rule(func)
    if devices.common is None or rule is None:
        raise _Slow
    try:
        spec = rule(*args, **kwargs)
    except (NoRule, TypeError):
        if _is_special(func):
            raise _Slow from None
        return _kernel(mode, func, args, kwargs)
    if func._schema.is_mutable:
        if spec.shape != tuple(args[0].shape):
            raise _Slow  # PyTorch's code says what is wrong
        return args[0]
    if isinstance(spec, Spec):
        return _of_spec(mode, spec, devices.common)
    return tuple([None if one is None else _of_spec(mode, one, devices.common) for one in spec])


def _of_spec(mode: _FakeMode, spec: Spec, device: torch.device) -> FakeTensor:
    strides = contiguous(spec.shape) if spec.strides is None else spec.strides
    with torch._C._DisableTorchDispatch():
        return _fake(mode, torch.empty_strided(spec.shape, strides, dtype=spec.dtype, device=_META), device)


def _return_first(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ops that write their first argument and return it."""
    _devices_of(mode, func, args, kwargs)
    return args[0]


def _view(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = args[0]
    devices = _devices_of(mode, func, args, kwargs)
    if type(source) is not FakeTensor or devices.tensors != 1 or devices.common is None:
        raise _Slow
    if func in VIEWS and (has_symbols(source) or any(type(a) is torch.SymInt for a in flat_numbers(args))):
        return _symbolic_view(mode, func, args, kwargs, devices.common)
    with torch._C._DisableTorchDispatch():
        return _wrap(mode, func(_twin(source), *args[1:], **kwargs), devices.common)


def flat_numbers(args: Iterable[Any]) -> Iterator[Any]:
    """The numbers among arguments, those in lists too."""
    for arg in args:
        if isinstance(arg, (list, tuple)):
            yield from arg
        else:
            yield arg


def _symbolic_view(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: Any) -> Any:
    try:
        seen = VIEWS[func](*args, **kwargs)
    except NoRule:
        shapes = [tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args]
        raise RuntimeError(f"{func} does not take {shapes}") from None
    with torch._C._DisableTorchDispatch():
        views = [_twin(args[0]).as_strided(*one) for one in (seen if isinstance(seen, list) else [seen])]
        return _wrap(mode, views if isinstance(seen, list) else views[0], device)


def _kernel(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the op's own meta kernel."""
    devices = _devices_of(mode, func, args, kwargs)
    if devices.common is None:
        raise _Slow
    if func._schema.is_mutable:
        outs = [kwargs[name] for _, name in written_arguments(func) if name in kwargs]
        if outs and _has_symbols((*args, *outs)):
            return checked_outs(mode, func, args, kwargs, outs)
        if func in decomposition_table and _has_symbols(args):
            return _decompose(mode, func, args, kwargs)
        with in_kernel_invocation_manager(mode):
            result = func(*args, **kwargs)
        for arg in (*args, *kwargs.values()):
            if isinstance(arg, FakeTensor):
                arg.__dict__.pop(_TWIN, None)
        return _wrap(mode, result, devices.common)
    with torch._C._DisableTorchDispatch():
        result = _on_twins(func, args, kwargs)
    if result is NotImplemented:
        result = _decompose(mode, func, args, kwargs)
        return _laid_out_as_now(mode, result, func, args, kwargs) if func in _LAID_OUT_BY_KERNEL else result
    if func in _LAID_OUT_BY_KERNEL and _has_symbols(args):
        return _laid_out_as_now(mode, _wrap(mode, result, devices.common), func, args, kwargs)
    with torch._C._DisableTorchDispatch():
        if func in _LAID_OUT_BY_KERNEL and _is_here(devices.common):
            real = func(*[_zeros(a) if isinstance(a, torch.Tensor) else a for a in args], **kwargs)
            result = torch.utils._pytree.tree_map(lambda t: t.to(_META), real)
        elif func in LAYOUTS and devices.common == _CPU:
            result = _restrided(result, LAYOUTS[func](tuple(result.shape), *args))
        elif isinstance(result, torch.Tensor) and 0 in result.stride() and not func.is_view:
            # torch 2.11 says that slice_scatter keeps an expanded argument's strides; no result overlaps itself
            result = _restrided(result, dense_strides(result))
        return _wrap(mode, result, devices.common)


def _on_twins(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a meta kernel gives; NotImplemented where it knows numbers only, and there is one in Python."""
    try:
        return func(*_twins(args), **{k: _twins(v) for k, v in kwargs.items()})
    except RuntimeError:
        in_python = func in decomposition_table or func in meta_table or kernel_of_calls(func)
        if in_python and _has_symbols((*args, *kwargs.values())):
            return NotImplemented
        raise


def _is_here(device: torch.device) -> bool:
    """Whether kernels of a device run on this machine."""
    return device == _CPU or (device.type == "cuda" and torch.cuda.is_available())


def _zeros(like: torch.Tensor) -> torch.Tensor:
    """A tensor with the same strides, also if they are zero, of the sizes of the call at hand; on the CPU where there
    is no such device."""
    device = like.fake_device if isinstance(like, FakeTensor) and _is_here(like.fake_device) else _CPU
    # Of numbers that begin at an odd place cuFFT takes a contiguous copy.
    shape, strides, begin = *(tuple(map(now, n)) for n in (like.shape, like.stride())), now(like.storage_offset()) % 16
    extent = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 1 + begin
    return torch.zeros(max(extent, 0), dtype=like.dtype, device=device).as_strided(shape, strides, begin)


def _laid_out_as_now(mode: FakeTensorMode, results: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Results whose dimensions lie in the order in which a kernel lays them for the sizes at hand."""
    with torch._C._DisableTorchDispatch():
        real = func(*[_zeros(a) if isinstance(a, torch.Tensor) else a for a in args], **kwargs)
    pairs = zip(results, real, strict=True) if isinstance(results, tuple) else [(results, real)]
    laid = []
    for result, like in pairs:
        order = by_stride(tuple(like.shape), like.stride())
        steps, step = [0] * like.dim(), 1
        for d in order:
            steps[d] = step
            step = step * result.shape[d]
        with torch._C._DisableTorchDispatch():
            laid.append(_fake(mode, _restrided(_twin(result), tuple(steps)), result.fake_device))
    return tuple(laid) if isinstance(results, tuple) else laid[0]


def _has_symbols(values: Iterable[Any]) -> bool:
    return any(isinstance(v, torch.Tensor) and has_symbols(v) for v in flat_numbers(values))


def _restrided(result: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=_META)


def _convolution(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The library that eager would call says how the result lies."""
    devices = _devices_of(mode, func, args, kwargs)
    if devices.common is None or kwargs or len(args) != 9 or args[0].dtype != args[1].dtype:
        raise _Slow
    x, weight, _, *rest = args
    try:
        shape = convolution_shape(x, weight, *rest)
    except NoRule:
        raise _Slow from None
    layout = _layout_of_convolution(mode, *args)
    with torch._C._DisableTorchDispatch():
        return _wrap(mode, _laid_out(torch.empty(shape, dtype=x.dtype, device=_META), layout), devices.common)


def _packed_transposed(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """oneDNN's on a packed weight [outer, inner, ...], which lies channels last; torch's rule does not say so."""
    x, weight, _, padding, more, stride, dilation, *_ = args
    sides = zip(x.shape[2:], weight.shape[2:], padding, more, stride, dilation, strict=True)
    sizes = [(n - 1) * step - 2 * around + reach * (k - 1) + extra + 1 for n, k, around, extra, step, reach in sides]
    shape = (x.shape[0], weight.shape[0], *sizes)
    return _of_spec(mode, Spec(shape, x.dtype, channels_last(shape)), x.fake_device)


def _convolution_backward(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    devices = _devices_of(mode, func, args, kwargs)
    if devices.common is None or kwargs or len(args) != 11:
        raise _Slow
    _, x, weight, bias_sizes, *rest, mask = args
    layout = _layout_of_convolution(mode, x, weight, None, *rest, bias_sizes)
    with torch._C._DisableTorchDispatch():
        empty = [torch.empty(n, dtype=x.dtype, device=_META) for n in (x.shape, weight.shape, bias_sizes or [0])]
        gradients = (_laid_out(empty[0], layout), _laid_out(empty[1], layout), empty[2])
        return _wrap(mode, tuple([t if w else None for t, w in zip(gradients, mask, strict=True)]), devices.common)


def _layout_of_convolution(mode: _FakeMode, x: Any, weight: Any, *rest: Any) -> torch.memory_format:
    with mode:  # so that the tensors say their fake device
        backend = torch._C._select_conv_backend(x, weight, *rest)
        if weight.dim() == 3:  # as eager does, which has no libraries for rows
            x, weight = x.contiguous().unsqueeze(2), weight.unsqueeze(2)
        return torch._C._conv_determine_backend_memory_format(x, weight, backend)


def _laid_out(result: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    if result.dim() == 3:
        return result.unsqueeze(2).to(memory_format=layout).squeeze(2)
    return result.to(memory_format=layout)


def _twins(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return _twin(value)
    return type(value)([_twins(v) for v in value]) if type(value) in (tuple, list) else value


def _compute(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call whose tensors all have known values on these."""

    def value_of(arg: Any) -> Any:
        if isinstance(arg, FakeTensor):
            return arg.constant
        return type(arg)([value_of(a) for a in arg]) if type(arg) in (list, tuple) else arg

    with torch._C._DisableTorchDispatch():
        result = func(*value_of(args), **{k: value_of(v) for k, v in kwargs.items()})
    if isinstance(result, (bool, int, float)):
        return result
    if not isinstance(result, torch.Tensor) or result.device.type != "cpu":
        raise _Slow
    fake = fake_of(mode, result)
    fake.constant = result if result.numel() <= 1 else None
    return fake


def _constructor_like(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ops that make a tensor like their first argument, with options: `zeros_like` and the like, and `_to_copy`."""
    devices = _devices_of(mode, func, args, kwargs)
    preserve = kwargs.get("memory_format") in (None, torch.preserve_format)
    if devices.common is None or kwargs.get("layout") not in (None, torch.strided) or kwargs.get("pin_memory"):
        raise _Slow
    dtype = kwargs.get("dtype") or args[0].dtype
    with torch._C._DisableTorchDispatch():
        if preserve:
            meta = torch.empty_strided(args[0].shape, dense_strides(args[0]), dtype=dtype, device=_META)
        else:
            meta = torch.empty(args[0].shape, dtype=dtype, device=_META, memory_format=kwargs["memory_format"])
    device = kwargs.get("device")
    return _fake(mode, meta, torch.device(device) if device is not None else devices.common)


def _wrap(mode: _FakeMode, result: Any, device: torch.device) -> Any:
    if isinstance(result, FakeTensor):
        return result
    if isinstance(result, torch.Tensor):
        return _fake(mode, result, device)
    if isinstance(result, (tuple, list)):
        return type(result)([_wrap(mode, r, device) for r in result])
    return result


def _with_device(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ops with a device argument: made on the meta device, said to be on that one."""
    devices = _devices_of(mode, func, args, kwargs)
    if kwargs.get("layout") not in (None, torch.strided) or kwargs.get("pin_memory"):
        raise _Slow
    position = next(i for i, a in enumerate(func._schema.arguments) if a.name == "device")
    if position < len(args):
        raise _Slow
    wanted = kwargs.get("device")
    device = torch.device(wanted) if wanted is not None else devices.common or _CPU
    rule = CONSTRUCTORS.get(func)
    if rule is not None:
        with contextlib.suppress(NoRule, TypeError):
            return _of_spec(mode, rule(*args, **kwargs), device)
    with torch._C._DisableTorchDispatch():
        result = func(*_twins(args), **{**{k: _twins(v) for k, v in kwargs.items()}, "device": _META})
    return _wrap(mode, result, device)


_PATHS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default), _lift),
    **dict.fromkeys(VIEWS, _view),
    **dict.fromkeys(
        ops(
            "empty_like.default zeros_like.default ones_like.default full_like.default rand_like.default "
            "randn_like.default _to_copy.default"
        ),
        _constructor_like,
    ),
    **dict.fromkeys(
        ops(
            "copy_.default fill_.Scalar fill_.Tensor zero_.default uniform_.default normal_.default "
            "bernoulli_.float bernoulli_.Tensor exponential_.default random_.default random_.to "
            "index_put_.default index_fill_.int_Scalar scatter_.value scatter_.src"
        ),
        _return_first,
    ),
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
"""Op -> path; `_choose` adds the others as they are met."""
