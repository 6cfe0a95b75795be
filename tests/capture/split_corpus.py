"""Small functions that between them use every construct; each with argument lists, and some that make it raise.

`LOG` is where they report what happens; iterators, context managers and objects below take part in it.
"""

from __future__ import annotations

import contextlib

LOG: list[object] = []
COUNTER = 0


class Manager:
    def __init__(self, name, swallow=False):
        self.name, self.swallow = name, swallow

    def __enter__(self):
        LOG.append(("enter", self.name))
        return self.name

    def __exit__(self, kind, value, traceback):
        LOG.append(("exit", self.name, kind and kind.__name__))
        return self.swallow


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y

    def scaled(self, factor, *, offset=0):
        return Point(self.x * factor + offset, self.y * factor + offset)

    def __repr__(self):
        return f"Point({self.x}, {self.y})"


class Base:
    def area(self, scale):
        return 10 * scale


class Child(Base):
    def __repr__(self):
        return "Child()"

    def area(self, scale):
        first = super().area(scale)
        second = super().area(scale + 1) if scale else 0
        return first + second + self.bonus()

    def bonus(self):
        return 1

    def captured(self, scale):
        inner = super().area(scale)
        get = lambda: self
        return inner + get().bonus() + super().area(2)

    def plain_super(self, scale):
        parent = super()
        return parent.area(scale) + scale


def watched(items):
    try:
        for item in items:
            yield item
    finally:
        LOG.append("closed")


def straight(a, b=2):
    c = a + b
    d = c * a - b
    return [c, d, -d, not d, ~d]


def branches(a):
    if a > 3:
        b = "big"
    elif a == 3:
        b = "three"
    else:
        b = "small" if a > 0 else "negative"
    return b + str(a)


def for_loop(n):
    total = []
    for i in range(n):
        if i == 2:
            continue
        if i == 5:
            break
        total.append(i * 2)
    else:
        total.append("else")
    return total


def while_loop(n):
    out = []
    while n > 0:
        n -= 1
        if n % 3 == 0:
            continue
        out.append(n)
        if n == 7:
            break
    else:
        out.append("done")
    return out, n


def nested_loops(n):
    out = []
    for i in range(n):
        for j in watched(range(n)):
            if j > i:
                break
            out.append((i, j))
        LOG.append(i)
    return out


def try_except(x):
    try:
        y = 10 // x
        LOG.append(y)
    except ZeroDivisionError as error:
        LOG.append(str(error))
        y = -1
    except (TypeError, ValueError):
        return "type"
    else:
        y += 100
    return y


def try_finally(x):
    LOG.append("start")
    try:
        y = 10 // x
        if y > 4:
            return "early"
    finally:
        LOG.append("finally")
        x = [x]
    return y, x


def nested_try(x):
    try:
        try:
            value = {"a": 1}[x]
        except KeyError as error:
            raise ValueError("inner") from error
        finally:
            LOG.append("inner finally")
    except ValueError as error:
        return repr(error), repr(error.__cause__), error.__context__ is error.__cause__
    return value


def reraise(x):
    try:
        return 1 // x
    except ZeroDivisionError:
        LOG.append("again")
        raise


def raise_in_handler(x):
    try:
        1 // x
    except ZeroDivisionError:
        [][0]
    return x


def context_is_clean(x):
    try:
        1 // x
    except ZeroDivisionError:
        LOG.append("handled")
    try:
        raise KeyError("later")
    except KeyError as error:
        return repr(error.__context__)


def with_block(x):
    with Manager("a") as name:
        LOG.append(name)
        y = 10 // x
    return y


def with_swallow(x):
    y = 0
    with Manager("outer"), Manager("inner", swallow=True) as name:
        y = 1
        y = 10 // x
        LOG.append((name, y))
    return y


def with_return(x):
    with Manager("a"):
        if x:
            return x + 1
        LOG.append("no")
    return "end"


