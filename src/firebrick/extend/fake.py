"""A FakeTensorMode that starts and dispatches fast.

PyTorch's own mode imports `torch._dynamo` when it is made and sympy when it first dispatches, 1.6 s
in all, and spends 100 us an op. Most calls need none of that: they are one run of the op's meta
kernel and one wrap of its result. `new_fake_mode` does those itself and leaves symbolic sizes,
data-dependent ops, sparse tensors, constants and custom ops to PyTorch's code.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_impls import op_implementations_dict, stride_incorrect_op
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
    in_kernel_invocation_manager,
)
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

__all__ = ["new_fake_mode"]

aten = torch.ops.aten

_CPU, _META = torch.device("cpu"), torch.device("meta")

_FIRST_ARGUMENT_DEVICE: frozenset[OpOverload] = frozenset(
    {
        aten.index.Tensor,
        aten.index_put.default,
        aten.index_put_.default,
        aten._unsafe_index.Tensor,
        aten._unsafe_index_put.default,
        aten.copy.default,
        aten.copy_.default,
        aten.slice_scatter.default,
        aten.diagonal_scatter.default,
        aten.embedding.default,
    }
)
"""Ops whose result lives where their first argument does, wherever the others are."""

_PLAIN_IMPLS: frozenset[OpOverload] = _FIRST_ARGUMENT_DEVICE | {
    aten.view.default,
    aten._unsafe_view.default,
    aten.select.int,
    aten.slice.Tensor,
}
"""Ops that PyTorch's mode treats specially only for symbolic sizes or devices."""

_SLOW_TAGS = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})


_SAME, _FLOAT, _BOOL, _INTEGER_POWER = "same", "float", "bool", "power"
_POINTWISE: dict[str, str] = {
    **dict.fromkeys(("add", "sub", "mul", "maximum", "minimum", "fmax", "fmin", "fmod", "remainder", "gcd"), _SAME),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "clamp", "relu", "nextafter"), _SAME),
    **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift", "hypot", "lcm", "heaviside"), _SAME),
    **dict.fromkeys(("gelu", "elu", "celu", "selu", "leaky_relu", "hardtanh", "softplus", "mish", "threshold"), _SAME),
    **dict.fromkeys(("atan2", "copysign", "xlogy", "special_xlog1py", "logit", "special_zeta"), _FLOAT),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"), _BOOL),
    "pow": _INTEGER_POWER,
}
"""Ops whose meta kernels are Python that imports torch._dynamo, by name -> how the result's dtype follows.

same: the promoted dtype. float: integers become the default float. bool: always bool. power: bool becomes int64.
"""
_PARAMETERS = {"gelu": 1, "elu": 1, "celu": 1, "selu": 1, "leaky_relu": 1, "hardtanh": 1, "softplus": 1, "threshold": 1}
_PARAMETERS |= {"mish": 1, "relu": 1, "logit": 1, "add": 2, "sub": 2}
"""How many leading arguments are operands, where not all are."""


