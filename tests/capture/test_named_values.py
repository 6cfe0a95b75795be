"""Every kind of value that capture promises, one program each: numbers, text, containers, iterators, functools."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import math
import operator
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any, NamedTuple

import pytest
import torch
from naming import Table, X, check_row

TABLE = Table()
row = TABLE.row

Pair = namedtuple("Pair", "left right", defaults=(7,))


class Typed(NamedTuple):
    """A named tuple with a method."""

    value: Any
    scale: int = 2

    def scaled(self) -> Any:
        return self.value * self.scale


class Color(enum.Enum):
    RED = 1
    BLUE = "b"

    @property
    def text(self) -> str:
        return f"{self.name}:{self.value}"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


class Names(str, enum.Enum):  # noqa: UP042  as users write it
    ONE = "one"


# -- numbers and text ---------------------------------------------------------------------


@row(X, 7, -2.5, 1 + 2j, True)
def numbers(x, i, f, c, b):
    return (
        x + i * f,
        divmod(i, 3), divmod(f, 2), pow(i, 2, 5), pow(2, -1), abs(c), abs(f), round(f), round(f, 1), c.real, c.imag,
        c.conjugate(), i.bit_length(), f.is_integer(), f.as_integer_ratio(), int("12", 3), int(f), float("1e3"),
        complex(1, 2), bool(i), b + 1, ~i, -f, +b, i & 3, i | 8, i ^ 1, i << 2, i >> 1, i // 2, i % 4, f // 2, f % 2,
        i / 2, i**-1, hash(i), bin(i), hex(i), oct(i), (5).to_bytes(2, "big"), int.from_bytes(b"\0\1", "big"),
        float.fromhex("0x1p3"), f.hex(), max(i, f), min(i, f, key=abs), sum([1, 2], 3), i.real, (i).__add__(2),
    )  # fmt: skip


@row()
def number_errors(x):
    texts = []
    for call in (
        lambda: 1 / 0, lambda: 1 % 0, lambda: int("x"), lambda: [][1], lambda: {}["k"], lambda: (1,)[2],
        lambda: "a" + 1, lambda: 1 + "a", lambda: None + 1, lambda: len(5), lambda: iter(3), lambda: max([]),
        lambda: "abc".index("z"), lambda: [1].remove(2), lambda: [].pop(), lambda: {}.popitem(), lambda: math.sqrt(-1),
        lambda: float("y"), lambda: [1, 2][1.5], lambda: sum(["a"], ""), lambda: "a" < 1, lambda: next(iter(())),
        lambda: int([]), lambda: chr(-1), lambda: ord("ab"), lambda: {[]: 1}, lambda: hash([]), lambda: None.missing,
        lambda: (1).missing, lambda: "s".missing, lambda: [].missing, lambda: 5(), lambda: None[0], lambda: {}.missing,
    ):  # fmt: skip
        try:
            call()
            texts.append("no error")
        except Exception as error:
            texts.append((type(error).__name__, str(error)))
    return x + 1, texts


@row(X, "Hello, Wörld", b"bytes")
def text(x, s, b):
    return (
        x + len(s),
        s.upper(), s.lower(), s.title(), s.split(", "), s.partition(","), s.rpartition("o"), s.replace("l", "L", 1),
        s.find("o"), s.count("l"), s.startswith(("He", "x")), s.endswith("d"), s.strip("Hd"), s.lstrip("H"),
        s.center(20, "*"), s.zfill(15), s.isalpha(), s.encode("utf-8"), b.decode(), b.hex(), b[0], b[1:3], s[::-1],
        s.join(["a", "b"]), " ".join(c for c in s if c != "l"), s.splitlines(), s.casefold(), s.swapcase(),
        s.removeprefix("He"), s.expandtabs(), s.translate({ord("l"): "1"}), s * 2, s + "!", "l" in s, s > "A", ord(s[0]),
        chr(65), "%05.2f" % 3.14159, "{:>5}".format(s[:2]), s.format(), sorted(s)[:3], list(enumerate(s))[:2],
        bytes([1, 2]), s.isidentifier(), hash("") == hash(""), repr(s), ascii(s), str(b),
    )  # fmt: skip


@row()
def none_ellipsis_and_not_implemented(x):
    return x[..., None], Ellipsis is ..., None is None, NotImplemented is not None, type(None).__name__, bool(None)


@row(X, Color.RED, Level.HIGH, Flags.A | Flags.B, Names.ONE)
def enums(x, color, level, flags, name):
    return (
        x * level + color.value,
        color is Color.RED, Color("b").text, Color["BLUE"].name, [c.name for c in Color], len(Color), level > Level.LOW,
        level + 1, Flags.A in flags, bool(flags & Flags.B), name == "one", f"{level:d}", isinstance(level, int),
        color in (Color.RED,), {Color.RED: 1}[color], color.text, str(color), repr(color), Level(1).name, name.upper(),
        Color.__members__["RED"].value, hash(color) == hash(Color.RED), Level.HIGH == 2, flags.value, ~Flags.A,
    )  # fmt: skip


@row()
def enum_errors(x):
    try:
        Color(5)
    except ValueError as error:
        return x + 1, str(error)


@row(X, slice(0, 2), range(1, 9, 3))
def slices_and_ranges(x, s, r):
    return (
        x[:, s], s.start, s.stop, s.step, s.indices(5), s == slice(0, 2), list(r), r[1], r[-1], r[:2], len(r), 4 in r,
        r.index(4), r.start, r.stop, r.step, reversed(range(3)).__next__(), r == range(1, 9, 3), bool(range(0)),
        [i for i in range(5, 0, -2)], r.count(4), sum(r), max(r), tuple(range(2)) + (1,),
    )  # fmt: skip


# -- containers -----------------------------------------------------------------------------


@row(X, (1, 2, (3,)), Pair(1, 2), Typed(3))
def tuples(x, t, p, n):
    left, right = p
    return (
        x + left, t + (4,), t * 2, t[1:], t.index(2), t.count(1), 2 in t, len(t), t < (2,), hash(t) == hash((1, 2, (3,))),
        p._replace(left=5), p._asdict(), p._fields, p == (1, 2), Pair(9), n.scaled(), n._replace(value=x).scaled(),
        Pair._make([1, 2]), Pair._field_defaults, type(p).__name__, isinstance(p, tuple), repr(p), n.scale, p[0], [*p],
        min(t[:2]), sorted(t[:2], reverse=True), tuple(x)[0], tuple(i for i in t[:2]), Typed(value=x, scale=3),
    )  # fmt: skip


@row(X, [3, 1, 2])
def lists(x, a):
    a.append(4)
    a.extend((5, 6))
    a.insert(1, x)
    y = a.pop(1)
    a.remove(5)
    a.sort(key=lambda v: -v)
    a.reverse()
    b = a.copy()
    b += [1]
    b.sort()
    del b[0]
    a[0], a[-1] = a[-1], a[0]
    a[1:1] = [8, 9]
    c = [0] * 3
    c.clear()
    return (
        y + a.index(4),
        a,
        b,
        c,
        a == b,
        a < b,
        a.count(1),
        3 in a,
        [1, [2]] + [3],
        list("ab"),
        a[::-1],
        len(a),
        b[-2:],
    )


@row(X, {"b": 1, "a": 2})
def dicts(x, d):
    d["c"] = x
    d.setdefault("e", []).append(1)
    d.update({"f": 1}, g=2)
    d |= {"h": 3}
    popped = d.pop("a"), d.pop("zz", None), d.pop("g")
    last = d.popitem()
    keys, values, items = d.keys(), d.values(), d.items()
    d["late"] = 0
    del d["f"]
    views = (
        list(keys),
        len(values),
        [k for k, _ in items],
        "late" in keys,
        keys & {"b"},
        keys | {"q"} == set(),
        ("b", 1) in items,
    )
    return (
        d["c"] * 2, popped, last, views, d.get("no"), d.get("b", 5), "b" in d, len(d), list(reversed(d)),
        dict.fromkeys("ab", 0), dict(zip("ab", [1, 2])), dict([("k", 1)], z=2), {**d, "b": 0}["b"], d == dict(d),
        {1: 2} | {3: 4}, d.copy() is d, sorted(d), max(d), {(1, 2): 3}[1, 2], bool({}), {True: 1}[1], {1.0: "f"}[1],
    )  # fmt: skip


@row(X, OrderedDict(a=1, b=2), defaultdict(list, k=[1]), Counter("abca"))
def mappings_of_collections(x, o, d, c):
    o.move_to_end("a")
    o["z"] = 3
    o.move_to_end("z", last=False)
    d["new"].append(x)
    d["k"].append(2)
    c.update("aa")
    c.subtract(b=1)
    c["q"] += 1
    first = o.popitem(last=False)
    return (
        d["new"][0] + 1, list(o), first, o == OrderedDict(b=2, a=1), dict(d), d.default_factory is list, c.most_common(1),
        c["missing"], list(c.elements()), c.total(), Counter(a=1) + Counter(a=2), Counter([1, 1]) - Counter([1]),
        Counter("ab") & Counter("b"), OrderedDict.fromkeys("ab"), repr(o), type(defaultdict(int)), c == Counter(c),
        collections.ChainMap({"a": 1}, {"b": 2})["b"],
    )  # fmt: skip


@row(X, deque([1, 2, 3], maxlen=4))
def deques(x, q):
    q.append(4)
    q.append(5)
    q.appendleft(0)
    q.rotate(1)
    q.extend([7])
    q.extendleft([8])
    left, right = q.popleft(), q.pop()
    q.insert(1, 9)
    q.remove(9)
    return (
        x + left,
        right,
        list(q),
        q.maxlen,
        len(q),
        q[0],
        2 in q,
        q.count(1),
        q.index(q[1]),
        list(reversed(q)),
        deque("ab") == deque("ab"),
        q.copy(),
    )


@row(X, {1, 2, 3}, frozenset((2, 9)))
def sets(x, s, f):
    s.add(4)
    s.discard(1)
    s.discard(77)
    s |= {5}
    s &= {2, 3, 4, 5}
    s -= {3}
    s ^= {5, 6}
    popped = {7}.pop()
    s.update([8], (9,))
    return (
        x + popped, s, s | f, s & f, s - f, s ^ f, s.isdisjoint({100}), {2} <= s, s.issuperset([2]), s == set(s),
        f.union([1]), f.intersection([2]), f.difference([2]), f.symmetric_difference([1]), 2 in f, len(s), sorted(s),
        frozenset([1]) in {frozenset([1])}, {frozenset([1]): 2}[frozenset([1])], hash(f) == hash(frozenset((9, 2))),
        {n % 2 for n in range(5)}, type(f | {1}).__name__, s.copy() is s, set("aab") == {"a", "b"}, bool(set()),
    )  # fmt: skip


@row(X, [1, 2])
def container_identity_is_kept(x, a):
    b = a
    b.append(3)
    t = (a, b)
    d = {"a": a}
    d["a"].append(4)
    new = [x]
    also = new
    also.append(a)
    return x + 1, t, d, new, also, t[0] is t[1], a is d["a"], new is also


@row()
def container_that_holds_itself(x):
    a = []
    a.append(a)
    mine = {}
    mine["me"] = mine
    return x + len(a[0][0]), a[0] is a, mine["me"]["me"] is mine


# -- iterators --------------------------------------------------------------------------------


@row()
def builtin_iterators(x):
    return (
        [r + n for n, r in enumerate(x, 5)],
        list(zip([1, 2], "ab", strict=True)), list(zip(range(5), "ab")), list(map(lambda a, b: a * b, [1, 2], [3, 4])),
        list(filter(None, [0, 1, "", 2])), list(filter(lambda v: v > 1, [1, 2, 3])), list(reversed([1, 2])),
        [*reversed("ab")], sorted([3, 1, 2], key=lambda v: -v), sorted("ba", reverse=True), any([0, 1]), all([]),
        sum(map(len, ["a", "bb"])), min([3, 1], default=0), max([], default=9), max("a", "bb", key=len), next(iter([]), 4),
        list(iter([1, 2].pop, 1)), dict(enumerate("ab")), isinstance(iter([]), collections.abc.Iterator),
        next(zip([1], [2])), list(map(str, range(3))), tuple(map(abs, (-1, 2))), [a for a, *_ in zip("ab", "cd")],
    )  # fmt: skip


@row()
def iterator_errors(x):
    texts = []
    for call in (
        lambda: list(zip([1], [1, 2], strict=True)), lambda: next(iter([])), lambda: list(map(lambda a: 1 / a, [0])),
        lambda: min([]), lambda: list(zip(1)), lambda: list(iter(5)), lambda: sorted([1, "a"]),
    ):  # fmt: skip
        try:
            call()
        except Exception as error:
            texts.append((type(error).__name__, str(error)))
    return x + 1, texts


@row()
def iterators_that_leave(x):
    a, b, c = iter([1, 2, 3]), zip("ab", [1, 2]), enumerate("xy")
    next(a), next(b)
    return x + next(c)[0], list(a), list(b), list(c), next(a, "end")


@row(graphs=None, breaks=None)
def iterators_returned(x):
    a, b, c, d = iter([1, 2, 3]), map(lambda v: v + 1, [1, 2]), reversed([1, 2]), iter({"a": 1}.items())
    next(a), next(b), next(c)
    return x + 1, a.__next__(), [*a], [*b], [*c], [*d]


@row()
def all_of_itertools(x):
    it = itertools
    a, b = it.tee([1, 2, 3])
    return (
        [r * n for r, n in zip(x, it.count(1))],
        list(it.chain([1], "a")), list(it.chain.from_iterable([[1], [2]])), list(it.islice(it.cycle("ab"), 5)),
        list(it.repeat(1, 2)), list(it.accumulate([1, 2, 3])), list(it.accumulate([1, 2, 3], operator.mul, initial=2)),
        list(it.compress("abc", [1, 0, 1])), list(it.dropwhile(lambda v: v < 2, [1, 2, 1])), list(it.pairwise("abc")),
        list(it.takewhile(lambda v: v < 2, [1, 2, 1])), list(it.filterfalse(None, [0, 1])), list(it.starmap(pow, [(2, 3)])),
        list(it.zip_longest([1], [1, 2], fillvalue=0)), list(it.product("ab", repeat=2)), list(it.permutations([1, 2, 3], 2)),
        list(it.combinations("abc", 2)), list(it.combinations_with_replacement("ab", 2)), list(a), list(b),
        [(k, list(g)) for k, g in it.groupby("aabc")], list(it.islice(range(9), 1, 8, 3)), next(it.count(0.5, 0.5)),
        [(k, [v for _, v in g]) for k, g in it.groupby([(1, "a"), (1, "b"), (2, "c")], key=operator.itemgetter(0))],
    )  # fmt: skip


# -- functools, operator, math, random -------------------------------------------------------


@functools.lru_cache(maxsize=None)  # noqa: UP033
def cached(n):
    return n * 2


@functools.cache
def table_of(n):
    return {n: n}


@functools.singledispatch
def describe(value):
    return "object"


@describe.register
def _(value: int):
    return f"int {value}"


@describe.register(list)
@describe.register(tuple)
def _(value):
    return f"sequence of {len(value)}"


@describe.register
def _(value: torch.Tensor):
    return value + 100


class Dispatching:
    @functools.singledispatchmethod
    def kind(self, value):
        return "other"

    @kind.register
    def _(self, value: int):
        return "int"

    @functools.partialmethod
    def unused(self):
        return None

    def add(self, a, b=1):
        return a + b

    add_ten = functools.partialmethod(add, b=10)

    @functools.cached_property
    def costly(self):
        self.computed = getattr(self, "computed", 0) + 1
        return 5


@functools.total_ordering
class Ordered:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n

    def __lt__(self, other):
        return self.n < other.n

    __hash__ = None


@row()
def functools_functions(x):
    add = functools.partial(operator.add, x)
    nested = functools.partial(functools.partial(kinds, 1, c=2), 5, c=3)
    return (
        add(1), functools.reduce(operator.mul, [1, 2, 3]), functools.reduce(lambda a, b: a + b, x, 0), nested(),
        add.func is operator.add, nested.args, nested.keywords, cached(4), table_of(3), functools.wraps(kinds)(lambda: 0).__name__,
        sorted([3, 1], key=functools.cmp_to_key(lambda a, b: b - a)), cached.__wrapped__(1), functools.partial(kinds, b=1)(2),
    )  # fmt: skip


def kinds(a, b=0, c=0):
    return a, b, c


@row()
def singledispatch(x):
    return (
        describe(x),
        describe(3),
        describe([1]),
        describe((1, 2)),
        describe("s"),
    )


@row(graphs=None, breaks=None)
def singledispatch_methods(x):
    return x + 1, Dispatching().kind(1), Dispatching().kind("s")


@row(X, Dispatching())
def functools_methods(x, d):
    return d.add_ten(x), d.costly + d.costly, d.computed


@row()
def total_ordering(x):
    return x + 1, Ordered(1) <= Ordered(2), Ordered(1) >= Ordered(2), Ordered(2) > Ordered(1), Ordered(1) != Ordered(1)


@row()
def all_of_operator(x):
    o = operator
    items = [1, 2, 3]
    o.setitem(items, 0, 9)
    o.delitem(items, 1)
    items = o.iadd(items, [4])
    return (
        o.add(x, 1), o.matmul(x, x.mT), o.itemgetter(1)(x), o.itemgetter(0, 2)(items), o.attrgetter("shape")(x),
        o.attrgetter("a.b", "c")(Namespace()), o.methodcaller("sum", dim=0)(x), o.truth(items), o.not_(1), o.contains(items, 9),
        o.index(3), o.concat([1], [2]), o.countOf([1, 1], 1), o.indexOf([1, 2], 2), o.length_hint([1, 2]), o.is_(items, items),
        o.lt(1, 2), o.mod(7, 3), o.neg(x), o.pow(x, 2), o.floordiv(7, 2), o.truediv(x, 2), o.getitem(items, 0), o.inv(5),
        o.ixor(5, 1), o.and_(True, False), o.eq(1, 1), items, o.sub(x, x), o.call(len, items), o.abs(-1), o.pos(1),
    )  # fmt: skip


class Namespace:
    c = 3

    class a:
        b = 2


@row()
def all_of_math(x):
    m = math
    return (
        x * m.pi + m.e + m.tau, m.sqrt(4), m.floor(2.5), m.ceil(2.5), m.log(8, 2), m.log2(8), m.exp(0), m.gcd(4, 6),
        m.lcm(4, 6), m.prod([1, 2, 3]), m.fsum([0.1] * 10), m.hypot(3, 4), m.isclose(1, 1 + 1e-12), m.isinf(m.inf),
        m.isnan(m.nan), m.copysign(1, -2), m.factorial(4), m.comb(4, 2), m.trunc(2.7), m.modf(2.5), m.frexp(8), m.degrees(m.pi),
        m.atan2(1, 1), m.isqrt(10), m.dist((0, 0), (3, 4)), m.fmod(7, 3), m.ldexp(1, 3), m.erf(0), m.perm(3),
    )  # fmt: skip


@row(graphs=None, breaks=None)
def random_numbers(x):
    import random

    random.seed(5)
    made = random.Random(3)
    a, b, c = random.random(), random.randint(1, 9), random.choice([1, 2, 3])
    items = [1, 2, 3, 4]
    random.shuffle(items)
    return x * a + b, c, items, random.uniform(0, 1), random.sample(range(9), 3), made.random(), random.gauss(0, 1)


@row()
def views_of_dicts_beside_other_iterables(x):
    a, b = {"a": 1, "b": 2}, {"b": 3}
    return a.keys() - b, a.keys() & ["a"], a.keys() | ("c",), a.keys() ^ b.keys(), a.items() - [("a", 1)], x + len(a)


@row()
def builtin_functions(x):
    return (
        x + len([1]), isinstance(x, torch.Tensor), isinstance(1, (int, str)), isinstance(1, int | str), issubclass(bool, int),
        callable(len), hasattr(x, "shape"), getattr(x, "missing", 3), type(x).__name__, hash((1, 2)),
        vars(Namespace)["c"], repr([1, "a"]), str({"a": 1}), format(3.14159, ".2f"), bytes([1]), bytes(2), bytes("a", "utf8"),
        ascii("é"), "abc".translate(str.maketrans("a", "b")), eval("1 + 2") if False else 3, isinstance(True, int), callable(3), abs(-2), bool([]),
    )  # fmt: skip


@pytest.mark.parametrize("program", TABLE.rows, ids=lambda program: program.name)
def test_value(program):
    check_row(program)
