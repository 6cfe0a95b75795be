"""Kinds of values around tensors: containers, classes, functions, iterators, modules of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import itertools
import math
import operator
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any, NamedTuple

import pytest
import torch
from compiling import Compiled, check

X = torch.arange(6.0).reshape(2, 3)


def test_lists() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        items = [x, x + 1]
        items.append(x * 2)
        items.insert(0, 5)
        items.extend((1, 2))
        items += [3]
        last = items.pop()
        items.reverse()
        again = items * 2
        numbers = sorted([3, 1, 2], key=lambda n: -n)
        numbers.sort()
        numbers.remove(2)
        numbers.append(2)
        return items, last, again, numbers, numbers.index(2), 7 in numbers, items[0] is 2, [1, 2] < [1, 3], len(again)

    check(fn, X)


def test_dicts() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        d: dict[Any, Any] = {"a": x, 2: 3}
        d["b"] = x + 1
        d.update({"c": 1}, e=4)
        d.setdefault("f", []).append(1)
        popped = d.pop("c")
        gone = d.pop("zz", None)
        copied = dict(d)
        copied["a"] = 0
        merged = {**d, "g": 1} | {"h": 2}
        ordered = OrderedDict(z=1, y=2)
        ordered.move_to_end("z")
        groups: defaultdict[str, list[int]] = defaultdict(list)
        groups["k"].append(1)
        return (
            d,
            popped,
            gone,
            copied,
            merged,
            ordered,
            dict(groups),
            "a" in d,
            list(d.items())[0][0],
            len(d),
            d.get("q", 9),
        )

    check(fn, X)


def test_sets_counters_deques() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        s = {1, 2, 3}
        s.add(4)
        s.discard(1)
        t = s & {2, 3, 9} | {7}
        queue = deque([1, 2, 3], maxlen=3)
        queue.append(4)
        queue.appendleft(0)
        return x + len(s), s, t, s - t, s ^ t, t <= s, frozenset(s), list(queue), queue.popleft(), 2 in s

    check(fn, X)


Point = namedtuple("Point", "x y")


class Pair(NamedTuple):
    left: Any
    right: Any = 3

    def total(self) -> Any:
        return self.left + self.right


def test_named_tuples() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        p = Point(x, 2)
        a, b = p
        q = p._replace(y=5)
        pair = Pair(x)
        values, indices = torch.max(x, dim=1)
        top = torch.topk(x, 2)
        return p, a + b, q.y, p.x + p[1], pair.total(), pair, values, indices, top.values, isinstance(p, tuple)

    check(fn, X)


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Number(enum.IntEnum):
    ONE = 1


def test_enums() -> None:
    def fn(x: torch.Tensor, color: Color) -> tuple[object, ...]:
        if color is Color.RED:
            x = x + 1
        return (
            x * Number.ONE,
            color.name,
            color.value,
            Color("b"),
            Color["RED"],
            color == Color.BLUE,
            len(Color),
            [c for c in Color],
        )

    check(fn, X, Color.RED)


class Base:
    scale = 3

    def __init__(self, n: int) -> None:
        self.n = n
        self._hidden = None

    @property
    def double(self) -> int:
        return self.n * 2

    @double.setter
    def double(self, value: int) -> None:
        self.n = value // 2

    @classmethod
    def make(cls, n: int) -> Base:
        return cls(n)

    @staticmethod
    def plus(a: Any, b: Any) -> Any:
        return a + b

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.n

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.apply(x)

    def __add__(self, other: Any) -> Any:
        return Base(self.n + (other.n if isinstance(other, Base) else other))

    __radd__ = __add__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Base) and self.n == other.n

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        if i >= self.n:
            raise IndexError
        return i * 10

    def __contains__(self, item: object) -> bool:
        return item == 42

    def __bool__(self) -> bool:
        return self.n != 0


class Derived(Base):
    def __init__(self, n: int, extra: Any) -> None:
        super().__init__(n)
        self.extra = extra

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return super().apply(x) + self.extra

    def __getattr__(self, name: str) -> str:
        if name.startswith("dyn_"):
            return name[4:]
        raise AttributeError(name)


def test_classes() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        d = Derived(2, x)
        d.double = 8
        made = Base.make(5)
        return (
            d(x), d.double, d.scale, made.n, Base.plus(x, 1), (made + d).n, (1 + made).n, made == Base(5), len(d),
            list(made)[:2], 42 in made, bool(Base(0)), d.dyn_name, hasattr(d, "zip"), getattr(d, "zip", 1), d,
            isinstance(d, Base), type(d) is Derived, issubclass(Derived, Base), d.__class__.__name__,
        )  # fmt: skip

    check(fn, X)


def test_existing_objects_are_read_and_changed() -> None:
    def fn(x: torch.Tensor, obj: Base) -> torch.Tensor:
        obj.n += 1
        obj.fresh = x + obj.n  # type: ignore[attr-defined]
        return obj(x)

    check(fn, X, Base(2), graphs=None)


@dataclasses.dataclass
class Config:
    size: int = 2
    items: list[int] = dataclasses.field(default_factory=list)
    tensor: Any = None

    def __post_init__(self) -> None:
        self.items.append(self.size)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: float = 2.0


def test_dataclasses() -> None:
    def fn(x: torch.Tensor, given: Config) -> tuple[object, ...]:
        made = Config(3, tensor=x + given.size)
        frozen = Frozen(1)
        return made, frozen, frozen.a + frozen.b, [f.name for f in dataclasses.fields(made)], Frozen(1) == frozen

    check(fn, X, Config(4))


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a: Any) -> None:
        self.a = a


class Meta(type):
    def __call__(cls, *args: Any) -> Any:
        made = super().__call__(*args)
        made.tagged = True
        return made


class Tagged(metaclass=Meta):
    def __init__(self, x: Any) -> None:
        self.x = x


class Cached:
    def __init__(self, n: int) -> None:
        self.n = n

    @functools.cached_property
    def big(self) -> int:
        return self.n * 100


class ListLike(list):  # type: ignore[type-arg]
    def second(self) -> Any:
        return self[1]


class DictLike(OrderedDict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


def test_special_classes() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        s = Slotted(x)
        s.a = s.a + 1
        t = Tagged(x)
        c = Cached(2)
        items = ListLike([x, x * 2])
        items.append(3)
        d = DictLike()
        d["k"] = x
        return s.a, t.tagged, c.big + c.big, items.second(), len(items), d.k + d["k"], list(d)

    check(fn, X)


def test_functions() -> None:
    def twice(fn: Any) -> Any:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs) * 2

        return wrapper

    @twice
    def plus(x: torch.Tensor, n: int = 1) -> torch.Tensor:
        return x + n

    def fn(x: torch.Tensor) -> tuple[object, ...]:
        part = functools.partial(plus, n=4)
        total = functools.reduce(operator.add, [x, x, 1])
        pick = operator.itemgetter(1)
        return part(x), total, (lambda y: y - 1)(x), pick([1, 2]), plus.__name__, list(map(plus, [x])), part.keywords

    check(fn, X)


@functools.lru_cache
def table(n: int) -> int:
    return n * n


@functools.singledispatch
def kind(value: object) -> str:
    return "object"


@kind.register
def _(value: int) -> str:
    return "int"


def test_cached_functions() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        return x * table(3), kind(3), kind("s")

    check(fn, X)


def test_iterators() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        pairs = list(zip(x, range(5)))
        flat = list(itertools.chain([1], (2, 3)))
        rest = [i for i in itertools.islice(itertools.count(5), 3)]
        odd = list(filter(lambda n: n % 2, flat))
        backwards = list(reversed(flat))
        sums = list(itertools.accumulate(flat))
        both = list(itertools.product([1, 2], "ab"))
        steps = [a + b for a, b in itertools.pairwise([1, 2, 3])]
        it = iter(flat)
        first = next(it)
        return (
            pairs,
            flat,
            rest,
            odd,
            backwards,
            sums,
            both,
            steps,
            first,
            list(it),
            any(flat),
            all(flat),
            max(flat),
            min(3, 1),
            sum(flat),
        )

    check(fn, X)


def test_numbers_and_text() -> None:
    def fn(x: torch.Tensor, n: int) -> tuple[object, ...]:
        return (
            x * math.sqrt(n) + math.pi, abs(-n), divmod(n, 3), round(2.567, 2), int("7"), float(n), str(n), n**2, n // 2,
            -n % 3, 1 << n, complex(1, n), "a,b".split(","), "x".join(["1", "2"]), "abc".upper().startswith("A"),
            b"ab" + b"c", bool(n), hex(n), ord("a"), isinstance(n, (int, str)),
        )  # fmt: skip

    check(fn, X, 5)


def test_copies() -> None:
    def fn(x: torch.Tensor, items: list[Any]) -> tuple[object, ...]:
        shallow = copy.copy(items)
        deep = copy.deepcopy({"a": [1, (2, [3])]})
        shallow.append(x + 1)
        return shallow, deep, items

    check(fn, X, [1, [2]])


def test_aliases_are_kept() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        inner = [x + 1]
        outer = {"a": inner, "b": inner}
        loop: list[Any] = [1]
        loop.append(loop)
        return outer, inner, x, loop

    outer, inner, same, loop = Compiled(fn)(X)
    assert outer["a"] is outer["b"] is inner
    assert same is X
    assert loop[1] is loop


def test_mutation_of_arguments_is_replayed() -> None:
    def fn(x: torch.Tensor, items: list[Any], table: dict[str, Any], members: set[int]) -> torch.Tensor:
        items.append(x + 1)
        items[0] = table["k"]
        table["new"] = items
        del table["k"]
        members.add(5)
        return x * 2

    compiled = check(fn, X, [0], {"k": 1}, {1}, graphs=None)
    items: list[Any] = [0]
    members: dict[str, Any] = {"k": 1}
    compiled(X, items, members, {1})
    assert members["new"] is items


def test_values_read_before_a_change_are_kept() -> None:
    def fn(x: torch.Tensor, obj: Any) -> tuple[object, ...]:
        before = obj.value
        obj.value = x + 1
        obj.other, obj.value = obj.value, before
        return before, x * 2

    class Thing:
        value = 7

    thing = Thing()
    thing.value = "first"  # type: ignore[assignment]
    before, _ = Compiled(fn)(X, thing)
    assert before == "first"
    assert thing.value == "first"
    assert torch.equal(thing.other, X + 1)  # type: ignore[attr-defined]


def test_in_place_and_views() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[object, ...]:
        y.add_(1)
        view = y[0]
        view.mul_(2)
        z = torch.empty_like(x)
        torch.add(x, 1, out=z)
        x += 1
        return y, view, z, x, y.add_(0) is y

    check(fn, X, X.clone())


@pytest.mark.parametrize(
    "value", [1, 2.5, True, None, "s", (1, 2), torch.float32, Ellipsis, 1 + 2j, b"x", slice(1, 2), range(3)]
)
def test_constants_as_arguments(value: object) -> None:
    def fn(x: torch.Tensor, v: object) -> tuple[object, ...]:
        return x + 1, v, v == 1, v is None, isinstance(v, tuple)

    check(fn, X, value)


def test_unused_arguments_are_not_guarded() -> None:
    def fn(x: torch.Tensor, unused: Any, passed: Any) -> tuple[object, ...]:
        return x + 1, passed

    compiled = Compiled(fn)
    for i in range(4):
        compiled(X, i, [i])
    assert len(compiled.graphs) == 1
    assert compiled.frames[0].guards == ("x: f32[2, 3] cpu",)


def test_metadata_of_tensors() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        b, c = x.shape
        return (
            x.view(c, b), x.size(), x.size(0), x.dim(), x.ndim, x.numel(), x.dtype, x.device, x.is_floating_point(),
            x.stride(), x.is_contiguous(), x.shape[-1] * 2, x.shape.numel(), x.T, x.requires_grad, len(x),
            torch.is_tensor(x), torch.finfo(x.dtype).max, x.to(torch.int64), x.new_zeros(2), x.element_size(),
            torch.zeros(x.shape[0], dtype=x.dtype), x.type(), (x.shape[0], *x.shape[1:]), tuple(x.shape) == (2, 3),
        )  # fmt: skip

    check(fn, X)


def test_grad_modes() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        with torch.no_grad():
            y = x * 2
            inside = torch.is_grad_enabled()
        z = x * 3
        with torch.set_grad_enabled(False):
            w = x * 4
        return y, z, w, inside, torch.is_grad_enabled()

    @torch.no_grad()
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = X.clone().requires_grad_()
    check(fn, x)
    check(decorated, x)
    check(lambda x: decorated(x) + x, x)


def test_counter_and_compilation_state() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        if torch.compiler.is_compiling() and torch.compiler.is_dynamo_compiling():
            x = x * 0
        if torch.jit.is_scripting() or torch.jit.is_tracing():
            x = x + 100
        return (x,)

    assert torch.equal(Compiled(fn)(X)[0], X * 0)
    assert Counter("aab")["a"] == 2


def test_aliases_at_a_later_call_are_seen() -> None:
    def change(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    compiled = Compiled(change)
    assert torch.equal(compiled(X.clone(), X), X * 2)
    both = X.clone()
    assert torch.equal(compiled(both, both), (X + 1) * 2)
    base = X.clone()
    assert torch.equal(compiled(base, base[0]), (X[0] + 1) * 2)

    def append(x: torch.Tensor, one: list[int], other: list[int]) -> tuple[torch.Tensor, int]:
        one.append(1)
        return x + 1, len(other)

    compiled = Compiled(append)
    assert compiled(X, [1], [1])[1] == 1
    same = [1]
    assert compiled(X, same, same)[1] == 2

    def compare(x: torch.Tensor, one: object, other: object) -> torch.Tensor:
        return x + 1 if one is other else x - 1

    compiled = Compiled(compare)
    assert torch.equal(compiled(X, same, [1]), X - 1)
    assert torch.equal(compiled(X, same, same), X + 1)
    assert torch.equal(compiled(X, X, X), X + 1)
    assert torch.equal(compiled(X, X, X.clone()), X - 1)
