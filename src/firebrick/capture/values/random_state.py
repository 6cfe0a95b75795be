"""Random generators: what draws from one is done before the graph, in the program's order."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.emit.prelude import Made
from firebrick.capture.guards.sources import Attr
from firebrick.capture.values.base import Args, BuiltinValue, Interpreter, Kwargs, Value, ValueEmitter
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.made import NumberValue
from firebrick.capture.values.object import ObjectValue
from firebrick.capture.values.tensor import TensorValue


class Draws(Break):
    """A torch.Generator is an argument of a graph function."""


class _RandomState(ObjectValue):
    """A random generator; `made` is what gives it where captured code makes it."""

    __slots__ = ("made",)

    def __init__(self, obj: Any, source: Any = None, made: Made | None = None) -> None:
        super().__init__(type(obj), obj, source)
        self.made = made

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Load it."""
        assert self.made is not None
        emitter.load_fast(emitter.made_temp(self.made.index))

    get_attr = BuiltinValue.get_attr  # type: ignore[assignment]


class GeneratorState(_RandomState):
    """A `torch.Generator`."""

    __slots__ = ()

    def operand(self, interp: Interpreter) -> Any:
        """It, for calls before the graph; raises Break: it is one that graphs draw from themselves."""
        if self.made is not None:
            return self.made
        assert self.source is not None
        device = self.obj.device
        if device.type not in ("cpu", "cuda"):
            raise Break("random-generator", f"{self.describe()} is one for {device.type}")
        defaults = (torch.default_generator,) if device.type == "cpu" else torch.cuda.default_generators
        if any(self.obj is default for default in defaults):
            raise Break("random-generator", f"{self.describe()} is the default generator, which graphs draw from")
        interp.tracer.guards.equals(Attr(self.source, "device"), device)
        interp.tracer.guards.distinct([self.source, *map(interp.tracer.const_source, defaults)])
        return self.source

    def as_argument(self) -> Any:
        """Never one of a graph's; see `drawn`."""
        raise Draws("random-generator", f"{self.describe()} is given to a torch function")

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """The device is known; what else there is are methods."""
        if name == "device":
            if self.source is not None:
                interp.tracer.guards.equals(Attr(self.source, name), self.obj.device)
            return ConstantValue(self.obj.device)
        return interp.method(self, name)

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """It is given a seed before the graph, in the order of its draws; what asks for its state breaks."""
        if name == "manual_seed" and len(args) == 1 and not kwargs and _is_seed(args[0]):
            seed = args[0].realize().as_constant()
            check_place(interp)
            operand = self.operand(interp)
            interp.tracer.prelude.add(torch.Generator.manual_seed, [operand, seed], {}, operand)
            return self
        raise Break("random-generator", f"{name}() of {self.describe()} is called")


def _is_seed(value: Value) -> bool:
    return value.is_constant() and type(seed := value.as_constant()) is int and -(1 << 63) <= seed < 1 << 63


