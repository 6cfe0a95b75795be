"""Every statement of the language that capture promises, one program each.

PYTEST_DONT_REWRITE: the programs' own asserts stay as they are.
"""

from __future__ import annotations

import functools

import pytest
from naming import Table, check_row

TABLE = Table()
row = TABLE.row
COUNT = 0


# -- loops, comprehensions, generators ----------------------------------------------------


@row()
def while_else_break(x):
    n = 0
    while True:
        n += 1
        if n % 2:
            continue
        if n > 4:
            break
        x = x + n
    else:
        x = x * 0
    for _ in ():
        pass
    else:
        x = x - 1
    return x


@row()
def comprehensions(x):
    a = [row * n for n, row in enumerate(x) if n >= 0]
    b = {n: [m for m in range(n)] for n in range(3)}
    c = {len(r) for r in x}
    d = tuple(r + s for r in a for s in range(2) if s)
    return a, b, c, d


@row()
def comprehension_that_closes_over_its_variable(x):
    functions = [lambda y, n=n: y + n for n in range(3)]
    late = [lambda y: y * n for n in range(3)]  # noqa: B023
    return [f(x) for f in functions], [f(x) for f in late]


@row(graphs=None, breaks=None)
def comprehension_with_a_break(x):
    return [float(r.sum()) for r in x]


@row()
def generators_and_yield_from(x):
    def inner(n):
        for m in range(n):
            got = yield m
            if got is not None:
                yield got
        return n * 10

    def outer():
        result = yield from inner(2)
        yield result

    it = outer()
    found = [next(it), it.send(7), *it]
    return x + sum(found), found


@row()
def generator_throw_and_close(x):
    log = []

    def rows():
        try:
            while True:
                try:
                    yield x
                except ValueError as error:
                    log.append(str(error))
        finally:
            log.append("closed")

    it = rows()
    next(it)
    y = it.throw(ValueError("thrown"))
    it.close()
    return y + 1, log


@row()
def generator_expression_is_lazy(x):
    log = []
    it = (log.append(n) or x + n for n in range(3))
    first = next(it)
    return first, list(log), sum(it)


# -- functions ------------------------------------------------------------------------------


@row()
def closures_with_cells_written(x):
    count = 0

    def bump(by=1):
        nonlocal count
        count += by
        return count

    def outer():
        def inner():
            bump(10)
            return count

        return inner()

    bump()
    y = x + outer()
    return y, count


@row()
def global_statement(x):
    global COUNT
    COUNT = 5
    y = x + COUNT
    COUNT += 1
    del_me = COUNT
    COUNT = 0
    return y, del_me


@row()
def del_statements(x):
    data = {"a": 1, "b": 2}
    items = [1, 2, 3, 4]
    y = x + 1
    del data["a"], items[1:3]
    z = y
    del y
    try:
        y  # noqa: B018, F821
    except UnboundLocalError as error:
        return z, data, items, str(error)
    return z


def kinds_of_parameters(a, b=2, /, c=3, *rest, d, e=5, **more):
    return a + b * c + sum(rest) + d * e + sum(more.values()), sorted(more)


@row()
def calls_of_all_kinds(x):
    one = kinds_of_parameters(x, d=1)
    two = kinds_of_parameters(x, 1, 2, 3, 4, d=5, e=6, f=7, g=8)
    args, options = (1, 2), {"d": 3, "z": 1}
    three = kinds_of_parameters(x, *args, *[4], **options, **{"y": 2})
    four = dict(**options, q=1)
    return one, two, three, four


@row()
def wrong_calls_are_type_errors(x):
    texts = []
    for args, options in (((), {}), ((x, 1, 2), {}), ((x,), {"a": 1, "d": 2})):
        try:
            kinds_of_parameters(*args, **options)
        except TypeError as error:
            texts.append(str(error))
    return x + 1, texts


def two_required(a, b, c=1):
    return a


def keywords_required(*, a, b, c):
    return a


@row()
def texts_of_type_errors(x):
    texts = []
    for call in (
        lambda: two_required(),
        lambda: two_required(1, 2, 3, 4),
        lambda: two_required(1, b=2, z=3),
        lambda: two_required(1, 2, a=3),
        lambda: keywords_required(),
        lambda: keywords_required(a=1, b=2),
        lambda: keywords_required(1),
    ):
        try:
            call()
        except TypeError as error:
            texts.append(str(error))
    return x + 1, texts


@row()
def defaults_are_evaluated_once(x):
    def collect(item, into=[]):  # noqa: B006
        into.append(item)
        return into

    collect(1)
    return x + len(collect(2)), collect.__defaults__, collect(3)


