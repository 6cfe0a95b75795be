"""Rules of numpy: constants are evaluated, arrays are tensors of the graph, and what torch has no equal of breaks.

An array comes in by `torch.from_numpy` and leaves by `Tensor.numpy()`, on its own memory. The dtypes of elementwise
functions are those of numpy's loops, which numpy itself is asked for. Results agree as those of two math libraries
do: exactly for what moves or compares data, within rounding for sums and transcendental functions.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from firebrick.capture.breaks.catalogue import Break, breaks
from firebrick.capture.interpreter import operators
from firebrick.capture.library.known_callables import TRANSPARENT_MODULES, handles, handles_all, handles_each
from firebrick.capture.library.numpy_rows import METHODS, ROWS, UFUNCS, Refused, Row, Ufunc
from firebrick.capture.values.array import ARRAY_METHODS, ArrayValue, numpy_dtype, torch_dtype
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Raised, Value
from firebrick.capture.values.constant import NONE, ConstantValue, is_none
from firebrick.capture.values.sequence import ListValue, SequenceValue, SliceValue, TupleValue
from firebrick.capture.values.tensor import TENSOR_METHODS, TensorValue

_FUNCTIONS = (
    *("arange", "convolve", "eye", "fmod", "hanning", "hamming", "identity", "interp", "linspace", "logspace"),
    *("meshgrid", "percentile", "polyfit", "promote_types", "quantile", "unravel_index"),
    *("cbrt", "divmod", "modf", "frexp", "ldexp", "heaviside", "unique"),
    *("iinfo", "finfo", "dtype"),
)
"""Functions of numpy without a row that have no effect: evaluated where all is constant."""

_KINDS = ("ndim", "size", "shape", "isscalar", "iscomplexobj", "isrealobj", "result_type", "can_cast", "issubdtype")
"""Functions of numpy that ask for the shape and dtype of arrays."""

_SCALARS = ("bool_", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
"""Classes of numpy's scalars."""

_MOST_LITERALS = 4096
TRANSPARENT_MODULES.add("firebrick.capture.library.numpy_rows")


def _has_array(value: Value) -> bool:
    value = value.realize()
    if isinstance(value, SequenceValue):
        return any(_has_array(item) for item in value.items)
    return isinstance(value, (ArrayValue, TensorValue))


def _result(value: Value, *, scalar: bool) -> Value:
    """What a function of torch gave, as numpy's gives it."""
    value = value.realize()
    if isinstance(value, TensorValue):
        return ArrayValue(value, scalar=scalar and value.fake.ndim == 0)
    if isinstance(value, (TupleValue, ListValue)):
        return value.copy_with([_result(item, scalar=scalar) for item in value.items])
    return value


def _method(interp: Interpreter, value: Value, name: str, *args: Value) -> TensorValue:
    tensor = value.call_method(interp, name, args, {})
    assert isinstance(tensor, TensorValue)
    return tensor


# -- constants ------------------------------------------------------------------------------------------