def make_generator(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.Generator(device)`."""
    hosts, named = interp.hosts(args, kwargs, "random-generator", "torch.Generator() is called")
    check_place(interp)
    try:
        example = torch.Generator(*hosts, **named)
    except Exception as error:
        raise Break("random-generator", f"torch.Generator() raises {type(error).__name__}") from error
    return GeneratorState(example, None, interp.tracer.prelude.add(torch.Generator, hosts, named))


def check_place(interp: Interpreter) -> None:
    """Whether a call can be made before the graph; raises Break: it may be made several times, or not at all."""
    if interp.tracer.graph.outer is not None:
        raise Break("random-generator", "a random number is drawn in a nested function")


_SHAPED = frozenset({"rand", "randn", "randint", "randperm", "normal"})
"""Functions of torch that make a tensor of random numbers out of sizes, bounds and options."""

_FILLS = frozenset(
    {"bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_"}
)
"""Methods of tensors that overwrite all elements by random numbers, whatever these were."""


def drawn(interp: Interpreter, op: str, target: Any, args: Args, kwargs: Kwargs) -> Value:
    """A call with a `torch.Generator`, made before the graph; raises Break: it takes a tensor of the graph as well."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    state = kwargs.get("generator")
    state = None if state is None else state.realize()
    rest = {key: value for key, value in kwargs.items() if key != "generator"}
    if not isinstance(state, GeneratorState) or "out" in rest:
        raise Break("random-generator", f"a random generator is given to {name}()")
    if op == "call_method" and name in _FILLS:
        return _fill(interp, name, state, args, rest)
    if op != "call_function" or name not in _SHAPED:
        raise Break("random-generator", f"{state.describe()} is given to {name}(), whose result depends on a tensor")
    return draw_tensor(interp, target, args, rest, state)


def draw_tensor(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs, state: GeneratorState) -> Value:
    """A tensor of random numbers, made before the graph by `function` of constants."""
    check_place(interp)
    hosts, named = interp.hosts(args, kwargs, "random-generator", "random numbers are drawn")
    if interp.tracer.graph.inference.in_region:
        function = torch.inference_mode()(function)
    example = _like(function, hosts, named, state)
    operand = state.operand(interp)
    draw = interp.tracer.prelude.add(function, hosts, {**named, "generator": operand}, operand)
    return interp.tracer.graph.made("random", draw, example)


def _like(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], state: GeneratorState) -> torch.Tensor:
    """What a function gives, by a generator of its own."""
    own = torch.Generator(state.obj.device)
    try:
        result = function(*args, **kwargs, generator=own)
    except Exception as error:
        raise Break("random-generator", f"{function.__name__}() raises {type(error).__name__}") from error
    if not isinstance(result, torch.Tensor):
        raise Break("random-generator", f"{function.__name__}() gives no tensor")
    return result


def _fill(interp: Interpreter, name: str, state: GeneratorState, args: Args, kwargs: Kwargs) -> Value:
    """`x.normal_(generator=g)`: a tensor like x is filled before the graph, and copied."""
    tensor = args[0].realize()
    assert isinstance(tensor, TensorValue)
    fake = tensor.fake
    if fake.layout is not torch.strided or (fake.requires_grad and torch.is_grad_enabled()):
        raise Break("random-generator", f"{state.describe()} is given to {name}()")
    options = {"dtype": fake.dtype, "device": fake.device}
    function = _filled(name, tuple(fake.shape), fake.stride(), options)
    values = draw_tensor(interp, function, args[1:], kwargs, state)
    return tensor.call_method(interp, "copy_", [values], {})


def _filled(name: str, shape: tuple[int, ...], stride: tuple[int, ...], options: Mapping[str, Any]) -> Any:
    """Makes a tensor and fills it: what is drawn for an element depends on the order of elements in memory."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(torch.empty_strided(shape, stride, **options), name)(*args, **kwargs)

    call.__name__ = name
    return call


# -- Python's own ----------------------------------------------------------------------------------


_FLOATS = frozenset(
    {
        *("betavariate", "expovariate", "gammavariate", "gauss", "lognormvariate", "normalvariate", "paretovariate"),
        *("random", "triangular", "uniform", "vonmisesvariate", "weibullvariate"),
    }
)
"""Methods of `random.Random` that give a float."""

_INTS = frozenset({"getrandbits", "randint", "randrange"})
"""Methods of `random.Random` that give an int."""

NUMBER_METHODS = _FLOATS | _INTS | {"choice", "seed"}
"""Those, `choice` among numbers, and `seed`."""


class RandomNumbers(_RandomState):
    """A `random.Random`, that behind the functions of the module `random` among them."""

    __slots__ = ()

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """What gives a number, and `seed`, is called before the graph."""
        if name not in NUMBER_METHODS or (name == "choice" and len(args) != 1):
            raise Break("random-generator", f"{name}() of {self.describe()} is called")
        check_place(interp)
        hosts, named = interp.hosts(args, kwargs, "random-generator", f"{name}() is called")
        function = getattr(random.Random, name)
        scratch = random.Random(0)
        try:
            draws = [function(scratch, *hosts, **named) for _ in range(8)]
        except Exception as error:
            raise Break("random-generator", f"{name}() raises {type(error).__name__}") from error
        operand = self.made or self.source
        kinds = {type(item) for item in (hosts[0] if name == "choice" and type(hosts[0]) is not range else draws)}
        if name == "seed":
            if not hosts or hosts[0] is None:  # taken from the clock or the system
                raise Break("random-generator", f"{self.describe()} is seeded")
            interp.tracer.prelude.add(function, [operand, *hosts], named, operand)
            return NONE
        if kinds != {float} and kinds != {int}:
            raise Break("random-generator", f"{name}() of {self.describe()} gives no number")
        draw = interp.tracer.prelude.add(function, [operand, *hosts], named, operand)
        (kind,) = kinds
        return NumberValue(kind, draw, _largest(name, hosts) if not named else math.inf)


def _largest(name: str, operands: Sequence[Any]) -> float:
    """What a number that a method gives is no further from 0 than."""
    if name == "random":
        return 1
    if name == "getrandbits":
        return 1 << operands[0]
    if name in _INTS or name in ("choice", "uniform"):
        items = operands[0] if name == "choice" else operands
        return max(abs(item) for item in (items if type(items) is not range else (items[0], items[-1])))
    return math.inf


def make_numbers(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`random.Random(seed)`."""
    check_place(interp)
    if len(args) != 1 or kwargs or not args[0].is_constant() or args[0].as_constant() is None:
        raise Break("random-generator", "a random.Random is made without a seed")
    seed = args[0].realize().as_constant()
    return RandomNumbers(random.Random(seed), None, interp.tracer.prelude.add(random.Random, [seed]))


def seed_default(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`torch.manual_seed(seed)`: before the graph, unless the graph has drawn by then."""
    check_place(interp)
    if len(args) != 1 or kwargs or not _is_seed(args[0]) or getattr(interp.tracer.graph.mode, "has_drawn", False):
        raise Break("random-generator", "torch.manual_seed() is called after random numbers were drawn")
    interp.tracer.prelude.add(
        function, [args[0].realize().as_constant()], {}, interp.tracer.const_source(torch.default_generator)
    )
    return interp.tracer.known(torch.default_generator)