@row()
def decorators(x):
    def twice(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(function(*args, **kwargs), **kwargs)

        return wrapper

    @twice
    def add(y, by=1):
        """Add."""
        return y + by

    return add(x, by=3), add.__name__, add.__doc__, add.__wrapped__(x)


@row()
def recursive_closure(x):
    def fact(n):
        return 1 if n < 2 else n * fact(n - 1)

    return x * fact(5)


@row()
def annotations_of_a_function_made_inside(x):
    def inner(a: int, b: "str" = "s") -> float:  # noqa: UP037
        return a

    return x + 1, sorted(inner.__annotations__), inner.__defaults__, inner.__kwdefaults__


# -- match, walrus, f-strings, assert, import -----------------------------------------------


class Point:
    __match_args__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


@row()
def match_of_every_pattern(x):
    found = []
    for subject in (
        1, "s", [1, 2, 3], (4,), {"k": 1, "z": 2}, Point(1, 2), Point(3, [4, 5]), None, True, 2.5, {"k": 2}, [], b"b",
    ):  # fmt: skip
        match subject:
            case True | None as constant:
                found.append(("constant", constant))
            case int(n) if n > 0:
                found.append(("int", n))
            case str() as text:
                found.append(("str", text))
            case [first, *rest]:
                found.append(("sequence", first, rest))
            case {"k": 1, **others}:
                found.append(("mapping", others))
            case Point(1, b=second):
                found.append(("point", second))
            case Point(a=a, b=[_, last]):
                found.append(("nested", a, last))
            case {"k": value}:
                found.append(("key", value))
            case float():
                found.append("float")
            case _:
                found.append("else")
    return x + len(found), found


@row()
def walrus_and_ternary(x):
    if (n := x.shape[0]) > 1 and (m := n * 2):
        x = x + n + m
    rows = [y for r in x if (y := r * 2) is not None]
    return x if n else None, rows, y


@row()
def starred_unpacking(x):
    first, *middle, last = range(5)
    (a, b), [c, *d] = (1, 2), "xyz"
    merged = [*middle, *d, *{"k": 1}]
    table = {**{"a": 1}, "b": 2, **{"a": 3}}
    r0, r1 = x
    p, (q, *_) = r0, r1
    return x + first + last, a, b, c, merged, table, p, q


@row()
def wrong_unpacking(x):
    texts = []
    for values in ((1,), (1, 2, 3), 5):
        try:
            a, b = values
        except (TypeError, ValueError) as error:
            texts.append(str(error))
    try:
        _a, _b, *_c = [1]
    except ValueError as error:
        texts.append(str(error))
    return x + 1, texts


@row()
def format_strings(x):
    n, name, ratio = 5, "né", 0.5
    width = 8
    return (
        x + 1,
        f"{n:>{width}}|{name!r}|{name!a}|{ratio:.2%}|{n=}|{{}}|{x.shape}|{x.dtype!s:>15}|{[n, {1: 2}]}|{None}|{n:#x}",
        "%s %d %-5s|" % (1, 2, "z"),
        "{0} {1:>3} {a!r}".format(1, 2, a="k"),
    )


@row(graphs=None, breaks=None)
def assertion_that_fails(x):
    y = x + 1
    assert y.shape[0] == 7, f"rows: {y.shape[0]}"
    return y


@row()
def assertions(x):
    assert x.dim() == 2
    assert x.shape == (2, 3), "shape"
    try:
        assert x.numel() == 1, "number"
    except AssertionError as error:
        return x + 1, str(error)


@row()
def imports_inside(x):
    import math
    import os.path as path
    from collections import OrderedDict as Ordered

    import torch.nn.functional as F
    from torch import nn

    made = Ordered(a=1)
    return F.relu(x) + math.pi, path.join("a", "b"), made, nn.Identity.__name__


@row()
def import_that_fails(x):
    try:
        import not_a_module_anywhere  # noqa: F401
    except ImportError as error:
        return x + 1, str(error), error.name


@row()
def chained_comparisons_and_bools(x):
    a, b = 1, 5
    return x + 1, a < 3 < b, a < b > 7, not a, a and b, 0 or b, None or a, a == 1 != b, a in (1, 2)


@row()
def slices_of_everything(x):
    items = list(range(10))
    items[2:4] = [0, 0, 0]
    items[::4] = [9] * len(items[::4])
    text = "abcdef"
    return x[:, 1:], x[..., 0], x[0, ::2], x[None], items[1:-1:2], text[::-1], (1, 2, 3)[:2], items[slice(1, 3)]


@row()
def augmented_assignments(x):
    n = 7
    n += 1
    n -= 2
    n *= 3
    n //= 2
    n **= 2
    n %= 50
    n <<= 2
    n >>= 1
    n |= 1
    n &= 0xFF
    n ^= 3
    r = 7 / 2
    r /= 2
    items = [1]
    same = items
    items += (2,)
    items *= 2
    y = x
    y = y + 0
    y += n
    y *= r
    y /= 2
    y -= 1
    y //= 3
    y **= 2
    y %= 5
    return y, n, r, same, items is same


@row()
def class_statement(x):
    class Local:
        scale = 2

        def apply(self, y):
            return y * self.scale + x

    return Local().apply(x + 1)


@row()
def class_statement_with_bases(x):
    class Base:
        def apply(self, y):
            return y + 1

    class Derived(Base):
        factor: int = 3

        def __init__(self):
            self.calls = []

        def apply(self, y):
            self.calls.append(len(self.calls))
            return super().apply(y) * self.factor

        @property
        def count(self):
            return len(self.calls)

    made = Derived()
    return made.apply(made.apply(x)), made.count, Derived.__name__, isinstance(made, Base)


@row()
def lambda_default_and_star(x):
    f = lambda *a, k=2, **o: (sum(a) * k, sorted(o.items()))  # noqa: E731
    return x + 1, f(1, 2), f(1, k=3, z=1)


@row()
def complex_conditions(x):
    return x + 1 if x.dim() == 2 and not x.requires_grad or x is None else x - 1


@row()
def many_locals_and_a_long_line(x):
    a = b = c = d = e = x
    a, b = b, a
    a, b, c = c, a, b
    return ((a + b) * (c - d) / (e + 1)) ** 2


@pytest.mark.parametrize("program", TABLE.rows, ids=lambda program: program.name)
def test_statement(program):
    check_row(program)
