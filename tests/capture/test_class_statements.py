"""`class` statements in captured functions: captured with what is done with the class, and made anew where it leaves."""

from __future__ import annotations

import abc
import enum
import functools
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from compiling import Compiled, assert_same, check, check_change, outcome

import firebrick


def method_and_attribute(x: Any) -> Any:
    y = x + 1

    class Local:
        scale = 2

        def apply(self, value: Any) -> Any:
            return value * self.scale

    return Local().apply(y) + Local.scale, Local.__name__, Local.__qualname__, Local.__module__


def variables_from_outside(x: Any) -> Any:
    y = x * 3

    class Local:
        kept = y + 1

        def apply(self) -> Any:
            return y + self.kept

    y = y * 2
    return Local().apply()


def exception_in_the_body(x: Any) -> Any:
    done = []
    y = x + 1
    try:

        class Local:
            done.append("before")
            bad = y.view(7)

    except RuntimeError as error:
        return y * 2, str(error), done
    return y


def decorated(x: Any) -> Any:
    @dataclass
    class Pair:
        first: Any
        second: int = 2

        def product(self) -> Any:
            return self.first * self.second

    return Pair(x).product() + Pair(x, 3).product(), Pair(x).second


def metaclass_and_super(x: Any) -> Any:
    class Meta(type):
        def __call__(cls, *args: Any) -> Any:
            return super().__call__(*args)

    class Base(metaclass=Meta):
        def apply(self, value: Any) -> Any:
            return value + 1

    class Derived(Base):
        factor = 4

        def apply(self, value: Any) -> Any:
            return super().apply(value) * __class__.factor

    return Derived().apply(x * 2), issubclass(Derived, Base), type(Derived) is Meta


def under_a_mode(x: Any) -> Any:
    with torch.no_grad():
        y = x * 2

        class Local:
            recorded = torch.is_grad_enabled()
            made = y + 1

        z = Local.made * 2
    return z, Local.recorded, torch.is_grad_enabled()


def nonlocal_in_the_body(x: Any) -> Any:
    count = 0

    class Local:
        nonlocal count
        count = 5
        numbers = list(range(count))
        del numbers

    return x * count, hasattr(Local, "numbers")


def in_a_loop(x: Any) -> Any:
    results = []
    for index in range(3):

        class Local:
            value = index

        results.append(x * Local.value)
    return results, (x * 2).sum()


def descriptors_and_operators(x: Any) -> Any:
    class Box:
        items: ClassVar[list[Any]] = []
        kept = x * 2
        __slots__ = ("held",)

        def __init__(self, held: Any) -> None:
            self.held = held
            self.items.append(held)

        @property
        def double(self) -> Any:
            return self.held * 2

        @double.setter
        def double(self, value: Any) -> None:
            self.held = value / 2

        @staticmethod
        def plus(value: Any) -> Any:
            return value + 1

        @classmethod
        def of(cls, value: Any) -> Any:
            return cls(value)

        def __add__(self, other: Any) -> Any:
            return Box(self.held + other.held)

        def __call__(self, value: Any) -> Any:
            return self.held * value

    first = Box.of(x)
    first.double = x * 6
    both = first + Box(x)
    with pytest.raises(AttributeError) as caught:
        first.other = 1
    return first.double, both(2), Box.plus(x), len(Box.items), Box.kept, isinstance(both, Box), str(caught.value)


def abstract(x: Any) -> Any:
    class Base(abc.ABC):
        @abc.abstractmethod
        def get(self) -> Any: ...

    class Derived(Base):
        def get(self) -> Any:
            return x + 1

    try:
        Base()  # type: ignore[abstract]
    except TypeError as error:
        return Derived().get(), str(error)
    return x


def exception_class(x: Any) -> Any:
    class Wrong(ValueError):
        def __init__(self, value: Any) -> None:
            super().__init__("wrong")
            self.value = value

    try:
        raise Wrong(x)
    except Wrong as error:
        return error.value + 1, str(error), isinstance(error, ValueError)


def fields(x: Any) -> Any:
    @dataclass(frozen=True, order=True)
    class Row:
        number: int
        seen: list[int] = field(default_factory=list)
        value: Any = x

        def __post_init__(self) -> None:
            self.seen.append(self.number)

    first, second = Row(1), Row(2, [5])
    shown = repr(Row(1, [], 3)), asdict(Row(1, [], 2)), replace(second, number=3).number
    return first.seen, second.seen, first.value + 1, first < second, first == Row(1), shown


def enumeration(x: Any) -> Any:
    class Kind(enum.Enum):
        FIRST = enum.auto()
        SECOND = enum.auto()

        def times(self, value: Any) -> Any:
            return value * self.value

    class Flags(enum.IntFlag):
        A = 1
        B = 2

    names = [kind.name for kind in Kind]
    return Kind.SECOND.times(x), names, Kind(1) is Kind.FIRST, (Flags.A | Flags.B).value, Kind["SECOND"].value


