"""Every kind of user class that capture promises, one program each."""

from __future__ import annotations

import contextvars
import copy
import dataclasses
import weakref
from typing import Any, ClassVar, TypeVar

import pytest
import torch
from naming import Table, X, check_row

TABLE = Table()
row = TABLE.row
T = TypeVar("T")
VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("VARIABLE", default=2)
UNSET: contextvars.ContextVar[int] = contextvars.ContextVar("UNSET")


class Vector:
    """All operators."""

    def __init__(self, *values):
        self.values = list(values)

    def __add__(self, other):
        if not isinstance(other, Vector):
            return NotImplemented
        return Vector(*(a + b for a, b in zip(self.values, other.values)))

    def __radd__(self, other):
        return Vector(*(other + v for v in self.values))

    def __iadd__(self, other):
        self.values = [v + other for v in self.values]
        return self

    def __mul__(self, n):
        return Vector(*(v * n for v in self.values))

    __rmul__ = __mul__

    def __matmul__(self, other):
        return sum(a * b for a, b in zip(self.values, other.values))

    def __neg__(self):
        return Vector(*(-v for v in self.values))

    def __invert__(self):
        return "inverted"

    def __abs__(self):
        return max(self.values)

    def __eq__(self, other):
        return isinstance(other, Vector) and self.values == other.values

    def __hash__(self):
        return hash(tuple(self.values))

    def __lt__(self, other):
        return self.values < other.values

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        return iter(self.values)

    def __reversed__(self):
        return reversed(self.values)

    def __contains__(self, item):
        return item in self.values

    def __getitem__(self, index):
        return Vector(*self.values[index]) if isinstance(index, slice) else self.values[index]

    def __setitem__(self, index, value):
        self.values[index] = value

    def __delitem__(self, index):
        del self.values[index]

    def __call__(self, n, *, k=1):
        return [v * n * k for v in self.values]

    def __bool__(self):
        return bool(self.values)

    def __repr__(self):
        return f"Vector({', '.join(map(repr, self.values))})"

    def __format__(self, spec):
        return f"<{spec}>"

    def __index__(self):
        return len(self.values)

    def __int__(self):
        return 41

    def __float__(self):
        return 0.5

    def __round__(self, n=0):
        return n

    def __divmod__(self, other):
        return "q", "r"

    def __pow__(self, other, mod=None):
        return ("pow", other, mod)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.values.append("left")


@row(X, Vector(1, 2))
def operators_of_objects(x, v):
    w = v + Vector(3, 4)
    v += 1
    v[0] = 5
    with v as same:
        pass
    del v[-1]
    return (
        x * (w @ Vector(1, 1)), (3 + v).values, (2 * v).values, (-v).values, ~v, abs(v), v == Vector(5, 3), v != w, v < w,
        len(v), list(v), list(reversed(v)), 3 in v, v[0], v[:1].values, v(2, k=3), bool(Vector()), repr(v), f"{v:x}", str(v),
        [1, 2, 3][v], int(v), float(v), round(v, 2), divmod(v, 1), v**2, pow(v, 2, 3), hash(v) == hash(Vector(5, 3)),
        {v: 1}[Vector(5, 3)], same is v, max(v), sum(v, 0), sorted([w, v])[0] is v, [*v], dict.fromkeys(v),
    )  # fmt: skip


@row(X, Vector(1))
def operators_that_are_not_there(x, v):
    texts = []
    for call in (lambda: v + "s", lambda: v - 1, lambda: v > Other(), lambda: Other()[0], lambda: len(Other()),
                 lambda: Other()(), lambda: Other() + 1, lambda: -Other(), lambda: next(Other())):  # fmt: skip
        try:
            call()
        except TypeError as error:
            texts.append(str(error))
    return x + 1, texts, Other() == Other(), Other() != 1


class Other:
    """Nothing special."""


class Celsius:
    """Properties, with setter and deleter, class and static methods."""

    made: ClassVar[int] = 0
    unit = "C"

    def __init__(self, degrees):
        self._degrees = degrees

    @property
    def degrees(self):
        """Degrees."""
        return self._degrees

    @degrees.setter
    def degrees(self, value):
        if value < -273:
            raise ValueError("too cold")
        self._degrees = value

    @degrees.deleter
    def degrees(self):
        self._degrees = None

    @classmethod
    def freezing(cls):
        return cls(0)

    @staticmethod
    def convert(value):
        return value * 9 / 5 + 32


class Kelvin(Celsius):
    unit = "K"

    @property
    def degrees(self):
        return super().degrees + 273

    @classmethod
    def freezing(cls):
        return super().freezing()


@row(X, Celsius(5))
def properties_and_methods_of_classes(x, c):
    c.degrees = 7
    kept = c.degrees
    try:
        c.degrees = -300
    except ValueError as error:
        text = str(error)
    try:
        Kelvin(1).degrees = 3
    except AttributeError as error:
        missing = str(error)
    del c.degrees
    return (
        x + kept,
        c.degrees,
        text,
        missing,
        Kelvin.freezing().degrees,
        Celsius.convert(10),
        c.convert(1),
        type(c).unit,
        Kelvin.unit,
    )


