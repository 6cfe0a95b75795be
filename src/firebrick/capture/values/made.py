"""What is made before the graph: tensors that are arguments of it, and Python numbers that differ from call to call."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import fx

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.emit.prelude import Made
from firebrick.capture.values.base import Args, Interpreter, Kwargs, UnknownValue, Value, ValueEmitter
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.size import SizeValue
from firebrick.capture.values.tensor import TensorValue


class MadeTensor(TensorValue):
    """An argument of the graph that new code makes before it; `example` is one like it, whose data mean nothing."""

    __slots__ = ("example", "made", "place")

    def __init__(self, node: fx.Node, fake: torch.Tensor, made: Made, example: torch.Tensor) -> None:
        super().__init__(node, fake, cls=type(example))
        self.made, self.example, self.place = made, example, node

    def load(self, emitter: ValueEmitter) -> None:
        """Load what was made."""
        emitter.load_fast(emitter.made_temp(self.made.index))

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Load it, or what the graph has made of it, as by `detach_`."""
        if self.node is self.place:
            self.load(emitter)
        else:
            super().reconstruct(emitter)


class NumberInGraph(Break):
    """A number that differs from call to call is an argument of a graph function."""


class NumberValue(UnknownValue):
    """A Python int or float that differs from call to call. What needs to know it now breaks."""

    __slots__ = ("cls", "largest", "operand")  # largest: it is no further from 0

    def __init__(self, cls: type, operand: Made | None, largest: float = math.inf) -> None:
        self.cls, self.operand, self.largest = cls, operand, largest

    def _unknown(self) -> NoReturn:
        raise Break("changing-value", f"another {self.cls.__name__} in each call is used where it must be known")

    def as_argument(self) -> Any:
        """It goes into a graph as a tensor without dimensions, where one is taken: see `call_with_numbers`."""
        raise NumberInGraph("changing-value", f"another {self.cls.__name__} in each call is given to a torch function")

    def identity(self) -> object:
        """Small integers are one object, others are not."""
        self._unknown()

    def tensor_like(self, interp: Interpreter, dtype: torch.dtype, device: torch.device) -> TensorValue:
        """A tensor of it, if a tensor of the graph is its operand."""
        raise NotImplementedError

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Load what was made."""
        assert isinstance(self.operand, Made)
        emitter.load_fast(emitter.made_temp(self.operand.index))

    @staticmethod
    def binary(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value:
        """Arithmetic that can't raise is done before the graph too; raises Break: it may, or is none of numbers."""
        operands = [_operand(value) for value in (left, right)]
        function, kinds = _EXACT.get(symbol), {value.python_type() for value in (left, right)}
        if symbol == "/" and isinstance(right, ConstantValue) and right.value and float in kinds:
            function = operator.truediv
        if function is None or None in operands or not kinds <= {int, float}:
            raise Break("changing-value", f"{symbol} of numbers that differ from call to call")
        bounds = [_largest(value) for value in (left, right)]
        if float in kinds:
            for value, bound in zip((left, right), bounds, strict=True):
                if value.python_type() is int and not bound < _LARGEST:
                    raise Break("changing-value", f"{symbol} of a float and an int that may be no float")
        if symbol == "/":
            bounds[1] = 1 / bounds[1]
        largest = bounds[0] + bounds[1] if symbol in "+-" else bounds[0] * bounds[1]
        return NumberValue(float if float in kinds else int, interp.tracer.prelude.add(function, operands), largest)

    def converted(self, interp: Interpreter, function: Callable[[Any], Any]) -> Value:
        """`int`, `float`, `abs` or `round` of it."""
        kind = {abs: self.cls, float: float}.get(function, int)  # type: ignore[dict-item]
        if kind is not self.cls and not self.largest < _LARGEST:
            self._unknown()
        return NumberValue(kind, interp.tracer.prelude.add(function, [self.operand]), self.largest + 1)

    def unary(self, interp: Interpreter, symbol: str) -> Value:
        """`-self`."""
        if symbol != "-":
            self._unknown()
        return NumberValue(self.cls, interp.tracer.prelude.add(operator.neg, [self.operand]), self.largest)


