"""Classes made in captured code by metaclasses of the program's: what these do is captured with them."""

from __future__ import annotations

import abc
import enum
from typing import Any, Generic, TypeVar

import pytest
import torch
from compiling import assert_same, check, check_change

import firebrick

SEEN: list[Any] = []
T = TypeVar("T")


class Meta(type):
    def __new__(mcs, name: str, bases: tuple[Any, ...], space: dict[str, Any], **options: Any) -> Any:
        SEEN.append(("new", name, [base.__name__ for base in bases], sorted(options)))
        space["added"] = len(space)
        return super().__new__(mcs, name, bases, space)

    def __init__(cls, name: str, bases: tuple[Any, ...], space: dict[str, Any], scale: int = 1) -> None:
        super().__init__(name, bases, space)
        cls.scale = scale
        SEEN.append(("init", cls.__name__, "added" in space))

    def __call__(cls, *args: Any) -> Any:
        SEEN.append(("call", cls.__name__))
        made = super().__call__(*args)
        made.scaled = cls.scale
        return made

    def doubled(cls) -> Any:
        return cls.scale * 2

    @property
    def tripled(cls) -> Any:
        return cls.scale * 3


def by_a_metaclass(x: Any) -> Any:
    class Base(metaclass=Meta, scale=2):
        def __init__(self, value: Any) -> None:
            self.value = value

        def get(self) -> Any:
            return self.value * self.scaled

    class Derived(Base, scale=5):
        def get(self) -> Any:
            return super().get() + __class__.added  # type: ignore[name-defined]

    made = Derived(x)
    kinds = (type(Derived) is Meta, isinstance(made, Base), issubclass(Derived, Base), isinstance(Base, Meta))
    return made.get(), Base(x).get(), kinds, Derived.doubled(), Base.tripled, Derived.__mro__[1] is Base


def of_the_function(x: Any) -> Any:
    order = []

    class Inner(type):
        @classmethod
        def __prepare__(mcs, name: str, bases: Any, **options: Any) -> Any:
            order.append(("prepare", name, options))
            return {"given": x + 1}

        def __new__(mcs, name: str, bases: Any, space: Any, **options: Any) -> Any:
            order.append(("new", list(space)))
            made = type.__new__(mcs, name, bases, dict(space))
            made.option = options["option"]
            return made

        def __init__(cls, *args: Any, **options: Any) -> None:
            order.append(("init", len(args), cls.option))

    class Local(metaclass=Inner, option=x * 2):
        taken = given * 3  # type: ignore[name-defined]  # noqa: F821

        def get(self) -> Any:
            return self.option + __class__.taken + type(self).given  # type: ignore[name-defined]

    return Local().get(), [one for one in order if one[0] != "prepare"], order[0][:2]


class Recorder(dict):  # type: ignore[type-arg]
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __setitem__(self, name: str, value: Any) -> None:
        if name[:2] != "__":
            self.names.append(name)
        super().__setitem__(name, value)

    def __missing__(self, name: str) -> Any:
        if name[:1] != "m":
            raise KeyError(name)
        return f"missing {name}"


class Ordered(type):
    @classmethod
    def __prepare__(mcs, name: str, bases: Any) -> Any:
        return Recorder()

    def __new__(mcs, name: str, bases: Any, space: Any) -> Any:
        made = super().__new__(mcs, name, bases, dict(space))
        made.order = tuple(space.names)
        return made


def in_a_namespace_of_its_own(x: Any) -> Any:
    class Local(metaclass=Ordered):
        first = x + 1
        second = 2
        first = first * second
        third = mine  # type: ignore[name-defined]  # noqa: F821

    return Local.first, Local.order, Local.third  # type: ignore[attr-defined]


class Single(type):
    made: dict[Any, Any] = {}

    def __call__(cls, *args: Any) -> Any:
        if cls not in cls.made:
            cls.made[cls] = super().__call__(*args)
        return cls.made[cls]


def one_instance(x: Any) -> Any:
    class Local(metaclass=Single):
        def __init__(self, value: Any) -> None:
            self.value = value

    return Local(x).value + Local(x * 2).value, Local(1) is Local(2)


class Twice(Meta):
    def __init__(cls, name: str, bases: Any, space: Any, **options: Any) -> None:
        SEEN.append(("twice", name))
        super().__init__(name, bases, space, **options)


def derived_metaclass(x: Any) -> Any:
    class First(metaclass=Meta):
        pass

    class Second(First, metaclass=Twice, scale=3):
        pass

    third = type("Third", (Second,), {"k": x})
    return third.k * third.scale, type(third) is Twice, third.__module__, third.__name__


class Abstract(abc.ABCMeta):
    def __new__(mcs, name: str, bases: Any, space: Any) -> Any:
        made = super().__new__(mcs, name, bases, space)
        SEEN.append((name, sorted(made.__abstractmethods__)))
        return made