def with_loop(n):
    out = []
    for i in range(n):
        with Manager(i, swallow=True):
            if i == 1:
                continue
            if i == 4:
                break
            out.append(6 // (i - 2))
    return out


def loop_in_try(n):
    i = None
    try:
        for i in range(n):
            LOG.append(12 // (3 - i))
    except ZeroDivisionError:
        return "stopped", i
    return "through", i


def try_in_loop(n):
    out = []
    for i in range(n):
        try:
            out.append(12 // (2 - i))
        except ZeroDivisionError:
            out.append("zero")
            continue
        finally:
            LOG.append(i)
        out.append(i)
    return out


def comprehensions(n):
    a = [i * 2 for i in range(n) if i % 2]
    b = {i: str(i) for i in a}
    c = {i % 3 for i in range(n)}
    d = list(i + n for i in a)
    return a, b, sorted(c), d, [(i, j) for i in range(2) for j in range(i)]


def comprehension_shadows(i, n):
    before = i
    squares = [i * i for i in range(n)]
    return before, i, squares


def comprehension_with_cells(n):
    x = "outer"
    functions = [lambda: x for x in range(n)]
    return x, [f() for f in functions]


def comprehension_raises(items):
    try:
        return [1 // i for i in items]
    except ZeroDivisionError:
        return "zero"


def matching(value):
    match value:
        case 0 | 1:
            return "small"
        case [x, y, *rest]:
            return x, y, rest
        case {"key": k, **others}:
            return k, others
        case Point(x, y) if x > y:
            return "point", x, y
        case str() as text:
            return text + "!"
        case _:
            return None


def closure_read(a):
    b = a + 1

    def inner(c):
        return a + b + c

    b += 10
    return inner(1), [inner(i) for i in range(2)]


def closure_write(a):
    count = 0

    def bump(by=1):
        nonlocal count
        count += by
        return count

    bump()
    first = count
    bump(a)
    del a
    return first, count, bump()


def cell_argument(a):
    get = lambda: a
    a = a + 1
    LOG.append(get())
    a *= 2
    return get()


def starred(*args, key=1, **kwargs):
    first, *middle, last = args
    merged = {**kwargs, "key": key}
    return max(*args, key=lambda v: v), first, middle, last, [*args, *middle], dict(**merged)


def keyword_only(a, /, b, *, c=3, d):
    p = Point(a, b).scaled(2, offset=c)
    return p.x, p.y, d


def chained(a, b, c):
    return a < b <= c, a if a < b < c else c, a < b and b or c


def boolean(a, b):
    x = a and b
    y = a or b
    return x, y, not (a and not b), bool(a) == bool(b)


def strings(a, b):
    return f"{a!r} {b:>5} {a}{b!s}" + "%s" % (a,) + f"{a:{b}}"


def slices(items):
    copy = list(items)
    copy[1:2] = ["x", "y"]
    del copy[0]
    return items[1:], items[:-1], items[::2], copy, items[-1:0:-1]


def unpacking(pair):
    (a, b), c = pair
    a, b, c = c, a, b
    b, a = a, b
    return a, b, c


def augmented(items):
    items += [1]
    alias = items
    items[0] += 5
    alias *= 2
    return items, alias is items


def globals_written(x):
    global COUNTER
    COUNTER = x
    COUNTER += 1
    return COUNTER


def deleting(x):
    y = x
    del x
    try:
        return x  # noqa: F821
    except UnboundLocalError:
        return y


def maybe_unbound(x):
    if x:
        y = x * 2
    LOG.append("between")
    if x:
        return y
    z = [x]
    return y if z else 1


def asserting(x):
    assert x > 0, f"bad {x}"
    return x


def importing(x):
    import math  # noqa: I001
    from os.path import basename, join as j

    return math.floor(x), basename(j("a", "b"))


def walrus(items):
    if (n := len(items)) > 2:
        return n
    return [m for i in items if (m := i) > 0], n


def lambdas(a):
    f = lambda x, *, y=a: x + y
    g = lambda *v, **k: (v, k)
    return f(1), f(1, y=2), g(1, *[2], b=3, **{"c": 4})


def classes(a):
    class Local:
        value = a

        def get(self):
            return self.value + a

    return Local().get()


def super_method(x):
    return Child().area(x), Child().captured(x), Child().plain_super(x)


def suppress(x):
    with contextlib.suppress(ZeroDivisionError), Manager("s"):
        LOG.append(1 // x)
    try:
        with Manager("t"):
            raise KeyError(x)
    except KeyError:
        return "key"


def deep_stack(a):
    return [a, (a, {a: [a, straight(a, b=Point(a, 2).scaled(3).x)]}, *[a, a]), branches(a)]


def while_true(n):
    while True:
        n -= 1
        try:
            if n < 0:
                return "out"
            LOG.append(6 // n)
        except ZeroDivisionError:
            break
    return n


def finally_in_loop(n):
    for i in range(n):
        try:
            if i == 1:
                continue
            if i == 3:
                return "returned"
        finally:
            LOG.append(("f", i))
    return "end"


def many_locals(a):
    b = c = d = e = f = g = h = i = j = k = ll = m = n = o = p = q = r = s = t = a
    b, c = c + 1, b
    q, r, s = r, s, q + 1
    t = r = s
    return b, c, d, e, f, g, h, i, j, k, ll, m, n, o, p, q, r, s, t


def exception_groups(x):
    try:
        raise ExceptionGroup("group", [ValueError(x), TypeError(x)])
    except* ValueError as group:
        LOG.append(len(group.exceptions))
    except* TypeError:
        LOG.append("type")
    return "after"


def with_around_loops(n):
    with Manager("outer", True), Manager("inner"):
        for i in watched(range(4)):
            with Manager(i, i == 1):
                LOG.append(10 // (n - i))
            for j in range(i):
                if j == n:
                    break
                LOG.append((i, j))
        else:
            LOG.append("else")
        LOG.append([].pop())
    return n


def loop_in_try_with_locals(n):
    seen = total = 0
    try:
        for i in range(6):
            total += i * n
            seen = i
            LOG.append(12 // (n - i))
            last = total
    except ZeroDivisionError as error:
        return seen, total, str(error)
    finally:
        LOG.append((seen, total))
    return seen, total, last


def bound_by_rounds(n):
    for i in range(n):
        if i % 2:
            odd = i * 10
        elif i:
            even = watched([i])
            next(even)
        if i == 3:
            del odd
        LOG.append(i)
    LOG.append("behind")
    try:
        return odd
    except UnboundLocalError as error:
        return str(error)


def cells_in_loop(n):
    made = []
    for i in range(n):
        total = i * 2

        def bump(by=1):
            nonlocal total
            total += by
            return total + i

        bump()
        made.append([bump(k) for k in range(2)] + [total])
    return made, total, i


def comprehensions_in_loop(n):
    found = []
    i = 5
    while n > 0:
        found.append([i * n for i in range(n) if i % 2])
        found.append({k: [k + j for j in range(k)] for k in range(2)})
        n -= 1
        i += 1
    return found, i


def retries(n):
    for attempt in range(4):
        try:
            if attempt < n:
                raise ValueError(attempt)
            found = 10 // (attempt - 2)
        except ValueError as error:
            LOG.append(str(error))
            continue
        except ZeroDivisionError:
            if n > 1:
                break
            raise
        finally:
            LOG.append("tried")
        return found
    else:
        return "none"
    return "broke"


class Rows(Base):
    def __init__(self, x):
        self.x = x

    def area(self, scale):
        total = 0
        for i in range(3):
            total += super().area(scale) * i
            if total > 20:
                return -total
        return total


def super_in_loop(x):
    return Rows(x).area(2), Rows(x + 3).area(1)


CORPUS = (
    (straight, [(3,), (4, 5), ("a",)]),
    (branches, [(5,), (3,), (1,), (-1,), ("a",)]),
    (for_loop, [(0,), (2,), (5,), (9,)]),
    (while_loop, [(0,), (5,), (12,)]),
    (nested_loops, [(3,)]),
    (try_except, [(0,), (2,), ("a",)]),
    (try_finally, [(0,), (1,), (5,)]),
    (nested_try, [("a",), ("b",), ([],)]),
    (reraise, [(0,), (1,)]),
    (raise_in_handler, [(0,), (1,)]),
    (context_is_clean, [(0,), (1,)]),
    (with_block, [(0,), (1,)]),
    (with_swallow, [(0,), (1,)]),
    (with_return, [(0,), (1,)]),
    (with_loop, [(3,), (6,)]),
    (loop_in_try, [(0,), (2,), (5,)]),
    (try_in_loop, [(4,)]),
    (with_around_loops, [(-1,), (1,), (2,), (3,)]),
    (loop_in_try_with_locals, [(-1,), (3,), (0,)]),
    (bound_by_rounds, [(0,), (2,), (4,), (6,)]),
    (cells_in_loop, [(3,)]),
    (comprehensions_in_loop, [(3,)]),
    (retries, [(0,), (1,), (2,), (3,), (9,)]),
    (super_in_loop, [(1,), (4,)]),
    (comprehensions, [(6,)]),
    (comprehension_shadows, [(7, 3)]),
    (comprehension_with_cells, [(3,)]),
    (comprehension_raises, [([1, 2],), ([1, 0],)]),
    (matching, [(1,), ([1, 2, 3, 4],), ({"key": 1, "b": 2},), (Point(2, 1),), (Point(1, 2),), ("s",)]),
    (closure_read, [(1,)]),
    (closure_write, [(5,)]),
    (cell_argument, [(5,)]),
    (starred, [(1, 5, 3), (1,), ()]),
    (keyword_only, [(1, 2)]),
    (chained, [(1, 2, 3), (3, 2, 1), (1, 1, 0), ("a", 1, 2)]),
    (boolean, [(0, 1), (1, 0), (2, 3), ([], "")]),
    (strings, [("a", 5), (1, 3)]),
    (slices, [([1, 2, 3, 4],), ([],)]),
    (unpacking, [(((1, 2), 3),), ((1, 2),)]),
    (augmented, [([1, 2],), ([],)]),
    (globals_written, [(4,)]),
    (deleting, [(1,)]),
    (maybe_unbound, [(1,), (0,)]),
    (asserting, [(1,), (-1,)]),
    (importing, [(1.5,)]),
    (walrus, [([1, 2, 3],), ([1, -1],)]),
    (lambdas, [(3,)]),
    (classes, [(3,)]),
    (super_method, [(0,), (2,)]),
    (Child.area, [(Child(), 0), (Child(), 2)]),
    (Child.captured, [(Child(), 2)]),
    (Child.plain_super, [(Child(), 2)]),
    (suppress, [(0,), (1,)]),
    (deep_stack, [(3,)]),
    (while_true, [(3,), (0,)]),
    (finally_in_loop, [(2,), (5,)]),
    (many_locals, [(1,)]),
    (exception_groups, [(1,)]),
)