class _Slow(Exception):
    """This call is left to PyTorch's mode."""


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
        self._stack_trace = None
        self._stack = None
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        self.nt_tensor_id_initial_count = self.nt_tensor_id_counter = 0
        self._fakes: dict[int, tuple[weakref.ref[torch.Tensor], FakeTensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would wrap `__torch_dispatch__` so that its first call imports torch._dynamo

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one op on fake tensors."""
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        kwargs = kwargs or {}
        path = _PATHS.get(func)
        if path is None:
            path = _PATHS[func] = _choose(func)
        try:
            if path is not _lift and _all_known(args):
                return _compute(self, func, args, kwargs)
            return path(self, func, args, kwargs)
        except (_Slow, NotImplementedError):
            return super().__torch_dispatch__(func, types, args, kwargs)

    def from_tensor(self, tensor: torch.Tensor, **options: Any) -> FakeTensor:
        """Return the fake tensor of `tensor`, the same one each time."""
        known = self._fakes.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        if options.get("symbolic_context") is not None or not _is_plain(tensor):
            return super().from_tensor(tensor, **options)
        fake = fake_of(self, tensor)
        self._fakes[id(tensor)] = (weakref.ref(tensor), fake)
        return fake


def new_fake_mode() -> FakeTensorMode:
    """Return a mode with concrete sizes, to use as a FakeTensorMode is used."""
    return _FakeMode()


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not (tensor.requires_grad and tensor._is_view())
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def fake_of(mode: FakeTensorMode, tensor: torch.Tensor) -> FakeTensor:
    """Make a new fake tensor with the metadata of a plain or fake tensor."""
    shape, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
    with torch._C._DisableTorchDispatch():
        if offset:
            extent = offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True) if n)
            meta = torch.empty(extent, dtype=tensor.dtype, device=_META).as_strided(shape, stride, offset)
        else:
            meta = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=_META)
    device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
    fake = FakeTensor(mode, meta, device, requires_grad=tensor.requires_grad)
    if isinstance(tensor, torch.nn.Parameter):
        fake._is_param = True
    return fake


# ---------------------------------------------------------------- paths


def _choose(func: Any) -> Callable[..., Any]:
    if not isinstance(func, torch._ops.OpOverload) or func.namespace not in ("aten", "prims"):
        return _slow
    if func in (aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default):
        return _lift
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return _composite
    special = _SPECIAL.get(func)
    if special is not None:
        return special
    if func._opname.removesuffix("_") in _POINTWISE and not func._overloadname.endswith("out"):
        return _pointwise
    if any(a.name == "device" for a in func._schema.arguments) and func.namespace == "aten":
        return _with_device
    if func.tags and not _SLOW_TAGS.isdisjoint(func.tags) and func is not aten.index.Tensor:
        return _slow
    if (func in op_implementations_dict and func not in _PLAIN_IMPLS) or stride_incorrect_op(func):
        return _slow
    if func.namespace == "prims" or func._opname.startswith(("_foreach", "_sparse", "_nested", "_fused")):
        return _slow
    if torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "Meta"):
        return _kernel
    if func in decomposition_table:
        return _decompose
    return _slow


def _slow(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise _Slow


def _composite(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with mode:
        return func.decompose(*args, **kwargs)


def _decompose(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with mode:
        result = decomposition_table[func](*args, **kwargs)
    if result is NotImplemented:
        raise _Slow
    return result


def _lift(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tensor made from a Python literal; small ones stay known, so that `item` works."""
    tensor = args[0]
    if type(tensor) is not torch.Tensor or not _is_plain(tensor):
        raise _Slow
    fake = fake_of(mode, tensor)
    if tensor.device.type == "cpu" and tensor.numel() <= 1:
        with torch._C._DisableTorchDispatch():
            fake.constant = tensor.clone()
    return fake


class _Devices:
    """The common device of a call's tensors."""

    __slots__ = ("found", "known", "mode", "scalar", "tensors")

    def __init__(self, mode: _FakeMode) -> None:
        self.mode = mode
        self.found: torch.device | None = None
        self.scalar = False  # `found` comes from 0-dimensional CPU tensors only
        self.tensors = self.known = 0  # how many tensors, and how many of them have a known value

    def add(self, arg: Any) -> None:
        kind = type(arg)
        if kind is FakeTensor:
            self._add_tensor(arg)
        elif kind is list or kind is tuple:
            for item in arg:
                if item is not None and not isinstance(item, (int, float)):
                    self.add(item)
                elif isinstance(item, torch.SymInt):
                    raise _Slow
        elif isinstance(arg, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise _Slow

    def _add_tensor(self, arg: FakeTensor) -> None:
        if arg.fake_mode is not self.mode or arg._has_symbolic_sizes_strides or arg.layout != torch.strided:
            raise _Slow
        self.tensors += 1
        self.known += arg.constant is not None
        device = arg.fake_device
        scalar = device.type == "cpu" and arg.dim() == 0
        if self.found is None or (self.scalar and not scalar):
            self.found, self.scalar = device, scalar
        elif device != self.found and not scalar:
            raise _Slow


def _all_known(args: tuple[Any, ...]) -> bool:
    """Say cheaply whether every tensor argument may have a known value; lists are left to the slow path."""
    found = False
    for arg in args:
        if isinstance(arg, FakeTensor):
            if arg.constant is None:
                return False
            found = True
        elif isinstance(arg, (list, tuple)) and any(isinstance(a, torch.Tensor) for a in arg):
            return False
    return found


def _devices_of(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Devices:
    """Look at every tensor of a call.

    Raises:
        _Slow: the fast path can't do the call.
    """
    devices = _Devices(mode)
    if func in _FIRST_ARGUMENT_DEVICE:
        for arg in (*args[1:], *kwargs.values()):
            for item in arg if isinstance(arg, (list, tuple)) else (arg,):
                other = _Devices(mode)
                other.add(item)
                devices.tensors += other.tensors
                devices.known += other.known
        devices.add(args[0])
    else:
        for arg in args:
            devices.add(arg)
        for arg in kwargs.values():
            devices.add(arg)
    if devices.known and func._schema.is_mutable:
        raise _Slow  # PyTorch's code forgets the values that are written
    return devices


def _kernel(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    devices = _devices_of(mode, func, args, kwargs)
    if devices.found is None:
        raise _Slow
    with in_kernel_invocation_manager(mode):
        result = func(*args, **kwargs)
    return _wrap(mode, result, devices.found)


def _compute(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call whose tensors all have known values on these."""

    def known(arg: Any) -> Any:
        if isinstance(arg, FakeTensor):
            return arg.constant
        return type(arg)([known(a) for a in arg]) if type(arg) in (list, tuple) else arg

    with torch._C._DisableTorchDispatch():
        result = func(*known(args), **{k: known(v) for k, v in kwargs.items()})
    if not isinstance(result, torch.Tensor) or result.device.type != "cpu":
        raise _Slow
    fake = fake_of(mode, result)
    fake.constant = result if result.numel() <= 1 else None
    return fake


def _promoted(kind: str, operands: list[Any]) -> torch.dtype:
    if kind is _BOOL:
        return torch.bool
    dtype = operands[0].dtype if isinstance(operands[0], torch.Tensor) else None
    if len(operands) == 2:
        dtype = torch.result_type(operands[0], operands[1])
    elif len(operands) > 2:
        dtype = _promote_all(operands)
    assert dtype is not None
    if kind is _FLOAT and not (dtype.is_floating_point or dtype.is_complex):
        return torch.get_default_dtype()
    if kind is _INTEGER_POWER and dtype is torch.bool:
        return torch.int64
    return dtype


def _promote_all(operands: list[Any]) -> torch.dtype:
    """Promotion folds over operands of equal standing; others are left to PyTorch."""
    tensors = [o for o in operands if isinstance(o, torch.Tensor)]
    dtype: torch.dtype = tensors[0].dtype
    for other in operands:
        if isinstance(other, torch.Tensor):
            if other.dtype != dtype:
                raise _Slow
        elif torch.result_type(tensors[0], other) != dtype:
            raise _Slow
    return dtype


def _empty_like(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`empty_like` on the meta device; strides are kept if they are those of a dense tensor, as elementwise ops do."""
    shape, stride = like.shape, like.stride()
    expected = 1
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size == 1:
            continue
        if step != expected:
            stride = aten.div.Tensor(like, like).stride()
            break
        expected *= size
    return torch.empty_strided(shape, stride, dtype=dtype, device=_META)


def _constructor_like(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`zeros_like` and the like, and `_to_copy`."""
    devices = _devices_of(mode, func, args, kwargs)
    preserve = kwargs.get("memory_format") in (None, torch.preserve_format)
    if devices.found is None or kwargs.get("layout") not in (None, torch.strided) or kwargs.get("pin_memory"):
        raise _Slow
    dtype = kwargs.get("dtype") or args[0].dtype
    with in_kernel_invocation_manager(mode):
        if preserve:
            result = _empty_like(args[0], dtype)
        else:
            options = {"dtype": dtype, "device": _META, "memory_format": kwargs["memory_format"]}
            result = torch.empty(args[0].shape, **options)
    wanted = kwargs.get("device")
    return FakeTensor(mode, result, torch.device(wanted) if wanted is not None else devices.found)


def _pointwise(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An elementwise op: broadcast shape and strides by a C++ kernel that every op of this kind shares."""
    devices = _devices_of(mode, func, args, kwargs)
    if devices.found is None:
        raise _Slow
    name = func._opname
    in_place = name.endswith("_")
    name = name.removesuffix("_")
    operands = [a for a in args[: _PARAMETERS.get(name, len(args))] if a is not None]
    tensors = [a for a in operands if isinstance(a, FakeTensor)]
    if any(t.dtype.is_complex for t in tensors) and name not in ("add", "sub", "mul", "eq", "ne"):
        raise _Slow
    with in_kernel_invocation_manager(mode):
        dtype = _promoted(_POINTWISE[name], operands)
        if len(tensors) == 1:
            result = _empty_like(tensors[0], dtype)
        elif len(tensors) == 2:
            result = aten.div.Tensor(tensors[0], tensors[1])
        else:
            raise _Slow
        if in_place:
            if result.shape != args[0].shape:
                raise _Slow
            return args[0]
        if result.dtype != dtype:
            result = _empty_like(result, dtype)
    return FakeTensor(mode, result, devices.found)


def _where(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    devices = _devices_of(mode, func, args, kwargs)
    if devices.found is None:
        raise _Slow
    with in_kernel_invocation_manager(mode):
        dtype = torch.result_type(args[1], args[2])
        like = [torch.empty_strided(a.shape, a.stride(), dtype=torch.float32, device=_META) for a in args]
        result = _empty_like(aten.addcdiv.default(*like), dtype)
    return FakeTensor(mode, result, devices.found)


def _cat(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    devices = _devices_of(mode, func, args, kwargs)
    tensors = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    first = tensors[0]
    alike = all(t.dtype == first.dtype and t.dim() == first.dim() and t.is_contiguous() for t in tensors)
    if devices.found is None or first.dim() == 0 or not alike:
        raise _Slow
    dim %= first.dim()
    shapes = [list(t.shape) for t in tensors]
    total = sum(shape.pop(dim) for shape in shapes)
    if any(shape != shapes[0] for shape in shapes):
        raise _Slow
    shapes[0].insert(dim, total)
    with in_kernel_invocation_manager(mode):
        result = torch.empty(shapes[0], dtype=first.dtype, device=_META)
    return FakeTensor(mode, result, devices.found)


def _wrap(mode: _FakeMode, result: Any, device: torch.device) -> Any:
    if isinstance(result, FakeTensor):
        return result
    if isinstance(result, torch.Tensor):
        return FakeTensor(mode, result, device)
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
    device = torch.device(wanted) if wanted is not None else devices.found or _CPU
    with in_kernel_invocation_manager(mode):
        result = func(*args, **{**kwargs, "device": _META})
    return _wrap(mode, result, device)


def _convolution(mode: _FakeMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The memory format of the result is the chosen backend's."""
    devices = _devices_of(mode, func, args, kwargs)
    if func is not aten.convolution.default or kwargs or len(args) != 9 or devices.found is None:
        raise _Slow
    names = [a.name for a in func._schema.arguments]
    named = dict(zip(names, args, strict=True))
    memory_format = None
    if args[1].dim() != 3:
        with mode:
            backend = torch._C._select_conv_backend(**named)
            memory_format = torch._C._conv_determine_backend_memory_format(args[0], args[1], backend)
    with in_kernel_invocation_manager(mode):
        result = func(*args)
        if memory_format is not None:
            result = result.to(memory_format=memory_format)
    return _wrap(mode, result, devices.found)


_SPECIAL: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: _convolution,
    aten.where.self: _where,
    aten.cat.default: _cat,
    aten.empty_like.default: _constructor_like,
    aten.zeros_like.default: _constructor_like,
    aten.ones_like.default: _constructor_like,
    aten.full_like.default: _constructor_like,
    aten.rand_like.default: _constructor_like,
    aten.randn_like.default: _constructor_like,
    aten._to_copy.default: _constructor_like,
}
_PATHS: dict[Any, Callable[..., Any]] = {}
"""Op -> path, filled as ops are met."""
