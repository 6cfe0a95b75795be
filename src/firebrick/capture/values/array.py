"""Arrays and scalars of numpy that depend on data: tensors of the graph that leave it through `Tensor.numpy()`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.values.base import Args, ComparedValue, Interpreter, Kwargs, Source, Value, ValueEmitter
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.method import MethodValue

if TYPE_CHECKING:
    from firebrick.capture.values.tensor import TensorValue

_DTYPES: Mapping[np.dtype[Any], torch.dtype] = {
    np.dtype(name): getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
"""Dtypes of numpy whose arithmetic torch has too."""
_BACK = {ours: theirs for theirs, ours in _DTYPES.items()}
_MOST_ITERATED = 64
_BY_VALUE = np.lib.NumpyVersion(np.__version__) < "2.0.0"  # before, values took part in the promotion of dtypes


def torch_dtype(dtype: Any) -> torch.dtype:
    """The dtype of torch for one of numpy's; raises Break: torch has none, or too few operations for it."""
    if _BY_VALUE:
        raise Break("numpy", "dtypes of numpy 1 depend on values")
    ours = _DTYPES.get(np.dtype(dtype))
    if ours is None or not np.dtype(dtype).isnative:
        raise Break("numpy", f"an array of {np.dtype(dtype)}")
    return ours


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The dtype of numpy for one of torch's."""
    if dtype not in _BACK or _BY_VALUE:
        raise Break("numpy", f"numpy has no {dtype}")
    return _BACK[dtype]


class ArrayValue(ComparedValue):
    """An array on a tensor's memory, or a numpy scalar with a tensor's one value."""

    __slots__ = ("obj", "scalar", "tensor")
    held = ("tensor",)

    def __init__(
        self, tensor: TensorValue, source: Source | None = None, obj: Any = None, *, scalar: bool = False
    ) -> None:
        self.source, self.tensor, self.obj, self.scalar = source, tensor, obj, scalar

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its dtype."""
        return numpy_dtype(self.tensor.fake.dtype)

    def stand_in(self) -> Any:
        """An array or scalar of the same shape and dtype, of other values."""
        empty = np.zeros((), self.dtype)
        return empty[()] if self.scalar else np.broadcast_to(empty, tuple(self.tensor.fake.shape))

    def python_type(self) -> type:
        """np.ndarray, or the class of the scalar."""
        return self.dtype.type if self.scalar else np.ndarray

    def identity(self) -> object:
        """The real array, or this value."""
        return self if self.obj is None else self.obj

    def as_argument(self) -> Any:
        """Functions of torch do not take arrays."""
        raise Break("numpy", f"{self.describe()} is passed to a torch function")

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """What is known of every array of its shape and dtype, the transposed one, or methods."""
        if name in ("shape", "ndim", "size", "dtype", "itemsize", "nbytes"):
            return interp.tracer.known(getattr(self.stand_in(), name))
        if name == "__class__":
            return interp.tracer.known(self.python_type())
        if name == "T" or (name == "real" and self.dtype.kind != "c" and not self.scalar):
            return self.call_method(interp, "transpose" if name == "T" else "view", [], {})
        if not hasattr(self.python_type(), name):
            kind = self.python_type()
            interp.raise_new(AttributeError, f"{kind.__module__}.{kind.__name__} object has no attribute {name!r}")
        if name not in ARRAY_METHODS and not callable(getattr(self.python_type(), name)):
            raise Break("numpy", f"{name} of {self.describe()} is read")
        return MethodValue(self, name)

    def set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """Changing an array's form breaks."""
        raise Break("numpy", f"{name} of {self.describe()} is set")

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """By the table of methods."""
        method = ARRAY_METHODS.get(name)
        if method is None:
            raise Break("numpy", f"{name}() of {self.describe()} is called")
        return method(interp, [self, *args], kwargs)

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """Rows, or scalars."""
        length = self.length(interp)
        if length > _MOST_ITERATED:
            raise Break("numpy", f"a loop over an array of {length} rows")
        return iter([self.get_item(interp, ConstantValue(index)) for index in range(length)])

    def length(self, interp: Interpreter) -> int:
        """Size of the first dimension."""
        if not self.tensor.fake.ndim:
            interp.raise_new(TypeError, "len() of unsized object")
        return int(self.tensor.fake.shape[0])

    def truth(self, interp: Interpreter) -> bool:
        """Depends on data."""
        raise Break("data-dependent-branch", "the truth of an array is asked")

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """`tensor.numpy()`."""
        if self.scalar:
            emitter.load_call(lambda tensor: tensor.numpy()[()], self.tensor)
        else:
            emitter.call_method_on(self.tensor, "numpy", keep=True)


ARRAY_METHODS: dict[str, Any] = {}
"""Method of arrays -> its rule; filled with the rules of numpy's functions."""
