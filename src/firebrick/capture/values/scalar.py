"""Floats and truths of Python that are read from tensors of the graph: what is computed of them stays in the graph, as
tensors without dimensions, and the number is read where it leaves. Texts of them are made there too.

Arithmetic is that of Python, bit for bit: floats are float64, and what raises in Python (a division by zero) is looked
at in each call. What Python computes in another way than tensors (`**`, `math.exp`) a node lets Python compute.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.packed import number_at, place_of
from firebrick.capture.values.base import Args, Interpreter, Kwargs, NotConstant, UnknownValue, Value, ValueEmitter
from firebrick.capture.values.computed import ComputedValue, float_beside
from firebrick.capture.values.constant import CONSTANT_METHODS, ConstantValue, OpenValue
from firebrick.capture.values.early import as_tuple
from firebrick.capture.values.made import NumberValue, number_beside, number_tensor
from firebrick.capture.values.sequence import ListValue, TupleValue
from firebrick.capture.values.size import HeldValue, SizeValue, size_value
from firebrick.capture.values.tensor import TENSOR_METHODS, TensorValue, TruthValue
from firebrick.fakes.data_sizes import SHIFT, as_size, as_true, is_integer
from firebrick.ir.graph.nested import SIGNS
from firebrick.ir.operators.number_op import number_op

if TYPE_CHECKING:
    from firebrick.capture.graph import GraphBuilder

_FIX = (
    "choose by torch.where or torch.cond, compute with the tensor instead, or leave the number to code behind the "
    "compiled function"
)
_EXACT = 1 << 53
"""Integers up to it are floats."""


class ScalarValue(NumberValue):
    """A float or bool of Python whose value is a tensor of the graph: float64 or bool, without dimensions."""

    __slots__ = ("step", "tensor")
    held = ("tensor",)

    def __init__(self, cls: type, tensor: TensorValue, step: int | None = None) -> None:
        super().__init__(cls, None)
        self.tensor, self.step = tensor, step  # the root frame's step that made it

    def _unknown(self) -> NoReturn:
        text = f"a {self.cls.__name__} that data decide is used where it must be known"
        raise Break("data-dependent-value", text, fix=_FIX)

    def truth(self, interp: Interpreter) -> bool:
        """Unknown."""
        text = f"the truth of a {self.cls.__name__} that data decide is asked"
        error = Break("data-dependent-branch", text, fix=_FIX)
        if interp.parent is not None:
            error.step = self.step
        raise error

    def identity(self) -> object:
        """Each float that is read is an object of its own; there are two truths."""
        if self.cls is bool:
            self._unknown()
        return self

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Read it."""
        emitter.begin_call()
        emitter.load(self.tensor)
        emitter.load_attr("item")
        emitter.ready_call()
        emitter.call(0)

    def tensor_like(self, interp: Interpreter, dtype: torch.dtype, device: torch.device) -> TensorValue:
        """The number as a tensor of its own."""
        options = {"dtype": ConstantValue(dtype), "device": ConstantValue(device), "copy": ConstantValue(True)}
        return _tensor(interp, "to", self.tensor, **options)

    def converted(self, interp: Interpreter, function: Callable[[Any], Any]) -> Value:
        """`int`, `float`, `abs` or `round` of it."""
        if function is float:
            return self if self.cls is float else ScalarValue(float, _floating(interp, self.tensor))
        if function is abs and self.cls is float:
            return ScalarValue(float, _tensor(interp, "abs", self.tensor))
        if function in (int, round):
            rounded = _tensor(interp, "round", self.tensor) if function is round and self.cls is float else self.tensor
            size = read_size(interp, rounded)
            if size is not None:
                return size
        self._unknown()

    def unary(self, interp: Interpreter, symbol: str) -> Value:
        """`-self`, `+self`."""
        if self.cls is bool or symbol == "~":
            self._unknown()
        return ScalarValue(float, _tensor(interp, "neg", self.tensor)) if symbol == "-" else self


