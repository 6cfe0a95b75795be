"""What eager PyTorch refuses, asked of its own kernels on small tensors of the same kind.

Rules of shapes, meta kernels and decompositions answer what a call returns, and let pass much of what kernels
refuse: dimensions beyond the rank or named twice, dtypes that an op has no kernel for, nothing to reduce. So each call
that is captured is also made once, on tensors of the same dtypes and sizes; where those are large and no number among
the arguments depends on them, on tensors whose sizes are small numbers, equal where the real ones are. What a kernel
raises then ends the graph there, and plain Python raises it where the program does.

Where sizes are symbols, the kernel is asked about those at hand, and again with each size that may be 0 being 0: where
that is refused, other calls must not have it.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from inspect import signature
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from firebrick.ir.graph.calls import tensors_in
from firebrick.ir.index.expr import Expr
from firebrick.ir.index.sizes import has_symbols, size_of, sizes_in

_LARGE = 1 << 13
"""Elements of arguments and results together from which on sizes are replaced by small ones: below, a call takes less
time than its capture."""
_REMEMBERED = 1 << 13
"""Calls whose answer is kept."""

_FREE = frozenset(
    {
        *("dim", "dims", "dim0", "dim1", "dim2", "dtype", "layout", "memory_format", "out_dtype", "device", "p"),
        *("low", "high", "diagonal", "decimals", "interpolation_mode", "padding_mode", "ignore_index", "padding_idx"),
        *("reduction",),
    }
)
"""Arguments whose numbers have nothing to do with sizes, but for the number of dimensions."""
_SIZES = frozenset(("size", "normalized_shape"))
"""Arguments that are sizes."""
_PLACES = frozenset(("index", "indices", "target", "offsets", "sorter"))
"""Arguments that hold places: 0 is one of any tensor, where 1 is a number that all other arguments may hold."""
_BY_VALUE = frozenset(
    {
        *("_segment_reduce_backward", "segment_reduce", "_local_scalar_dense", "set_", "resize_", "resize_as_"),
        *("_functional_assert_async", "repeat_interleave", "_nested_tensor_from_mask", "masked_scatter"),
    }
)
"""Ops that refuse values, which nobody knows yet, or that change memory."""
_OF_CPU = ("CPU", "MKL", "Unsupported dtype Half")
"""What errors name that say nothing about other devices."""
_ENDING = ("scaled_dot_product", "native_batch_norm")
"""Whose kernels end the process where one size is 0: they divide by it, or don't look whether it is another's too."""
_PUTS = frozenset(("index_put", "index_put_", "_index_put_impl_"))


class _Plan(NamedTuple):
    """names: of the arguments. shrinks: sizes may be replaced by others."""

    names: tuple[str, ...]
    shrinks: bool


_Call: TypeAlias = "tuple[Any, int, tuple[tuple[str, Any], ...]]"


class _Sizes:
    """Sizes as they are, or small ones: equal, greater, even and odd where they are, and the same below 5.

    numbers: of the call's tensors, by identity. emptied: a size that is 0 in place of what it is.
    """

    def __init__(self, sizes: Iterable[int] = (), emptied: Expr | None = None) -> None:
        self.small: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        self.emptied = emptied
        least = 5
        for size in sorted({n for n in sizes if n >= least}):
            least += (size - least) % 2
            self.small[size] = least
            least += 1

    def __call__(self, size: Any) -> int:
        number = self.number(size)
        return self.small.get(number, number)

    def number(self, size: Any) -> int:
        """A size as a number, without making a fact of it."""
        if type(size) is int:
            return size
        sizes = sizes_in((size,))
        if sizes is None:
            raise _Unknown
        e = size_of(size)
        return 0 if e == self.emptied else sizes.hint(e)


class _Unknown(Exception):
    """Nothing small is like this argument."""


@cache
def _plan(func: Any) -> _Plan | None:
    if isinstance(func, FunctionType) and func.__module__ == functional.__name__:
        return _Plan(tuple(signature(func).parameters), shrinks=False)
    if isinstance(func, BuiltinFunctionType) and hasattr(torch.ops.aten, func.__name__):
        packet = getattr(torch.ops.aten, func.__name__)
        names = max((tuple(a.name for a in getattr(packet, o)._schema.arguments) for o in packet.overloads()), key=len)
        return None if func.__name__ in _BY_VALUE else _Plan(names, shrinks=False)
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten" or func.is_view:
        return None
    if func._opname in _BY_VALUE or torch.Tag.inplace_view in func.tags or not func._schema.returns:
        return None
    arguments = func._schema.arguments
    numbers = {a.name for a in arguments if "int" in str(a.real_type) or "Sym" in str(a.real_type)}
    names = tuple(a.name for a in arguments)
    return _Plan(names, numbers <= (_FREE | _SIZES if "device" in names else _FREE | {"normalized_shape"}))


def check_accepted(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Raise what eager's kernel raises of arguments like these fake ones, if it does."""
    plan = _plan(func)
    if plan is None:
        return
    call = func, len(args), (*zip(plan.names, args, strict=False), *kwargs.items())
    error = None
    try:
        tensors = [t for value in (args, tuple(kwargs.values()), result) for t in tensors_in(value)]
        symbolic = [n for t in tensors if isinstance(t, FakeTensor) and has_symbols(t) for n in t.shape]
        if not symbolic and getattr(func, "_opname", "") in _PUTS:
            _check_mask(*args[:3])
        error, sizes = _refusal(call, plan, tensors), sizes_in(symbolic)
        if sizes is not None and any(name in func.__name__ for name in _ENDING):
            pass
        elif sizes is not None and error is None:
            for e in dict.fromkeys(
                e for n in symbolic if isinstance(e := size_of(n), Expr) and e.lo <= 0 < sizes.hint(e)
            ):
                if _refusal(call, plan, tensors, e) is not None:
                    sizes.ask("!=", e, 0, "expected")
        elif sizes is not None and any(sizes.of_data(size_of(n)) for n in symbolic):
            return  # nobody knows what they are now
    except (_Unknown, TypeError):
        return
    if error is not None:
        raise error