def named_tuple(x: Any) -> Any:
    class Pair(NamedTuple):
        first: Any
        second: int = 3

        def product(self) -> Any:
            return self.first * self.second

    pair = Pair(x)
    return pair.product(), list(pair), pair._replace(second=1).second


def ordering(x: Any) -> Any:
    @functools.total_ordering
    class Number:
        def __init__(self, value: int) -> None:
            self.value = value

        def __eq__(self, other: Any) -> bool:
            return bool(self.value == other.value)

        def __lt__(self, other: Any) -> bool:
            return bool(self.value < other.value)

        __hash__ = None  # type: ignore[assignment]

    return x + 1, Number(1) <= Number(2), Number(3) > Number(2), sorted([Number(2), Number(1)])[0].value


def layer(x: Any) -> Any:
    class Layer(torch.nn.Module):
        def __init__(self, scale: int) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, value: Any) -> Any:
            return value * self.scale

    return torch.nn.Sequential(Layer(2), Layer(3))(x)


def names_of_the_function(x: Any) -> Any:
    scale = 3

    class Local:
        larger = scale + 1
        rows = [*range(scale)]
        gone = 1
        del gone

        def get(self) -> Any:
            return scale

    Local.count = 1  # type: ignore[attr-defined]
    Local.count += Local.larger  # type: ignore[attr-defined]
    return x * Local.larger + Local().get(), Local.rows, hasattr(Local, "gone"), Local.count  # type: ignore[attr-defined]


def by_calls(x: Any) -> Any:
    made = type(
        "Made", (), {"__init__": lambda self, a: setattr(self, "a", a), "twice": lambda self: self.a * 2, "k": x}
    )
    derived = type("Derived", (made,), {"one": 1})
    return derived(x).twice() + derived.k, made.__name__, made.__module__, derived.__mro__[1] is made


@pytest.mark.parametrize(
    "function",
    [
        *(method_and_attribute, variables_from_outside, decorated, metaclass_and_super),
        *(under_a_mode, nonlocal_in_the_body, in_a_loop, abstract, exception_class, fields),
        *(enumeration, named_tuple, ordering, layer, names_of_the_function, by_calls),
    ],
)
def test_one_graph(function: Any) -> None:
    check(function, torch.tensor([1.0, -2.0, 0.5]), calls=3)


def test_an_exception_in_the_body() -> None:
    check(exception_in_the_body, torch.tensor([1.0, -2.0, 0.5]), graphs=None, breaks=None, calls=3)


def leaves(x: Any) -> Any:
    class Base:
        def __init__(self) -> None:
            self.value = 1

        def get(self, value: Any) -> Any:
            return __class__.__name__, value + self.value  # type: ignore[name-defined]

    @dataclass
    class Derived(Base):
        scale: int = 2
        kept = x + 1

        @property
        def double(self) -> Any:
            return self.scale * 2

        def get(self, value: Any) -> Any:
            name, value = super().get(value * self.scale)
            return name, value + Base().value + Derived.kept

    class Kind(enum.Enum):
        ONE = 1

    Base.added = x * 2  # type: ignore[attr-defined]
    made = Derived()
    Base.__init__(made)
    return made, Base, Kind.ONE, made.get(x)


def test_what_leaves_is_of_a_class_of_its_own() -> None:
    compiled, x = firebrick.compile(leaves, fullgraph=True), torch.tensor([1.0, -2.0])
    (made, base, kind, got), (other, _, second, _) = compiled(x), compiled(x)
    want, _, _, expected = leaves(x)
    assert_same(got, expected)
    assert_same(made.get(x * 3), want.get(x * 3))
    assert_same(base.added, x * 2)
    assert type(made) is not type(other)
    assert type(kind) is not type(second)
    assert type(made).__mro__[1] is base
    assert (repr(made), made.double, type(made).__qualname__, type(made).__module__) == (
        repr(want),
        want.double,
        type(want).__qualname__,
        type(want).__module__,
    )
    assert (kind.name, kind.value, type(kind)(1) is kind) == ("ONE", 1, True)


SEEN: list[str] = []


class Told:
    def __init_subclass__(cls) -> None:
        SEEN.append(cls.__name__)


class Named:
    def __set_name__(self, owner: Any, name: str) -> None:
        SEEN.append(name)


class Meta(type):
    def __new__(cls, *args: Any) -> Any:
        SEEN.append(args[0])
        return super().__new__(cls, *args)


def seen_by_a_base(x: Any) -> Any:
    class Local(Told):
        scale = 2

    return x * Local.scale


def seen_by_an_entry(x: Any) -> Any:
    class Local:
        name = Named()

    return x * 2, type(Local.name).__name__