_EXACT: Mapping[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
"""Arithmetic of int and float that never raises, if an int is no larger than any float."""

_CPU = torch.device("cpu")
_EXACT_FLOATS = (torch.float32, torch.float64)
_LARGEST = 1 << 62
"""Integers below it are no larger than any float, and fit in a tensor; floats below it have an integer."""


def _largest(value: Value) -> float:
    bound = value.largest if isinstance(value, NumberValue) else abs(value.as_constant())
    return bound if bound < _LARGEST else math.inf


def _operand(value: Value) -> Any:
    if isinstance(value, NumberValue):
        return value.operand
    return value.value if isinstance(value, ConstantValue) else None


def _names(*words: str) -> frozenset[str]:
    return frozenset(form for word in words for form in (word, f"{word}_", f"i{word}"))


_DIVISIONS = _names("truediv", "div", "divide", "true_divide")
_WITH_NUMBERS = _DIVISIONS | _names("add", "sub", "mul", "subtract", "multiply")
_WITH_NUMBERS |= {*("eq", "ge", "gt", "le", "lt", "ne", "greater", "greater_equal", "less", "less_equal", "not_equal")}
"""Functions of two operands whose result is the same for a number and for a tensor without dimensions like it."""


_BOUNDS = frozenset(
    f"{name}{in_place}" for name in ("clamp", "clip", "clamp_min", "clamp_max") for in_place in ("", "_")
)
"""Functions of a tensor and of bounds, which are numbers or tensors."""


def takes_number(kind: type, tensor: TensorValue) -> bool:
    """Whether a tensor without dimensions stands for a number beside a tensor."""
    return tensor.cls in (torch.Tensor, torch.nn.Parameter) and _dtype_beside(kind, tensor.fake) is not None


def number_beside(interp: Interpreter, value: Value, other: Value) -> Value:
    """A size as a number that is computed before the graph, where it meets a tensor; other values as they are."""
    graph = interp.tracer.graph
    if not isinstance(value, SizeValue) or not isinstance(other, TensorValue) or graph.outer is not None:
        return value
    if not takes_number(int, other):
        return value
    sizes = graph.sizes.sizes

    def number_in_graph(value: SizeValue) -> Value:
        kind = {"dtype": ConstantValue(_dtype_beside(int, other.fake)), "device": ConstantValue(other.fake.device)}
        return graph.call(interp, "call_function", torch.scalar_tensor, [value], kind)

    if sizes.of_data(sizes.settled(value.expr)):
        return number_in_graph(value)
    for symbol in sizes.settled(value.expr).vars():
        sizes.ask("<", symbol, 1 << 31, "exactly")
    expr = sizes.settled(value.expr)
    largest = max(abs(expr.lo), abs(expr.hi))
    if not expr.terms or largest >= _LARGEST:
        return value
    if graph.keeps_sizes:
        return number_in_graph(value)
    return NumberValue(int, graph.sizes.operand(expr), largest)


def call_with_numbers(interp: Interpreter, op: str, target: Any, args: Args, kwargs: Kwargs) -> Value:
    """Call a graph function with tensors for numbers that differ from call to call.

    A number takes part in type promotion by its category alone, as does a tensor without dimensions beside one that
    has some: it is given the dtype that makes this hold for all others.

    Raises:
        Break: the function may tell a number from a tensor.
    """
    graph, name = interp.tracer.graph, target if isinstance(target, str) else getattr(target, "__name__", "")
    if (scaled := _scaled(interp, name, args, kwargs)) is not None:
        return scaled
    if target in (torch.full, "new_full") and len(args) > 1 and not {*kwargs} - {"dtype", "device"}:
        number = args[-1].realize()
        if isinstance(number, NumberValue):
            options = kwargs if target == "new_full" else {"dtype": ConstantValue(_dtype_alone(number)), **kwargs}
            empty = "new_empty" if target == "new_full" else torch.empty
            result = graph.call(interp, op, empty, args[:-1], options)
            filled = number_tensor(interp, number, torch.float64 if number.cls is float else _dtype_alone(number))
            return graph.call(interp, "call_method", "fill_", [result, filled], {})
    if name in _BOUNDS and kwargs.keys() <= {"min", "max"} and len(args) == 1:
        args, kwargs = [*args, kwargs.get("min", NONE), kwargs.get("max", NONE)], {}
    return graph.call(interp, op, target, _with_tensors(interp, name, args, kwargs), {})


_SCALED = {("lerp", 3), ("lerp", 2, "weight"), ("leaky_relu", 2), ("leaky_relu", 1, "negative_slope")}
_SCALED |= {("add", 2, "alpha"), ("sub", 2, "alpha"), ("addcmul", 3, "value"), ("addcdiv", 3, "value")}
"""Functions of tensors and, behind them, a float: name, count of positional arguments, names of others."""


def _scaled(interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value | None:
    """Such a call by calls of tensors alone that give eager's bits; None for others."""
    form, graph = name.removesuffix("_"), interp.tracer.graph
    if (form, len(args), *kwargs) not in _SCALED or name == "leaky_relu_":
        return None
    *tensors, number = (arg.realize() for arg in (*args, *kwargs.values()))
    plain = [t for t in tensors if isinstance(t, TensorValue) and t.cls in (torch.Tensor, torch.nn.Parameter)]
    kinds = {(t.fake.device.type, t.fake.dtype) for t in plain}
    if len(plain) < len(tensors) or kinds not in [{("cpu", dtype)} for dtype in _EXACT_FLOATS]:
        return None
    if not isinstance(number, NumberValue) or number.cls is not float or number.operand is None:
        return None
    (x, *others), scale = plain, number_tensor(interp, number, plain[0].fake.dtype)
    call: Any = lambda method, *operands, **options: graph.call(interp, "call_method", method, operands, options)  # noqa: E731
    if form == "leaky_relu":
        return call("where", x, call("gt", x, ConstantValue(0)), call("mul", x, scale))  # type: ignore[no-any-return]
    if form in ("add", "sub"):
        options = {"value": ConstantValue(-1)} if form == "sub" else {}
        return call(name.replace(form, "addcmul"), x, *others, scale, **options)  # type: ignore[no-any-return]
    more = (*others, scale) if form == "lerp" else (call("mul", others[0], scale), others[1])
    return call(name, x, *more)  # type: ignore[no-any-return]


def _with_tensors(interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> list[Value]:
    operands = [arg.realize() for arg in args]
    if name in _BOUNDS and operands and isinstance(operands[0], TensorValue):
        return [operands[0], *(_bound(interp, name, operands[0], bound) for bound in operands[1:])]
    tensors = [arg for arg in operands if isinstance(arg, TensorValue)]
    numbers = [arg for arg in operands if isinstance(arg, NumberValue)]
    if name not in _WITH_NUMBERS or kwargs or len(operands) != 2 or len(tensors) != 1 or len(numbers) != 1:
        raise Break("changing-value", f"a number that differs from call to call is given to {name}()")
    tensor, number = tensors[0], numbers[0]
    dtype = _dtype_beside(number.cls, tensor.fake)
    if dtype is None or tensor.cls not in (torch.Tensor, torch.nn.Parameter):
        raise Break("changing-value", f"another number in each call meets a tensor of {tensor.fake.dtype}")
    # A GPU multiplies by the inverse of a number in the CPU's memory, as by one of Python.
    divides = operands[1] is number and name in _DIVISIONS
    scalar = number_tensor(interp, number, dtype, _CPU if divides else tensor.fake.device)
    return [scalar if arg is number else arg for arg in operands]


def _bound(interp: Interpreter, name: str, tensor: TensorValue, bound: Value) -> Value:
    """A bound of `clamp` as a tensor: it takes no number beside one."""
    if bound is NONE:
        return bound
    dtype = _dtype_beside(bound.python_type(), tensor.fake)
    if dtype is None or tensor.fake.dtype.itemsize < 4 or tensor.cls not in (torch.Tensor, torch.nn.Parameter):
        raise Break("changing-value", f"a number that differs from call to call is given to {name}()")
    if isinstance(bound, NumberValue):
        return number_tensor(interp, bound, dtype, tensor.fake.device)
    if isinstance(bound, ConstantValue) and type(bound.value) in (int, float):
        options = {"dtype": ConstantValue(dtype), "device": ConstantValue(tensor.fake.device)}
        return interp.tracer.graph.call(interp, "call_function", torch.scalar_tensor, [bound], options)
    return bound


def tensor_of_number(interp: Interpreter, number: NumberValue, kwargs: Kwargs) -> Value:
    """`torch.tensor(number)`."""
    dtype = kwargs["dtype"].realize().as_constant() if "dtype" in kwargs else _dtype_alone(number)
    if {*kwargs} - {"dtype"} or dtype not in (torch.float32, torch.float64, _dtype_alone(number)):
        raise Break("changing-value", "torch.tensor() of a number that differs from call to call, with such arguments")
    if interp.tracer.graph.inference.in_region:
        raise Break("changing-value", "a number that differs from call to call is made a tensor in inference mode")
    return number_tensor(interp, number, dtype)


def _dtype_alone(number: NumberValue) -> torch.dtype:
    if number.cls is float:
        return torch.get_default_dtype()
    return torch.bool if number.cls is bool else torch.int64


def number_tensor(
    interp: Interpreter, number: NumberValue, dtype: torch.dtype, device: torch.device = _CPU
) -> TensorValue:
    """A tensor without dimensions of a number."""
    if number.operand is None:
        return number.tensor_like(interp, dtype, device)
    if number.cls is int and not number.largest < _LARGEST:
        raise Break("changing-value", "a number that differs from call to call may be too large for a tensor")
    if interp.tracer.graph.outer is not None:
        raise Break("changing-value", "a number that differs from call to call is used in a nested function")
    options: dict[str, Any] = {"dtype": dtype, "device": device}
    scalar = interp.tracer.prelude.add(torch.scalar_tensor, [number.operand], options)
    return interp.tracer.graph.made("number", scalar, torch.scalar_tensor(1, **options))


def _dtype_beside(kind: type, tensor: torch.Tensor) -> torch.dtype | None:
    dtype = tensor.dtype
    if tensor.device.type not in ("cpu", "cuda") or tensor.layout is not torch.strided:
        return None
    if kind is bool:
        return torch.bool
    if dtype.is_floating_point or dtype.is_complex:
        if tensor.device.type != "cpu" and dtype.itemsize < 4:
            return None  # kernels round a tensor to it, but not a number
        if tensor.ndim:
            return torch.float64 if kind is float else torch.int64
        return dtype if dtype in _EXACT_FLOATS and kind is float else torch.int64 if kind is int else None
    if kind is float:
        return torch.get_default_dtype()
    return torch.int64 if dtype in (torch.int64, torch.bool) else None