class Typed:
    """A data descriptor."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name, "unset")

    def __set__(self, instance, value):
        setattr(instance, self.name, value * 2)

    def __delete__(self, instance):
        delattr(instance, self.name)


class NonData:
    """A descriptor that instances may shadow."""

    def __get__(self, instance, owner):
        return owner.__name__ if instance is None else "from descriptor"


class WithDescriptors:
    typed = Typed()
    plain = NonData()


@row(X, WithDescriptors())
def descriptors(x, w):
    before = w.typed
    w.typed = 5
    after = w.typed
    del w.typed
    first = w.plain
    w.plain = "own"
    return x + after, before, w.typed, first, w.plain, WithDescriptors.plain, isinstance(WithDescriptors.typed, Typed)


class Dynamic:
    """`__getattr__`, `__setattr__`, `__delattr__`, `__getattribute__`."""

    def __init__(self):
        object.__setattr__(self, "log", [])

    def __getattr__(self, name):
        if name.startswith("no"):
            raise AttributeError(f"never {name}")
        return name.upper()

    def __setattr__(self, name, value):
        self.log.append(name)
        super().__setattr__(name, value)

    def __delattr__(self, name):
        self.log.append(f"-{name}")
        object.__delattr__(self, name)


class Watching:
    def __init__(self):
        self.value = 3

    def __getattribute__(self, name):
        found = object.__getattribute__(self, name)
        return found + 1 if name == "value" else found


@row(make=lambda: (X, Dynamic(), Watching()))
def attribute_hooks(x, d, w):
    d.a = 5
    before = d.a, d.other, hasattr(d, "nothing"), getattr(d, "no", 4)
    del d.a
    try:
        d.none
    except AttributeError as error:
        text = str(error)
    d.__dict__["direct"] = 1
    setattr(d, "set", 2)
    return x + w.value, before, d.a, text, d.log, vars(d), d.__class__.__name__


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


@row(X, Slotted(3))
def slots(x, s):
    s.b = s.a + 1
    made = Slotted(x)
    try:
        s.c = 1
    except AttributeError as error:
        text = str(error)
    try:
        made.b
    except AttributeError as error:
        text += str(error)
    return x + s.b, made.a, text, hasattr(made, "b")


@dataclasses.dataclass
class Point:
    x: Any
    y: int = 2
    tags: list = dataclasses.field(default_factory=list)
    total: int = dataclasses.field(init=False, default=0)
    kind: ClassVar[str] = "point"

    def __post_init__(self):
        self.total = self.y * 2


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Frozen:
    a: int
    b: int = 1


@dataclasses.dataclass(kw_only=True)
class Derived(Point):
    z: int = 0


@dataclasses.dataclass
class Seeded:
    n: int
    seed: dataclasses.InitVar[int] = 3

    def __post_init__(self, seed):
        self.n += seed


@row(X, Point(1), Frozen(1))
def dataclasses_of_all_kinds(x, p, f):
    p.tags.append("t")
    try:
        f.a = 2
    except dataclasses.FrozenInstanceError as error:
        text = str(error)
    made = Derived(x, 3, z=4)
    return (
        made.x + p.total, text, dataclasses.replace(f, b=5), Frozen(1, 2) > f, f == Frozen(1), hash(f) == hash(Frozen(1)),
        dataclasses.asdict(p), dataclasses.astuple(f), [g.name for g in dataclasses.fields(p)], repr(f), p == Point(1),
        dataclasses.is_dataclass(p), made.total, {f: 1}[Frozen(1)], Seeded(1).n, p.kind, made, Frozen(2),
    )  # fmt: skip


# -- copies, weak references, context variables -----------------------------------------------


@row(X, Vector(1, [2]), [1, [2]], {"a": [1]}, {1, 2})
def copies(x, v, a, d, s):
    v2, a2, d2 = copy.copy(v), copy.copy(a), copy.deepcopy(d)
    deep, both = copy.deepcopy(v), copy.deepcopy([a, a])
    v2.values.append(3)
    a2.append(3)
    d2["a"].append(5)
    deep.values[1].append(9)
    return (
        x + 1,
        v,
        v2.values,
        a,
        a2,
        d,
        d2,
        deep.values,
        both[0] is both[1],
        copy.deepcopy(s) is s,
        copy.copy((1, 2)),
        copy.deepcopy(Frozen(1)),
    )


@row(graphs=None, breaks=None)
def deepcopy_of_a_tensor(x):
    y = copy.deepcopy(x)
    y.add_(1)
    z = copy.copy(x)
    return y, x, z


@row(X, Vector(1))
def weak_references(x, v):
    r = weakref.ref(v)
    p = weakref.ref(v)
    return x + r().values[0], r() is v, r == p


@row(X, Vector(1), graphs=None, breaks=None)
def weak_containers(x, v):
    d = weakref.WeakKeyDictionary()
    d[v] = 5
    w = weakref.WeakValueDictionary(a=v)
    s = weakref.WeakSet([v])
    p = weakref.proxy(v)
    return x + d[v], w["a"] is v, v in s, len(p), p.values


@row()
def context_variables(x):
    before = VARIABLE.get()
    token = VARIABLE.set(7)
    y = x * VARIABLE.get()
    VARIABLE.reset(token)
    return y + before, VARIABLE.get(), UNSET.get(4)


@row()
def context_variable_that_is_not_set(x):
    try:
        UNSET.get()
    except LookupError:
        return x + 1


@row(graphs=None, breaks=None)
def context_variable_that_stays_set(x):
    token = VARIABLE.set(VARIABLE.get() + 1)
    y = x + VARIABLE.get()
    torch._dynamo.graph_break()
    y = y + VARIABLE.get()
    VARIABLE.reset(token)
    return y, VARIABLE.get()


@row(X, Other())
def attributes_by_name(x, o):
    setattr(o, "a", 1)
    o.__dict__.update(b=2)
    del o.a
    return x + o.b, getattr(o, "a", "none"), hasattr(o, "b"), vars(o), o.__dict__ == {"b": 2}


@row(X, Other())
def dict_of_an_object(x, o):
    d = o.__dict__
    d["n"] = 1
    d.setdefault("m", 2)
    popped = d.pop("n")
    return x + popped, o.m, "n" in d, list(d.items())


@pytest.mark.parametrize("program", TABLE.rows, ids=lambda program: program.name)
def test_object(program):
    check_row(program)