class LateValue(UnknownValue):
    """What a pure function gives for numbers that data decide: it is called where the result leaves the graph."""

    __slots__ = ("args", "cls", "function")
    held = ("args",)

    def __init__(self, cls: type, function: Callable[..., Any], args: Sequence[Value]) -> None:
        self.cls, self.function, self.args = cls, function, args

    def _unknown(self) -> NoReturn:
        text = f"a {self.cls.__name__} of numbers that data decide is used where it must be known"
        raise Break("data-dependent-value", text, fix=_FIX)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Call the function."""
        emitter.load_call(self.function, *self.args)


class OpenText(OpenValue):
    """The text that a pure function gives for numbers that vary: known where someone needs it."""

    __slots__ = ("args", "function")
    held = ("args",)
    cls = str

    def __init__(self, function: Callable[..., str], args: Sequence[Value]) -> None:
        self.function, self.args = function, args

    @property
    def value(self) -> str:  # type: ignore[override]
        """What it is, guarded from here on."""
        return self.function(*[arg.realize().as_constant() for arg in self.args])

    reconstruct = LateValue.reconstruct  # type: ignore[assignment]


# -- reading --------------------------------------------------------------------------------------


def _is_readable(interp: Interpreter, value: TensorValue) -> bool:
    graph = interp.tracer.graph
    if graph.outer is not None or graph.inference.in_region or value.cls not in (torch.Tensor, torch.nn.Parameter):
        return False
    one = all(type(n) is int and n == 1 for n in value.fake.shape)
    return one and value.fake.layout is torch.strided and not value.fake.is_quantized


def read_size(interp: Interpreter, value: TensorValue) -> Value | None:
    """The integer in a tensor as a size that data decide; None where it can't be one."""
    graph = interp.tracer.graph
    is_fixed = value.fake.is_complex() or getattr(value.fake, "constant", None) is not None
    if is_fixed or not graph.sizes.sizes.takes_data or not _is_readable(interp, value):
        return None
    number = number_at(graph, value.fake)
    if number is None:
        size = graph.call(interp, "call_function", as_size, [value], {}).realize()
        assert isinstance(size, TensorValue)
        number = graph.numbers[place_of(value.fake)] = size.fake.shape[0] - SHIFT
    return size_value(number, graph.sizes)


def read(interp: Interpreter, value: TensorValue) -> Value | None:
    """The number in a tensor of one element; None where it can't stay in the graph."""
    number = interp.tracer.early.read(value)
    if number is not None:
        return ConstantValue(number)
    if is_integer(value.fake):
        return read_size(interp, value)
    if not _is_readable(interp, value) or not (value.fake.is_floating_point() or value.fake.dtype == torch.bool):
        return None
    plain = _tensor(interp, "detach", value) if value.fake.requires_grad else value
    if value.fake.dim():
        plain = _tensor(interp, "reshape", plain, ())
    if value.fake.dtype == torch.bool:
        return ScalarValue(bool, _tensor(interp, "clone", plain), interp.root().steps)
    return ScalarValue(float, _floating(interp, plain))


def truth_of(interp: Interpreter, value: Value) -> Value:
    """`bool(value)`."""
    value = value.realize()
    if isinstance(value, TensorValue) and _is_readable(interp, value) and not value.fake.is_complex():
        if value.fake.dtype != torch.bool:
            nonzero = interp.tracer.graph.call(interp, "call_function", operator.ne, [value, ConstantValue(0)], {})
            value = nonzero.realize()
        return read(interp, value) or ConstantValue(value.truth(interp))  # type: ignore[arg-type]
    if isinstance(value, ScalarValue):
        return value if value.cls is bool else of_scalars(interp, "!=", value, ConstantValue(0.0))
    return value if isinstance(value, HeldValue) else ConstantValue(value.truth(interp))


def negated(interp: Interpreter, value: Value) -> Value:
    """`not value`."""
    value = value.tensor if isinstance(value, TruthValue) else value
    if isinstance(value, (ScalarValue, HeldValue)) or may_be_expected(interp, value):
        truth = truth_of(interp, value)
        return ScalarValue(bool, _tensor(interp, "logical_not", _truth_tensor(interp, truth)))
    return ConstantValue(not value.truth(interp))


_MOST_READ = 16
"""Elements that `tolist` reads one by one."""