def _evaluate(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    host, named = interp.hosts(args, kwargs, "unsupported-operation", f"numpy.{function.__name__}() is called")
    with interp.raising(Exception):
        result = function(*host, **named)
    return _as_value(interp, result)


def _as_value(interp: Interpreter, obj: Any) -> Value:
    if isinstance(obj, np.ndarray):
        return ArrayValue(_literal(interp, obj))
    if isinstance(obj, (tuple, list)):
        items = [_as_value(interp, item) for item in obj]
        return TupleValue(items, cls=type(obj)) if isinstance(obj, tuple) else ListValue(items)
    return interp.tracer.fresh(obj)


def _literal(interp: Interpreter, array: np.ndarray[Any, Any]) -> TensorValue:
    """A new tensor with the elements of an array that is known now."""
    dtype = ConstantValue(torch_dtype(array.dtype))
    graph = interp.tracer.graph
    if array.size > _MOST_LITERALS:
        raise Break("numpy", f"an array of {array.size} constants is made")
    if not array.size:
        shape = interp.tracer.fresh(array.shape)
        tensor = graph.call(interp, "call_function", torch.zeros, [shape], {"dtype": dtype})
    else:
        elements = interp.tracer.fresh(array.tolist())
        tensor = graph.call(interp, "call_function", torch.tensor, [elements], {"dtype": dtype})
    assert isinstance(tensor, TensorValue)
    return tensor


# -- operands ---------------------------------------------------------------------------------------------


def _array(interp: Interpreter, value: Value) -> ArrayValue | ConstantValue:
    """An operand: an array, or a number; lists become arrays."""
    value = value.realize()
    if isinstance(value, ArrayValue):
        return value
    if isinstance(value, ConstantValue) and isinstance(value.value, (bool, int, float, complex, np.generic)):
        return value
    if isinstance(value, SequenceValue):
        array = _join(interp, value) if _has_array(value) else _evaluate(interp, np.array, [value], {})
        assert isinstance(array, ArrayValue)
        return array
    raise Break("numpy", f"{value.describe()} is passed to a function of numpy")


def _join(interp: Interpreter, value: SequenceValue) -> Value:
    """`np.array` of a list of arrays and numbers."""
    parts = [_array(interp, item) for item in value.items]
    joined: list[Value] = [_as_tensor(interp, part, _common_dtype(parts)) for part in parts]
    stacked = interp.tracer.graph.call(interp, "call_function", torch.stack, [ListValue(joined)], {})
    return _result(stacked, scalar=False)


def _loop_type(value: ArrayValue | ConstantValue) -> Any:
    """How an operand counts in numpy's promotion: numbers of Python are weak."""
    if isinstance(value, ConstantValue) and type(value.value) in (int, float, complex):
        return type(value.value)
    return _own_dtype(value)


def _own_dtype(value: ArrayValue | ConstantValue) -> np.dtype[Any]:
    return value.dtype if isinstance(value, ArrayValue) else np.asarray(value.value).dtype


def _cast(interp: Interpreter, value: ArrayValue | ConstantValue, dtype: np.dtype[Any]) -> Value:
    """A tensor of a dtype, or the number as it is in that dtype."""
    ours = torch_dtype(dtype)
    if isinstance(value, ArrayValue):
        if value.tensor.fake.dtype is ours:
            return value.tensor
        return _method(interp, value.tensor, "to", ConstantValue(ours))
    try:
        number = dtype.type(value.value)
    except (OverflowError, TypeError, ValueError) as error:
        raise Break("numpy", f"{value.describe()} in an operation of {dtype}") from error
    return ConstantValue(number.item())


def _common_dtype(values: Sequence[ArrayValue | ConstantValue]) -> np.dtype[Any]:
    return np.result_type(*[value.stand_in() if isinstance(value, ArrayValue) else value.value for value in values])


def _as_tensor(interp: Interpreter, value: ArrayValue | ConstantValue, dtype: np.dtype[Any] | None) -> TensorValue:
    if dtype is None:
        dtype = _own_dtype(value)
    operand = _cast(interp, value, dtype)
    return operand if isinstance(operand, TensorValue) else _literal(interp, np.array(operand.as_constant(), dtype))


# -- elementwise functions --------------------------------------------------------------------------------


def _call_ufunc(function: np.ufunc, row: Ufunc, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not any(map(_has_array, args)):
        return _evaluate(interp, function, args, kwargs)
    if kwargs or len(args) != function.nin:
        raise Break("numpy", f"numpy.{function.__name__}() is called with more than its operands")
    if "raise" in np.geterr().values() or "call" in np.geterr().values():
        raise Break("numpy", "numpy.seterr() is set to raise")
    values = [_array(interp, arg) for arg in args]
    try:
        *types, out = function.resolve_dtypes((*map(_loop_type, values), *[None] * function.nout))
    except TypeError as error:
        raise Break("numpy", f"numpy.{function.__name__}(): {error}") from error
    kind = types[0].kind
    if kind not in row.kinds:
        raise Break("numpy", f"numpy.{function.__name__}() of {types[0]}")
    if row.constant is not None and kind in "iu" and not _holds(row, values[1]):
        raise Break("numpy", f"numpy.{function.__name__}() of integers, whose second operand is not known")
    convert: Any = _cast if row.function.__module__ == "_operator" else _as_tensor  # operators take numbers
    operands = [convert(interp, value, dtype) for value, dtype in zip(values, types, strict=True)]
    result = interp.tracer.graph.call(interp, "call_function", row.function, operands, {}).realize()
    assert isinstance(result, TensorValue)
    array = ArrayValue(result, scalar=result.fake.ndim == 0)
    return ArrayValue(_as_tensor(interp, array, out), scalar=array.scalar)


def _holds(row: Ufunc, value: ArrayValue | ConstantValue) -> bool:
    return isinstance(value, ConstantValue) and row.constant is not None and row.constant(value.value)


def _in_place(function: Callable[..., Value], interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`a += b`: an array is written to, all else is replaced."""
    left = args[0].realize()
    result = function(interp, args, {})
    if not isinstance(left, ArrayValue) or left.scalar:
        return result
    assert isinstance(result, ArrayValue)
    if not np.can_cast(result.dtype, left.dtype, "same_kind") or result.tensor.fake.shape != left.tensor.fake.shape:
        raise Break("numpy", f"{left.describe()} can't hold the result of an operation in place")
    _method(interp, left.tensor, "copy_", result.tensor)
    return left


# -- functions with rows -------------------------------------------------------------------------------------


def _call_row(name: str, function: Any, row: Row, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if function is not None and not row.creates and not any(map(_has_array, (*args, *kwargs.values()))):
        return _evaluate(interp, function, args, kwargs)
    try:
        bound = inspect.signature(row.function).bind(*args, **kwargs)
    except TypeError as error:
        raise Break("numpy", f"numpy.{name}(): {error}") from error
    arguments: dict[str, Any] = bound.arguments
    if "dtype" in arguments:
        arguments["dtype"] = _dtype(arguments["dtype"])
    for one in row.operands:
        if one in arguments and not is_none(arguments[one]):
            arguments[one] = _operands(interp, arguments[one])
    _promote(interp, row, arguments)
    others = [value for one, value in arguments.items() if one not in row.operands]
    if any(_has_array(one) for value in others for one in (value if isinstance(value, tuple) else (value,))):
        raise Break("numpy", f"numpy.{name}() with an array where a number is expected")
    try:
        inlined = interp.tracer.function(row.function)
        result = interp.inline(inlined, bound.args, bound.kwargs)
    except Raised as raised:
        if interp.is_instance(raised.value, Refused):
            why = raised.value.args[0].realize().as_constant()  # type: ignore[attr-defined]
            raise Break("numpy", f"numpy.{name}(): {why}") from None
        raise
    return _result(result, scalar=row.scalar)


def _dtype(value: Value) -> Value:
    constant = value.realize()
    if not constant.is_constant():
        raise Break("numpy", f"{value.describe()} is taken for a dtype")
    if constant.as_constant() is None:
        return NONE
    try:
        return ConstantValue(torch_dtype(constant.as_constant()))
    except TypeError as error:
        raise Break("numpy", f"{value.describe()} is taken for a dtype") from error


def _operands(interp: Interpreter, value: Value) -> Any:
    """An operand, or a list of them, as numpy's own functions read it."""
    value = value.realize()
    if isinstance(value, SequenceValue) and any(_has_array(item) for item in value.items):
        return [_array(interp, item) for item in value.items]
    return _array(interp, value)


def _promote(interp: Interpreter, row: Row, arguments: dict[str, Any]) -> None:
    operands = {
        one: value
        for one in row.operands
        if isinstance(value := arguments.get(one), list)
        or (isinstance(value, (ArrayValue, ConstantValue)) and not is_none(value))
    }
    together = [one for name in row.promote if name in operands for one in _listed(operands[name])]
    common = _common_dtype(together) if together else None
    for name, value in operands.items():
        tensors: list[Value] = []
        for one in _listed(value):
            dtype = (name in row.promote and common) or _own_dtype(one)
            if row.floating and dtype.kind in "biu":
                dtype = np.dtype(np.float64)
            tensors.append(_as_tensor(interp, one, dtype))
        arguments[name] = TupleValue(tensors) if isinstance(value, list) else tensors[0]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# -- items ----------------------------------------------------------------------------------------------------


def _key(interp: Interpreter, array: ArrayValue, key: Value) -> tuple[Value, bool, bool]:
    """An index for a tensor, whether it selects one element as a scalar, and whether it has arrays."""
    key = key.realize()
    parts = [part.realize() for part in (key.items if isinstance(key, TupleValue) else [key])]
    index_parts: list[Value] = []
    numbers = arrays = 0
    for part in parts:
        number = part.value if isinstance(part, ConstantValue) else None
        if isinstance(number, (int, np.integer)) and not isinstance(number, bool):
            numbers += 1
            index_parts.append(ConstantValue(int(number)))
        elif isinstance(part, SliceValue) or (isinstance(part, ConstantValue) and part.value in (None, Ellipsis)):
            if isinstance(part, SliceValue) and not (part.is_constant() and (part.as_constant().step or 1) > 0):
                raise Break("numpy", "a slice with a negative or unknown step")
            index_parts.append(part)
        elif isinstance(part, (ArrayValue, ListValue)):
            arrays += 1
            index = _array(interp, part)
            if not isinstance(index, ArrayValue) or index.dtype.kind not in "biu" or not index.tensor.fake.ndim:
                raise Break("numpy", f"{part.describe()} is used as an index")
            index_parts.append(_as_tensor(interp, index, None if index.dtype.kind == "b" else np.dtype(np.int64)))
        else:
            raise Break("numpy", f"{part.describe()} is used as an index")
    if arrays and numbers:
        raise Break("numpy", "numbers and arrays in one index")  # torch puts the dimensions in another order
    one = numbers == array.tensor.fake.ndim and len(parts) == numbers
    return TupleValue(index_parts), one, bool(arrays)


def _get_item(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    array = args[0].realize()
    assert isinstance(array, ArrayValue)
    key, one, _ = _key(interp, array, args[1])
    item = interp.tracer.graph.call(interp, "call_function", operator.getitem, (array.tensor, key), {})
    assert isinstance(item, TensorValue)
    return ArrayValue(_method(interp, item, "clone"), scalar=True) if one else ArrayValue(item)


def _set_item(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    array = args[0].realize()
    assert isinstance(array, ArrayValue)
    key, _, by_array = _key(interp, array, args[1])
    value = _array(interp, args[2])
    if isinstance(value, ArrayValue):
        if value.dtype.kind == "c" != array.dtype.kind:
            raise Break("numpy", "complex numbers are written to real ones")
        stored: Value = _method(interp, value.tensor, "clone")  # numpy reads all of it first
    else:
        stored = _cast(interp, value, array.dtype)
        if value.value == value.value and stored.as_constant() != value.value and array.dtype.kind not in "fc":
            raise Break("numpy", f"{value.describe()} is written to an array of {array.dtype}")
    if by_array and any(isinstance(part, TensorValue) and part.fake.dtype != torch.bool for part in key.children()):
        raise Break("numpy", "elements are written by an array of places")
    interp.tracer.graph.call(interp, "call_function", operator.setitem, (array.tensor, key, stored), {})
    return NONE


# -- conversions ------------------------------------------------------------------------------------------------


def _array_of_tensor(interp: Interpreter, value: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """`Tensor.numpy()`: an array on the tensor's memory."""
    fake = value.fake
    plain = fake.layout is torch.strided and fake.device.type == "cpu" and not fake.is_conj() and not fake.is_neg()
    if args or kwargs or fake.requires_grad or not plain or value.cls is not torch.Tensor:
        raise Break("numpy", "Tensor.numpy() of such a tensor")
    value.get_attr(interp, "requires_grad")  # guards it
    numpy_dtype(fake.dtype)
    return ArrayValue(value)


TENSOR_METHODS["numpy"] = _array_of_tensor


@handles(torch.from_numpy)
def _from_numpy(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0].realize()
    if not isinstance(value, ArrayValue) or value.scalar or kwargs:
        raise Break("unsupported-call", f"torch.from_numpy() of {value.describe()}")
    interp.tracer.graph.inference.check_array(value.tensor.fake)
    return _method(interp, value.tensor, "detach")  # a new tensor each time


def _to_array(interp: Interpreter, value: Value, dtype: Value | None, *, copy: bool) -> Value:
    value = value.realize()
    if isinstance(value, TensorValue):
        value = _array_of_tensor(interp, value, (), {})
    array = _array(interp, value)
    if isinstance(array, ConstantValue):
        array = ArrayValue(_literal(interp, np.asarray(array.value)))
        copy = False
    fresh = not isinstance(value, ArrayValue)
    wanted = NONE if dtype is None else _dtype(dtype)
    if wanted is not NONE and wanted.as_constant() is not array.tensor.fake.dtype:
        return ArrayValue(_method(interp, array.tensor, "to", wanted))
    return array if fresh or (not copy and not array.scalar) else ArrayValue(_method(interp, array.tensor, "clone"))


@handles_each(np.array, np.asarray, np.asanyarray)
def _makes(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not 1 <= len(args) <= 2 or set(kwargs) - {"dtype"}:
        raise Break("numpy", f"numpy.{function.__name__}() is called with these arguments")
    first = args[0].realize()
    dtype = args[1] if len(args) > 1 else kwargs.get("dtype")
    if not _has_array(first):
        return _evaluate(interp, function, args, kwargs)
    return _to_array(interp, first, dtype, copy=function is np.array)


@handles(np.ascontiguousarray)
def _contiguous(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1 or kwargs:
        raise Break("numpy", "numpy.ascontiguousarray() is called with a dtype")
    array = _to_array(interp, args[0], None, copy=False)
    assert isinstance(array, ArrayValue)
    if not array.tensor.fake.ndim:
        raise Break("numpy", "numpy.ascontiguousarray() of a scalar")
    if array.tensor.fake.is_contiguous():
        return array
    return ArrayValue(_method(interp, array.tensor, "contiguous"))


# -- registration -------------------------------------------------------------------------------------------------


@handles_each(*(getattr(np, name) for name in _FUNCTIONS if hasattr(np, name)))
def _of_constants(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if any(map(_has_array, (*args, *kwargs.values()))):
        raise Break("numpy", f"numpy.{function.__name__}() of an array")
    return _evaluate(interp, function, args, kwargs)


@handles_each(*(getattr(np, name) for name in _KINDS))
def _of_kinds(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    values = [arg.realize() for arg in args]
    if kwargs or any(isinstance(value, TensorValue) for value in values):
        raise Break("numpy", f"numpy.{function.__name__}() with keywords or tensors")
    host = [one.stand_in() if isinstance(one, ArrayValue) else operators.host_text(interp, one) for one in values]
    with interp.raising(Exception):
        return interp.tracer.fresh(function(*host))


@handles_each(*(getattr(np, name) for name in _SCALARS))
def _of_scalars(cls: type, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not any(map(_has_array, args)):
        return _evaluate(interp, cls, args, kwargs)
    value = args[0].realize()
    if not isinstance(value, ArrayValue) or not value.scalar or len(args) > 1 or kwargs:
        raise Break("numpy", f"numpy.{cls.__name__}() of an array")
    return _result(ARRAY_METHODS["astype"](interp, [value, interp.tracer.known(cls)], {}).tensor, scalar=True)


handles_all({function: partial(_call_row, function.__name__, function, row) for function, row in ROWS.items()})
for _name, _row in METHODS.items():
    ARRAY_METHODS[_name] = partial(_call_row, f"ndarray.{_name}", None, _row)
_RULES = {function: partial(_call_ufunc, function, row) for function, row in UFUNCS.items()}
handles_all(_RULES)
_BY_FUNCTION = {row.function: function for function, row in reversed([*UFUNCS.items()])}
_OPERATORS: Mapping[str, np.ufunc] = {
    **{symbol: _BY_FUNCTION[row.function] for symbol, row in operators.BINARY.items() if symbol != "@"},
    **{symbol: _BY_FUNCTION[row[0]] for symbol, row in operators.COMPARE.items()},
    "@": np.matmul,
    "__neg__": np.negative,
    "__pos__": np.positive,
    "__invert__": np.invert,
    "__abs__": np.absolute,
}
for _symbol, _function in _OPERATORS.items():
    ARRAY_METHODS[_symbol] = _RULES[_function]
    if _symbol in operators.BINARY:
        ARRAY_METHODS[f"{_symbol}="] = partial(_in_place, _RULES[_function])
ARRAY_METHODS["__getitem__"], ARRAY_METHODS["__setitem__"] = _get_item, _set_item
for _name, _text in {
    "item": "ndarray.item()",
    "tolist": "ndarray.tolist()",
    "__float__": "float() of an array",
    "__int__": "int() of an array",
    "__index__": "an array used as an index",
    "tobytes": "ndarray.tobytes()",
}.items():
    ARRAY_METHODS[_name] = breaks("data-dependent-value", _text)