def seen_by_a_metaclass(x: Any) -> Any:
    class Local(metaclass=Meta):
        scale = 2

    return x * Local.scale


class Positive:
    def __set_name__(self, owner: Any, name: str) -> None:
        self.name = f"_{name}"
        owner.names = (*getattr(owner, "names", ()), name)

    def __get__(self, instance: Any, owner: Any) -> Any:
        return owner.__name__ if instance is None else getattr(instance, self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        if isinstance(value, int) and value < 0:
            raise ValueError(f"{self.name} is negative")
        setattr(instance, self.name, value)


class Shown:
    def __get__(self, instance: Any, owner: Any) -> Any:
        return "shown", owner.__name__


class Scaled:
    def __init_subclass__(cls, scale: int = 1, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.scale = scale  # type: ignore[attr-defined]
        SEEN.append(cls.__qualname__)


def holds_descriptors(x: Any) -> Any:
    class Local:
        width = Positive()
        height = Positive()
        shown = Shown()

        def __init__(self, width: Any, height: Any) -> None:
            self.width, self.height = width, height

    box = Local(x, 3)
    try:
        box.height = -1
    except ValueError as error:
        text = str(error)
    box.shown = 5  # type: ignore[assignment]
    names = Local.names  # type: ignore[attr-defined]
    return box.width * box.height, Local.width, Local.shown, box.shown, text, names, sorted(vars(box))


def descriptors_of_classes_inside(x: Any) -> Any:
    class Doubled:
        def __set_name__(self, owner: Any, name: str) -> None:
            self.key = (owner.__name__, name)

        def __get__(self, instance: Any, owner: Any) -> Any:
            return instance.base * 2

    class Local:
        twice = Doubled()

        def __init__(self, base: Any) -> None:
            self.base = base

    return Local(x).twice + 1, vars(Local)["twice"].key


def told_with_options(x: Any) -> Any:
    class Local(Scaled, scale=3):
        def get(self) -> Any:
            return x * self.scale  # type: ignore[attr-defined]

    class Derived(Local, scale=2):
        def get(self) -> Any:
            return super().get() + 1

    try:

        class Wrong(Scaled, other=1):
            pass

    except TypeError as error:
        text = str(error)
    return Local().get() + Derived().get(), Derived.__mro__[1] is Local, Derived.__bases__ == (Local,), text


def told_by_a_base_inside(x: Any) -> Any:
    seen = []

    class Base:
        def __init_subclass__(cls) -> None:
            seen.append((cls.__name__, cls.__base__ is Base, hasattr(cls, "extra")))

    class First(Base):
        extra = 1

    class Second(First):
        own = Positive()

    return x * len(seen), seen, Second.own


@pytest.mark.parametrize(
    "function",
    [
        *(seen_by_a_base, seen_by_an_entry, holds_descriptors, descriptors_of_classes_inside, told_with_options),
        told_by_a_base_inside,
    ],
)
def test_hooks_run_in_one_graph(function: Any) -> None:
    SEEN.clear()
    check(function, torch.tensor([1.0, -2.0, 0.5]), calls=3)
    assert len(SEEN) % 6 == 0


def seen_and_leaves(x: Any) -> Any:
    class Local(Scaled, scale=2):
        pass

    return Local(), x * 2


def raises_while_seen(x: Any) -> Any:
    class Refusing:
        def __set_name__(self, owner: Any, name: str) -> None:
            raise ValueError(name)

    class Local:
        entry = Refusing()

    return x * 2, Local


@pytest.mark.parametrize("function", [seen_and_leaves, raises_while_seen])
def test_classes_that_hooks_saw_leave_as_in_python(function: Any) -> None:
    SEEN.clear()
    compiled, x = Compiled(function), torch.ones(2)
    for _ in range(2):
        (kind, got), (same, want) = outcome(compiled, (x,)), outcome(function, (x,))
        assert kind == same
        if kind == "raised":
            assert got == want
        else:
            assert (type(got[0]).__name__, got[0].scale, type(got[0]).__bases__) == ("Local", 2, (Scaled,))
            assert_same(got[1], want[1])
    assert len(SEEN) in (0, 4)


@pytest.mark.parametrize("function", [seen_by_a_metaclass, descriptors_and_operators])
def test_what_sees_a_class_being_made_sees_it_once(function: Any) -> None:
    SEEN.clear()
    check(function, torch.tensor([1.0, -2.0, 0.5]), graphs=None, breaks=None, calls=2)
    assert len(SEEN) in (0, 4)


def base_that_changes(x: Any) -> Any:
    class Local(Changing):
        pass

    return x * Local().scale


class Changing:
    scale = 2


def test_bases_from_outside_are_guarded() -> None:
    check_change(base_that_changes, lambda: setattr(Changing, "scale", 3), torch.ones(2))