def _refusal(call: _Call, plan: _Plan, tensors: Sequence[Any], emptied: Expr | None = None) -> Exception | None:
    """What eager raises of a call with its sizes as they are, or with one of them being 0."""
    func, count, named = call
    sizes = _Sizes(emptied=emptied)
    shapes = [[sizes.number(n) for n in t.shape] for t in tensors]
    if min(map(min, filter(None, shapes)), default=0) < 0:
        raise _Unknown  # what is left of data's sizes, for which any numbers stand
    if sum(map(math.prod, shapes)) > _LARGE:
        if not plan.shrinks:
            return None
        sizes = _Sizes(itertools.chain(*shapes), emptied)
    key = (func, count, *[(name, _kind(value, sizes, name)) for name, value in named])
    if key not in _answers:
        if len(_answers) >= _REMEMBERED:
            _answers.clear()
        _answers[key] = _ask(func, key)
    return _answers[key]


def _check_mask(x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor) -> None:
    """How many places a mask names is not known; its own sizes are, and those of the dimensions that it leaves alone.
    Nothing else looks at them where `x` has no elements.
    """
    present = [i for i in indices if i is not None]
    if len(present) != 1 or present[0].dtype not in (torch.bool, torch.uint8):
        return
    with torch._C._DisableTorchDispatch():
        masks = [None if i is None else torch.zeros(i.shape, dtype=torch.bool) for i in indices]
        named = torch.empty(()).expand(x.shape)[tuple(slice(None) if m is None else m for m in masks)]
        shape = list(values.shape)
        while len(shape) > named.dim() and shape[0] == 1:
            del shape[0]
        counted = len(shape) - named.dim() + next(n for n, m in enumerate(masks) if m is not None)
        if counted >= 0:
            shape[counted] = 1
        torch.empty(()).expand(shape).expand(named.shape)


_answers: dict[Any, Exception | None] = {}
"""A call's kind -> what eager raises."""


class _Like(NamedTuple):
    """A tensor that is made for a question. number: which of the call's it is, for one may be in several places."""

    number: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    is_cpu: bool


class _Items(NamedTuple):
    kind: type
    items: tuple[Any, ...]


class _Number(NamedTuple):
    """Equal ones of different types are two."""

    kind: type
    value: Any


def _kind(value: Any, sizes: _Sizes, name: str) -> Any:
    """What stands for an argument in a question; can be hashed."""
    if isinstance(value, FakeTensor):
        if value.layout != torch.strided:
            raise _Unknown
        number = sizes.numbers.setdefault(id(value), len(sizes.numbers))
        return _Like(number, value.dtype, tuple([sizes(n) for n in value.shape]), value.fake_device.type == "cpu")
    if isinstance(value, (tuple, list)):
        items = tuple([_kind(v, sizes, name) for v in value])
        masks = [i for i in items if isinstance(i, _Like) and i.dtype in (torch.bool, torch.uint8)]
        if name == "indices" and any(0 not in mask.shape for mask in masks):
            raise _Unknown  # how many places a mask names is not known
        return _Items(type(value), items)
    if isinstance(value, (torch.Tensor, torch.SymFloat, torch.SymBool, torch.Generator)):
        raise _Unknown
    number = sizes.number(value) if isinstance(value, torch.SymInt) else value
    return _Number(type(number), sizes(number) if name in _SIZES and type(number) is int else number)


def _argument_of(kind: Any, name: str, tensors: dict[int, torch.Tensor]) -> Any:
    if isinstance(kind, _Like):
        if kind.number not in tensors:
            tensors[kind.number] = torch.full(kind.shape, int(name not in _PLACES), dtype=kind.dtype)
        return tensors[kind.number]
    if isinstance(kind, _Items):
        items = [_argument_of(item, name, tensors) for item in kind.items]
        return items if issubclass(kind.kind, list) else tuple(items)
    return torch.device("cpu") if isinstance(kind.value, torch.device) else kind.value


def _ask(func: Any, key: tuple[Any, ...]) -> Exception | None:
    count = key[1]
    on_cpu = all(like.is_cpu for _, kind in key[2:] for like in _likes(kind))
    with (
        torch._C._DisableTorchDispatch(),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
        torch.no_grad(),
    ):
        warnings.simplefilter("ignore")
        tensors: dict[int, torch.Tensor] = {}
        arguments = [(name, _argument_of(kind, name, tensors)) for name, kind in key[2:]]
        try:
            func(*[value for _, value in arguments[:count]], **dict(arguments[count:]))
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return None  # of these values
        except Exception as error:  # noqa: BLE001  whatever eager raises, the program's plain Python will raise
            cpus_own = isinstance(error, NotImplementedError) or any(word in str(error) for word in _OF_CPU)
            return error.with_traceback(None) if on_cpu or not cpus_own else None
    return None


def _likes(kind: Any) -> Iterator[_Like]:
    if isinstance(kind, _Like):
        yield kind
    elif isinstance(kind, _Items):
        for item in kind.items:
            yield from _likes(item)