def abstract_with_a_metaclass(x: Any) -> Any:
    class Base(metaclass=Abstract):
        @abc.abstractmethod
        def get(self) -> Any: ...

    class Derived(Base):
        def get(self) -> Any:
            return x * 2

    try:
        Base()
    except TypeError as error:
        return Derived().get(), str(error), isinstance(Derived(), Base)
    return x


class Told(abc.ABC):
    registry: list[str] = []

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.registry.append(cls.__name__)

    @abc.abstractmethod
    def get(self) -> Any: ...


class Typed(Generic[T]):
    def __init_subclass__(cls, key: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.key = key  # type: ignore[attr-defined]


class Slotted:
    __slots__ = ("held",)

    def __init_subclass__(cls) -> None:
        cls.told = cls.__name__  # type: ignore[attr-defined]


def told_on_other_layouts(x: Any) -> Any:
    class One(Told):
        def get(self) -> Any:
            return x + 1

    class Two(Typed[int], key="two"):
        pass

    class Three(Typed[T], Generic[T], key="three"):
        pass

    class Four(Slotted):
        __slots__ = ("more",)

    class Five(Slotted):
        pass

    class Six(list, Told):  # type: ignore[type-arg]
        def get(self) -> Any:
            return len(self)

    four = Four()
    four.held, four.more = x, 2  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        four.other = 1  # type: ignore[attr-defined]
    five = Five()
    five.held = five.other = x  # type: ignore[attr-defined]
    texts = (Two.key, Three.key, Four.told, Five.told, Three[int] is not None, Three.__parameters__)  # type: ignore
    bases = (One.__bases__, Two.__bases__, Three.__bases__, Two.__orig_bases__)  # type: ignore[attr-defined]
    return One().get() + four.held * four.more, texts, bases, hasattr(five, "__dict__"), Six([1, 2]).get()  # type: ignore


class Refusing:
    def __set_name__(self, owner: Any, name: str) -> None:
        raise ValueError(name)


def refused_names(x: Any) -> Any:
    try:

        class Local:
            entry = Refusing()

    except (RuntimeError, ValueError) as error:
        return x * 2, type(error).__name__, str(error), type(error.__cause__).__name__, getattr(error, "__notes__", 0)
    return x


class Plain(enum.EnumMeta):
    def __contains__(cls, item: Any) -> Any:
        return item == "all" or super().__contains__(item)

    @property
    def total(cls) -> Any:
        return sum(member.value for member in cls)


def enumeration_with_a_metaclass(x: Any) -> Any:
    class Kind(enum.Enum, metaclass=Plain):
        ONE = 1
        TWO = 2

    return x * Kind.total, "all" in Kind, Kind.ONE in Kind, Kind.TWO.name, Kind(2) is Kind.TWO  # type: ignore


def function_as_metaclass(x: Any) -> Any:
    def make(name: str, bases: Any, space: Any) -> Any:
        return type(name.upper(), bases, {**space, "more": x})

    class Local(metaclass=make):
        scale = 2

    return Local.more * Local.scale, Local.__name__  # type: ignore[attr-defined]


class Reading(type):
    def __getattr__(cls, name: str) -> Any:
        SEEN.append(name)
        return f"no {name}"

    def __setattr__(cls, name: str, value: Any) -> None:
        SEEN.append(("set", name))
        super().__setattr__(name, value)


def attributes_by_a_metaclass(x: Any) -> Any:
    class Local(metaclass=Reading):
        scale = 2

    Local.other = x  # type: ignore[attr-defined]
    return Local.other * Local.scale, Local.missing  # type: ignore[attr-defined]


def without_the_cell(x: Any) -> Any:
    class Losing(type):
        def __new__(mcs, name: str, bases: Any, space: Any) -> Any:
            return super().__new__(mcs, name, bases, {k: v for k, v in space.items() if k != "__classcell__"})

    try:

        class Local(metaclass=Losing):
            def get(self) -> Any:
                return __class__  # type: ignore[name-defined]

    except RuntimeError as error:
        return x + 1, str(error)
    return x


def something_else(x: Any) -> Any:
    class Instead(type):
        def __new__(mcs, name: str, bases: Any, space: Any) -> Any:
            return (name, space["value"])

    class Local(metaclass=Instead):
        value = x * 2

    return Local


FUNCTIONS = [
    *(by_a_metaclass, of_the_function, in_a_namespace_of_its_own, derived_metaclass, abstract_with_a_metaclass),
    *(told_on_other_layouts, refused_names, enumeration_with_a_metaclass, function_as_metaclass),
    *(attributes_by_a_metaclass, without_the_cell, something_else),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_graph(function: Any) -> None:
    SEEN.clear()
    check(function, torch.tensor([1.0, -2.0, 0.5]), calls=3)
    half = len(SEEN) // 6
    assert SEEN == SEEN[:half] * 6


def leaves_made(x: Any) -> Any:
    class Base(metaclass=Meta, scale=2):
        def __init__(self, value: Any) -> None:
            self.value = value

        def get(self, value: Any) -> Any:
            return self.value + value

    class Derived(Base):
        size = Positive()

        @property
        def both(self) -> Any:
            return super().get(self.size), __class__.__name__  # type: ignore[name-defined]

    Base.kept = x + 1  # type: ignore[attr-defined]
    made = Derived(x * 2)
    made.size = 3
    return made, Base, Derived


class Positive:
    def __set_name__(self, owner: Any, name: str) -> None:
        SEEN.append((owner.__name__, name))
        self.name, self.owner = f"_{name}", owner
        owner.sizes = (*getattr(owner, "sizes", ()), name)

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else getattr(instance, self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(instance, self.name, value)


def test_classes_that_leave_are_made_without_running_the_program_again() -> None:
    x = torch.tensor([1.0, -2.0])
    SEEN.clear()
    want, *_ = leaves_made(x)
    once = [*SEEN]
    compiled = firebrick.compile(leaves_made, fullgraph=True)
    seen = []
    for _ in range(3):
        SEEN.clear()
        made, base, derived = compiled(x)
        assert once == SEEN
        seen.append(derived)
        assert type(made) is derived and derived.__bases__ == (base,) and type(base) is Meta
        assert [*vars(derived)] == [*vars(type(want))]
        assert derived.size.owner is derived and derived.sizes == ("size",)
        assert (base.scale, derived.scale, derived.added) == (2, 1, type(want).added)
        assert_same(base.kept, x + 1)
        assert_same(made.both, want.both)
        assert_same(derived(x).get(1), type(want)(x).get(1))
    assert len({*seen}) == 3


KEPT: list[Any] = []


def leaves_by_hooks(x: Any) -> Any:
    global Left

    class Local(Told):
        def get(self) -> Any:
            return x * 3

    class Typing(Typed[T], Generic[T], key="k"):
        pass

    class Left(Slotted):
        __slots__ = ("more",)

    KEPT.append(Local)
    return Local(), Typing, x + 1


def test_classes_that_hooks_saw_leave() -> None:
    compiled, x = firebrick.compile(leaves_by_hooks, fullgraph=True), torch.ones(2)
    KEPT.clear()
    for count in range(1, 4):
        Told.registry.clear()
        made, typing, _ = compiled(x)
        assert Told.registry == ["Local"]
        assert len(KEPT) == count and KEPT[-1] is type(made)
        assert_same(made.get(), x * 3)
        assert (type(made).__bases__, type(made).__mro__[1:]) == ((Told,), Told.__mro__)
        assert (typing.key, typing[int].__args__, typing.__parameters__, typing.__bases__) == (
            "k",
            (int,),
            (T,),
            (Typed, Generic),
        )
        assert (Left.told, Left.__slots__, hasattr(Left(), "__dict__")) == ("Left", ("more",), False)  # type: ignore[name-defined]  # noqa: F821
    assert len({*KEPT}) == 3


def enumeration_leaves(x: Any) -> Any:
    class Kind(enum.Enum, metaclass=Plain):
        ONE = 1
        TWO = 2

    class Base(metaclass=Abstract):
        @abc.abstractmethod
        def get(self) -> Any: ...

    class Derived(Base):
        def get(self) -> Any:
            return super().get()

    return Kind.TWO, Base, Derived, x * 2


def test_library_metaclasses_below_the_programs() -> None:
    compiled, x = firebrick.compile(enumeration_leaves, fullgraph=True), torch.ones(2)
    for _ in range(2):
        kind, base, derived, _ = compiled(x)
        assert (kind.value, type(kind).total, type(kind)(1).name, type(type(kind))) == (2, 3, "ONE", Plain)
        assert (base.__abstractmethods__, derived.__abstractmethods__) == ({"get"}, frozenset())
        assert derived().get() is None
        with pytest.raises(TypeError, match="abstract"):
            base()


def outer_scale(x: Any) -> Any:
    class Local(metaclass=Scaling):
        pass

    return x * Local.scale  # type: ignore[attr-defined]


class Scaling(type):
    factor = 2

    def __init__(cls, *args: Any) -> None:
        cls.scale = cls.factor + 1


def test_metaclasses_from_outside_are_guarded() -> None:
    check_change(outer_scale, lambda: setattr(Scaling, "factor", 5), torch.ones(2))


class Untold:
    pass


def not_told_yet(x: Any) -> Any:
    class Local(Untold):
        scale = 2

    return x * Local.scale


def test_bases_that_begin_to_be_told_are_seen() -> None:
    def told(cls: Any) -> None:
        cls.scale = 5

    check_change(not_told_yet, lambda: setattr(Untold, "__init_subclass__", classmethod(told)), torch.ones(2))
