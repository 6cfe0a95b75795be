"""Every kind of class that capture promises, one program each: metaclasses, inheritance, abstract, generic."""

from __future__ import annotations

import abc
import types
import typing
from typing import ClassVar, Generic, Protocol, TypeVar

import pytest
from naming import Table, X, check_row

TABLE = Table()
row = TABLE.row
T = TypeVar("T")


# -- classes -----------------------------------------------------------------------------------


class Registry(type):
    """A metaclass with a table, a property, and calls of its own."""

    found: ClassVar[dict] = {}

    def __new__(mcs, name, bases, namespace, **options):
        made = super().__new__(mcs, name, bases, namespace)
        mcs.found[name] = made
        made.options = options
        return made

    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.through = "metaclass"
        return made

    def __getitem__(cls, n):
        return f"{cls.__name__}[{n}]"

    def __len__(cls):
        return 7

    def __iter__(cls):
        return iter((1, 2))

    def __contains__(cls, item):
        return item == "in"

    def __instancecheck__(cls, item):
        return item == 5 or super().__instancecheck__(item)

    @property
    def size(cls):
        return len(cls.__name__)


class Meta(metaclass=Registry, option=3):
    def __init__(self, n):
        self.n = n


@row(X, Meta(1))
def metaclasses(x, m):
    made = Meta(4)
    return (
        x + made.n, made.through, Meta[3], len(Meta), list(Meta), "in" in Meta, isinstance(5, Meta), isinstance(made, Meta),
        isinstance(6, Meta), Meta.size, Meta.options, type(Meta).__name__, Registry.found["Meta"] is Meta, m.through,
    )  # fmt: skip


class Singleton:
    instance = None

    def __new__(cls, *args):
        if cls.instance is None:
            return super().__new__(cls)
        return cls.instance

    def __init__(self, n=0):
        self.n = n


class Positive(int):
    def __new__(cls, value):
        return super().__new__(cls, abs(value))

    def doubled(self):
        return Positive(self * 2)


class Items(list):
    def total(self):
        return sum(self)

    def append(self, item):
        super().append(item * 2)


class Table_(dict):
    def __missing__(self, key):
        return key * 2

    def __getattr__(self, name):
        return self[name]

    __setattr__ = dict.__setitem__


class Words(str):
    def count_words(self):
        return len(self.split())


@row(graphs=None, make=lambda: (X, Positive(-3), Items([1, 2]), Table_(a=1), Words("a b")))
def subclasses_of_builtins(x, p, i, t, w):
    i.append(5)
    t.z = 5
    made = Items((1,))
    made.extend([x])
    return (
        x * p, p.doubled(), type(p.doubled()).__name__, p + 1, i.total(), i[1:], len(i), t["q"], t.a, t["z"], dict(t), w.count_words(),
        w + "c", w.upper(), made, isinstance(i, list), Positive(-7) == 7, t.get("none"), "z" in t, Words("x y z").count_words(), i == [1, 2, 10],
        Singleton(3).n, [*i], sum(i), range(p)[1], (1, 2, 3, 4)[p],
    )  # fmt: skip


class Shape(abc.ABC):
    made = 0

    @abc.abstractmethod
    def area(self): ...

    @property
    @abc.abstractmethod
    def name(self): ...

    def twice(self):
        return self.area() * 2


class Square(Shape):
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side**2

    @property
    def name(self):
        return "square"


class Quacks(Protocol):
    def quack(self) -> str: ...


@typing.runtime_checkable
class Sized_(Protocol):
    def __len__(self) -> int: ...


class Box(Generic[T]):
    def __init__(self, item: T) -> None:
        self.item = item

    def get(self) -> T:
        return self.item


@row(X, Square(2))
def abstract_classes_and_typing(x, s):
    try:
        Shape()
    except TypeError as error:
        text = str(error)
    from collections.abc import Callable, Mapping, Sequence

    return (
        x * s.twice(), s.name, text, isinstance(s, Shape), isinstance([], Sequence), isinstance({}, Mapping), isinstance(len, Callable),
        issubclass(Square, Shape), isinstance([], Sized_), isinstance(3, Sized_), Box(3).get(), Box[int](4).get(), typing.cast("int", "s"),
        typing.get_origin(list[int]) is list, typing.get_args(dict[str, int]), typing.get_type_hints(Box.get) != {}, typing.Optional[int],
        isinstance(3, typing.Union[int, str]), isinstance({}, typing.Mapping), isinstance(len, (typing.Callable, str)), typing.NamedTuple.__name__, typing.TYPE_CHECKING,
    )  # fmt: skip


class Base:
    def __init__(self, log):
        self.log = log
        log.append("Base")

    def who(self):
        return ["Base"]


class Left(Base):
    def __init__(self, log):
        super().__init__(log)
        log.append("Left")

    def who(self):
        return ["Left", *super().who()]


class Right(Base):
    def __init__(self, log):
        super().__init__(log)
        log.append("Right")

    def who(self):
        return ["Right", *super().who()]


class Both(Left, Right):
    def __init__(self, log):
        super(Both, self).__init__(log)  # noqa: UP008
        log.append("Both")

    def who(self):
        return ["Both", *super().who(), *Right.who(self)]


@row(X, [])
def inheritance_and_super(x, log):
    both = Both(log)
    return (
        x + len(both.who()),
        both.who(),
        log,
        [c.__name__ for c in Both.__mro__],
        Both.__bases__ == (Left, Right),
        super(Left, both).who(),
    )


@row()
def class_attributes_written(x):
    Shape.made += 1
    y = x + Shape.made
    Shape.made = 0
    return y


@row()
def classes_made_by_calls(x):
    Made = type("Made", (Base,), {"factor": 3, "get": lambda self: self.factor})
    return x + Made([]).get(), Made.__name__


@row()
def simple_namespaces(x):
    space = types.SimpleNamespace(a=1, b=x)
    space.c = space.a + 1
    return space.b + space.c, space, sorted(vars(space))


@row(X, types.SimpleNamespace(a=1))
def simple_namespace_argument(x, space):
    space.a += 1
    return x + space.a


@pytest.mark.parametrize("program", TABLE.rows, ids=lambda program: program.name)
def test_class(program):
    check_row(program)