def _list(interp: Interpreter, value: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """`tolist`: of few numbers each is read; others are a list that is made where it leaves."""
    shape, result = value.fake.shape, None
    numbers = interp.tracer.early.read(value, as_tuple) if len(shape) == 1 else None
    if numbers is not None:
        return ListValue(list(map(ConstantValue, numbers)))
    if not shape:
        result = read(interp, value)
    elif len(shape) == 1 and type(shape[0]) is int and 0 < shape[0] <= _MOST_READ:
        items = [read(interp, value.get_item(interp, ConstantValue(i)).realize()) for i in range(shape[0])]  # type: ignore[arg-type]
        result = None if None in items else ListValue([item for item in items if item is not None])
    if result is None:
        raise Break("data-dependent-value", "Tensor.tolist()")
    return result


def _reading(
    text: str, kind: type | None, interp: Interpreter, value: TensorValue, args: Args, kwargs: Kwargs
) -> Value:
    result = read(interp, value)
    if type(result) is ConstantValue:
        return result if kind is None else ConstantValue(kind(result.value))
    if kind is float and isinstance(result, SizeValue):
        whole = _tensor(interp, "reshape", value, ()) if value.fake.dim() else value
        result = ScalarValue(float, _floating(interp, whole))
    elif kind is float and isinstance(result, ScalarValue):
        result = result.converted(interp, float)
    if result is not None and kind is int and isinstance(result, ScalarValue):
        result = read_size(interp, result.tensor)
    if result is None:
        raise Break("data-dependent-value", text)
    return result


def _index(interp: Interpreter, value: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    size = read(interp, value) if is_integer(value.fake) else None
    if size is None:
        raise Break("data-dependent-value", "a tensor is used as an index")
    return size


TENSOR_METHODS.update(
    {
        "__bool__": lambda interp, value, args, kwargs: truth_of(interp, value),
        "__float__": functools.partial(_reading, "float() of a tensor", float),
        "__index__": _index,
        "__int__": functools.partial(_reading, "int() of a tensor", int),
        "item": functools.partial(_reading, "Tensor.item()", None),
        "tolist": _list,
    }
)


# -- computing -------------------------------------------------------------------------------------


def _tensor(interp: Interpreter, method: str, value: TensorValue, *args: Any, **kwargs: Value) -> TensorValue:
    arguments = [value, *map(ConstantValue, args)]
    result = interp.tracer.graph.call(interp, "call_method", method, arguments, kwargs).realize()
    assert isinstance(result, TensorValue)
    return result


def _floating(interp: Interpreter, value: TensorValue) -> TensorValue:
    return _tensor(interp, "to", value, torch.float64, copy=ConstantValue(True))


def _operand(interp: Interpreter, value: Value, *, compared: bool) -> Value | None:
    """What stands for an operand beside a tensor of float64; None where there is nothing exact."""
    if isinstance(value, HeldValue):
        value = ScalarValue(bool, value.tensor(interp).realize())  # type: ignore[arg-type]
    if isinstance(value, ScalarValue):
        return value.tensor if value.cls is float else _floating(interp, value.tensor)
    if isinstance(value, SizeValue):
        if compared and is_late(value):
            for sign, bound in ((">=", -_EXACT), ("<=", _EXACT)):
                value.nodes.sizes.ask(sign, value.expr, bound, "expected")
        options = {"dtype": ConstantValue(torch.float64)}
        return interp.tracer.graph.call(interp, "call_function", torch.scalar_tensor, [value], options)
    if isinstance(value, NumberValue):
        exact = value.cls is float or value.largest <= _EXACT
        return number_tensor(interp, value, torch.float64) if exact else None
    if isinstance(value, ConstantValue) and isinstance(value.value, (int, float)):
        number = value.value
        return ConstantValue(float(number)) if isinstance(number, float) or abs(number) <= _EXACT else None
    return None


_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
_OF_PYTHON = {"**": operator.pow, "//": operator.floordiv, "%": operator.mod}
_LOGICAL = {"&": "logical_and", "|": "logical_or", "^": "logical_xor"}


def of_scalars(interp: Interpreter, symbol: str, left: Value, right: Value) -> Value:
    """Arithmetic or a comparison of numbers of which data decide one; raises Break: Python differs."""
    symbol = symbol if symbol in SIGNS else symbol.removesuffix("=")
    kinds = {value.python_type() for value in (left, right)}
    if symbol in ("==", "!=") and not kinds <= {int, float, bool, complex}:
        return ConstantValue(symbol == "!=")
    if symbol in _LOGICAL and kinds == {bool}:
        sides = [_truth_tensor(interp, value) for value in (left, right)]
        return ScalarValue(bool, _tensor(interp, _LOGICAL[symbol], sides[0], other=sides[1]))
    if symbol in _OF_PYTHON and (number := of_python(interp, _OF_PYTHON[symbol], [left, right])) is not None:
        return number
    function = SIGNS.get(symbol) or _ARITHMETIC.get(symbol)
    exact = symbol in SIGNS or symbol == "/"
    supported = function is not None and kinds <= {int, float, bool} and (exact or float in kinds)
    operands = [_operand(interp, v, compared=exact) for v in (left, right)] if supported else [None]
    if None in operands:
        text = f"{symbol} of {' and '.join(v.python_type().__name__ for v in (left, right))} that data decide"
        raise Break("data-dependent-value", text, fix=_FIX)
    if symbol == "/":
        _expect_nonzero(interp, right, operands[1])
    result = interp.tracer.graph.call(interp, "call_function", function, operands, {}).realize()  # type: ignore[arg-type]
    assert isinstance(result, TensorValue)
    return ScalarValue(bool if symbol in SIGNS else float, result, interp.root().steps)


def of_python(interp: Interpreter, function: Any, args: Args) -> Value | None:
    """What a function of one or two floats gives, where data decide one: Python calls it where the graph runs."""
    numbers = [arg.realize() for arg in args]
    floats = [number for number in numbers if isinstance(number, ScalarValue) and number.cls is float]
    if function.__module__ not in ("math", "_operator") or not floats or len(numbers) > 2:
        return None
    if function in (math.floor, math.ceil, math.trunc):
        return read_size(interp, _tensor(interp, function.__name__, floats[0].tensor))
    operands = [_operand(interp, number, compared=True) for number in numbers]
    if None in operands:
        return None
    like = {"dtype": ConstantValue(torch.float64), "device": ConstantValue(floats[0].tensor.fake.device)}
    call = functools.partial(interp.tracer.graph.call, interp, "call_function")
    sides = [v if isinstance(v, TensorValue) else call(torch.scalar_tensor, [v], like) for v in operands]  # type: ignore[list-item]
    name = ConstantValue(f"{function.__module__}.{function.__name__}")
    return ScalarValue(float, call(number_op, [name, *sides], {}).realize(), interp.root().steps)  # type: ignore[arg-type]


def beside(interp: Interpreter, value: Value, other: Value) -> Value:
    """What stands for a number that meets a tensor."""
    if isinstance(value, HeldValue) and isinstance(other, TensorValue):
        return ScalarValue(bool, value.tensor(interp).realize())  # type: ignore[arg-type]
    return float_beside(interp, number_beside(interp, value, other), other)


def _truth_tensor(interp: Interpreter, value: Value) -> TensorValue:
    if isinstance(value, HeldValue):
        return value.tensor(interp).realize()  # type: ignore[return-value]
    if isinstance(value, ScalarValue):
        return value.tensor
    call = interp.tracer.graph.call
    return call(interp, "call_function", torch.tensor, [value], {}).realize()  # type: ignore[return-value]


def _expect_nonzero(interp: Interpreter, value: Value, operand: Value | None) -> None:
    if isinstance(operand, ConstantValue):
        if not operand.value:
            interp.raise_new(ZeroDivisionError, "float division by zero")
    elif not isinstance(value, SizeValue) or not value.nodes.sizes.holds("!=", value.expr, 0):
        expect(interp, of_scalars(interp, "!=", ScalarValue(float, operand), ConstantValue(0.0)))  # type: ignore[arg-type]


def may_be_expected(interp: Interpreter, value: Value) -> bool:
    """Whether `expect` can take the truth of a value for granted."""
    value = value.tensor if isinstance(value, TruthValue) else value
    if isinstance(value, HeldValue):
        return True
    if not interp.tracer.graph.sizes.sizes.takes_data:
        return False
    if not isinstance(value, TensorValue):
        return isinstance(value, ScalarValue)
    readable = _is_readable(interp, value) and not value.fake.is_complex()
    return readable and interp.tracer.early.read(value, bool) is None


def expect(interp: Interpreter, truth: Value) -> None:
    """Take a condition for true from here on: each call looks whether it is, and else runs as plain Python; raises
    Break: the backend can't look, or there was a write that can't be undone where it is false."""
    truth, graph = truth_of(interp, truth.tensor if isinstance(truth, TruthValue) else truth), interp.tracer.graph
    graph.watched = graph.watched or bool(graph.written)  # to be undone, so that plain Python can start again
    if graph.written and graph.beyond_undoing:
        raise Break("unsupported-operation", "a condition of data follows a write that can't be undone")
    if isinstance(truth, HeldValue):
        truth.expect()
        return
    assert isinstance(truth, ScalarValue)
    if not graph.sizes.sizes.takes_data:
        truth.truth(interp)
    graph.call(interp, "call_function", as_true, [truth.tensor], {})


def extreme(interp: Interpreter, function: Any, left: Value, right: Value) -> Value | None:
    """`max(left, right)` of floats of which data decide one; None where it is another kind."""
    if not any(isinstance(one, ScalarValue) for one in (left, right)):
        return None
    if left.python_type() is not float or right.python_type() is not float:
        return None
    sides = [_operand(interp, one, compared=True) for one in (left, right)]
    if None in sides:
        return None
    second = of_scalars(interp, ">" if function is max else "<", right, left)
    assert isinstance(second, ScalarValue)
    chosen = interp.tracer.graph.call(interp, "call_function", torch.where, [second.tensor, sides[1], sides[0]], {})  # type: ignore[list-item]
    return ScalarValue(float, chosen.realize())  # type: ignore[arg-type]


class ChosenValue(TensorValue):
    """One of two tensors, by a truth that data decide. Calls get its number, and it leaves as the object that it is."""

    __slots__ = ("second", "sides", "writes")
    held = ("second", "sides")

    def __init__(
        self, graph: GraphBuilder, like: TensorValue, second: TensorValue, sides: Sequence[TensorValue]
    ) -> None:
        super().__init__(like.node, like.fake)
        self.second, self.sides, self.writes = second, sides, len(graph.written)

    def identity(self) -> object:
        """Unknown."""
        raise Break("data-dependent-branch", "it is asked which tensor min() or max() gave")

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """What both tensors have by their class."""
        own = [one for side in self.sides for one in (getattr(side.obj, "__dict__", ()), side.attributes or ())]
        if name in ("grad", "is_leaf", "retains_grad") or any(name in names for names in own):
            self.identity()
        return super().get_attr(interp, name)

    def set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """Of which tensor is unknown."""
        self.identity()

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Choose."""
        emitter.load_tuple(self.sides)
        emitter.load_call(bool, self.second)
        emitter.load_subscr()


def chosen(interp: Interpreter, second: Value, *sides: Value) -> Value | None:
    """The second of two tensors of one element if a tensor is true, else the first; None where they are too unlike."""
    graph = interp.tracer.graph
    tensors = [one for one in (second, *sides) if isinstance(one, TensorValue) and _is_readable(interp, one)]
    alike = {(one.cls, one.fake.shape, one.fake.dtype, one.fake.device, one._wants_gradient()) for one in tensors[1:]}
    if len(tensors) < 2 or len(alike) > 1 or tensors[1].cls is not torch.Tensor or tensors[1]._wants_gradient():
        return None
    if interp.tracer.early.read(tensors[0], bool) is not None:
        return None
    if len(tensors) == 2:
        other = next(one for one in sides if one is not tensors[1])
        is_number = type(other) is ConstantValue and type(other.value) in (int, float)
        return EitherValue(tensors[0], sides) if is_number else None
    number: Any = graph.call(interp, "call_function", torch.where, [second, *sides[::-1]], {}).realize()
    value = graph._by_fake[id(number.fake)] = ChosenValue(graph, number, tensors[0], tensors[1:])
    graph.chosen.append(value)
    return value


class EitherValue(UnknownValue):
    """A tensor of one element or a number, by a truth that data decide; it leaves as the one that it is."""

    __slots__ = ("second", "sides")
    held = ("second", "sides")

    def __init__(self, second: TensorValue, sides: Sequence[Value]) -> None:
        self.second, self.sides = second, sides

    def _unknown(self) -> NoReturn:
        raise Break("data-dependent-branch", "it is not known whether min() or max() gave a tensor or a number")

    python_type = identity = UnknownValue._ask  # type: ignore[assignment]
    reconstruct = ChosenValue.reconstruct  # type: ignore[assignment]

    def beside(self, interp: Interpreter, function: Any, places: Sequence[Value]) -> Value:
        """What a function gives that takes it and another value at its places.

        A number is a constant, which both are computed with; beside a tensor, both are numbers of its dtype.
        """
        first, other = self.sides[0].realize(), next(one for one in places if one is not self)
        number, tensor = sorted((first, self.sides[1].realize()), key=lambda one: isinstance(one, TensorValue))
        if type(other) is ConstantValue and type(other.value) in (int, float, bool):
            rows = [[one if place is self else place for place in places] for one in self.sides]
            results = [
                interp.operate(function, *row) if tensor in row else interp.fold(function, row, {}) for row in rows
            ]
            return EitherValue(self.second, results)
        assert isinstance(tensor, TensorValue)
        if not isinstance(other, TensorValue) or other.fake.dtype not in (torch.float32, torch.float64):
            self._unknown()
        kinds = {torch.result_type(other.fake, one) for one in (other.fake, tensor.fake, number.as_constant())}
        if len(kinds) > 1 or tensor.fake.dim() > other.fake.dim() or tensor.fake.device != other.fake.device:
            self._unknown()
        alike = _tensor(interp, "to", tensor, *kinds)
        sides = [alike if one is tensor else one for one in self.sides]
        chosen = interp.tracer.graph.call(interp, "call_function", torch.where, [self.second, *sides[::-1]], {})
        return interp.operate(function, *[chosen if place is self else place for place in places])


# -- text --------------------------------------------------------------------------------------------


def is_late(value: Value) -> bool:
    """Whether data decide a number or a text."""
    if isinstance(value, SizeValue):
        return value.nodes.sizes.of_data(value.nodes.sizes.settled(value.expr))
    return isinstance(value, (ScalarValue, LateValue, HeldValue))


def is_open(value: Value) -> bool:
    """Whether a text of it is made behind the graph: of what data decide, and of numbers that vary."""
    if isinstance(value, TupleValue) and value.cls in (tuple, torch.Size):
        items = [item.realize() for item in value.items]
        return any(map(is_open, items)) and all(item.is_constant() or is_open(item) for item in items)
    return is_late(value) or isinstance(value, (SizeValue, ComputedValue, OpenText))


def _waits_for_data(value: Value) -> bool:
    parts = value.items if isinstance(value, TupleValue) else value.args if isinstance(value, OpenText) else ()
    return is_late(value) or any(_waits_for_data(part.realize()) for part in parts)


def text_of(interp: Interpreter, value: Value, conversion: str, spec: str) -> Value:
    """`f"{value!conversion:spec}"` of what data decide."""
    if isinstance(value, (LateValue, OpenText)) and not conversion and not spec and value.python_type() is str:
        return value
    return late_text(interp, shown, [value, ConstantValue(conversion), ConstantValue(spec)])


def late_text(interp: Interpreter, function: Callable[..., str], args: Sequence[Value]) -> Value:
    """The text that a function gives for constants and for numbers that data decide or that vary."""
    parts = [arg.realize() for arg in args]
    if any(isinstance(part, LateValue) and part.cls is not str for part in parts):
        raise Break("unsupported-operation", "text of an object of numbers that data decide")
    try:
        function(*map(_like, parts))
    except NotConstant:
        raise Break("unsupported-operation", "text of an object beside a number that data decide") from None
    except (TypeError, ValueError, LookupError) as error:
        interp.raise_real(error)
    return LateValue(str, function, parts) if any(map(_waits_for_data, parts)) else OpenText(function, parts)


def _like(value: Value) -> Any:
    """What a text may be tried with."""
    if isinstance(value, TupleValue):
        return value.build([_like(item.realize()) for item in value.items])
    return value.python_type()(1) if is_open(value) else value.as_constant()


def shown(value: Any, conversion: str, spec: str) -> str:
    """`f"{value!conversion:spec}"`."""
    convert: Any = {"r": repr, "s": str, "a": ascii, "": lambda held: held}[conversion]
    return format(convert(value), spec)


def percent(text: str, *items: Any) -> str:
    """`text % items`."""
    return text % items


_format_constants = CONSTANT_METHODS[str, "format"]


def _formatted(interp: Interpreter, value: ConstantValue, args: Args, kwargs: Kwargs) -> Value:
    if any(is_open(arg.realize()) for arg in args) and not kwargs:
        return late_text(interp, str.format, [value, *args])
    return _format_constants(interp, value, args, kwargs)  # type: ignore[no-any-return]


CONSTANT_METHODS[str, "format"] = _formatted


def joined(parts: Sequence[Value]) -> Value:
    """Texts, of which data decide one or numbers that vary, as one text."""
    texts = [part.realize() for part in parts]
    return LateValue(str, _joined, texts) if any(map(_waits_for_data, texts)) else OpenText(_joined, texts)


def _joined(*parts: str) -> str:
    return "".join(parts)


def rounded(value: Value, digits: Value) -> Value | None:
    """`round(value, digits)` of a float; None where it may raise."""
    number = digits.realize()
    if not isinstance(number, ConstantValue) or type(number.value) is not int or number.value < 0:
        return None
    return LateValue(float, round, [value, number])


def finite(interp: Interpreter, function: Any, value: ScalarValue) -> Value:
    """`math.isnan` and the like."""
    return ScalarValue(bool, _tensor(interp, function.__name__, value.tensor))
