"""Side effects and graph breaks of every kind, one program each: exactly once, in order, also where it raises."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import sys
import warnings
from typing import Any

import pytest
import torch
from naming import Table, X, check_row

import firebrick

TABLE = Table()
row = TABLE.row
LOG: list[Any] = []
STATE = {"n": 0}
NUMBER = 1
logger = logging.getLogger(__name__)


class Thing:
    shared: list[int] = []

    def __init__(self) -> None:
        self.n = 0
        self.items: list[Any] = []

    def bump(self, by=1):
        self.n += by
        self.items.append(self.n)
        return self


# -- side effects -------------------------------------------------------------------------


@row(X.clone(), [], {}, set(), collections.deque(maxlen=2), Thing())
def every_argument_is_changed(x, a, d, s, q, t):
    a.append(1)
    d["k"] = a
    s.add(2)
    q.extend([1, 2, 3])
    t.bump().bump(2)
    t.fresh = x
    x.add_(1)
    a.append(len(d))
    return x + t.n


@row(X.clone(), [], {}, Thing(), graphs=None, breaks=None)
def changed_then_raised(x, a, d, t):
    a.append(1)
    x.mul_(2)
    d["k"] = 1
    t.bump()
    raise ValueError("after effects")


@row(X.clone(), [], Thing(), graphs=None, breaks=None)
def changed_in_a_call_that_raises_and_is_caught(x, a, t):
    def inner():
        a.append(1)
        t.bump()
        x.add_(1)
        raise KeyError("inside")

    with contextlib.suppress(KeyError):
        inner()
    return x + t.n


@row(X.clone(), [], graphs=2, breaks=1)
def changed_before_and_after_a_break(x, a):
    a.append("before")
    x.add_(1)
    torch._dynamo.graph_break()
    a.append("after")
    x.mul_(2)
    return x + len(a)


@row()
def globals_changed(x):
    global NUMBER
    before = NUMBER
    NUMBER = before + 1
    STATE["n"] += NUMBER
    LOG.append(STATE["n"])
    y = x + NUMBER + STATE["n"] + LOG[-1]
    NUMBER = before
    STATE["n"] = 0
    LOG.clear()
    return y


@row(graphs=2, breaks=1)
def globals_across_a_break(x):
    global NUMBER
    NUMBER += 1
    y = x + NUMBER
    torch._dynamo.graph_break()
    NUMBER -= 1
    return y + NUMBER


def counter() -> Any:
    count = 0
    last = None

    def bump(x):
        nonlocal count, last
        count += 1
        last = x
        return x + count

    def read():
        return count, last

    return bump, read


@row(graphs=None)
def cells_of_existing_closures(x):
    bump, read = counter()
    return bump(bump(x)), read()


@row(X.clone())
def tensors_through_views(x):
    rows = [r for r in x]
    rows[0].add_(1)
    x.view(-1)[1:3] = 9
    x[:, 1].mul_(2)
    x.T[0].zero_()
    part = x.narrow(1, 0, 2)
    part.fill_(3)
    return rows, x, part, x.sum()


@row(X.clone())
def aliased_arguments(x):
    def change(a, b):
        a.add_(1)
        return a + b

    return change(x, x), x


@row(X, [3, 1], graphs=None)
def containers_in_containers(x, a):
    d = {"a": a, "t": (a, x)}
    d["t"][0].append(x)
    d["a"].sort(key=lambda v: 0 if isinstance(v, int) else 1)
    a[0], a[1] = a[1], a[0]
    return d, a is d["a"]


@row(X, Thing())
def objects_that_refer_to_each_other(x, t):
    other = Thing()
    other.peer, t.peer = 1, other
    t.items.append(other)
    other.items.append(3)
    del t.peer.peer
    return x + len(t.items), t.items[0] is t.peer


@row()
def class_state_changed_through_a_list(x):
    Thing.shared.append(1)
    y = x + len(Thing.shared)
    Thing.shared.clear()
    return y


@row(X, {"a": 1, "b": 2}, [1, 2, 3])
def changed_while_iterating(x, d, a):
    try:
        for key in d:
            d[key + "2"] = 1
    except RuntimeError as error:
        text = str(error)
    for item in a:
        if item == 2:
            a.append(9)
    for key in list(d):
        d.pop(key)
    return x + len(a), text


@row()
def output_is_written_in_order(x):
    print("first", 1, sep="-")
    warnings.warn("second", stacklevel=2)
    y = x + 1
    print("third", end="!\n")
    logger.debug("nothing")
    return y


@row(graphs=None, breaks=None)
def output_around_a_break(x):
    print("first")
    y = x + 1
    print("sum", y.sum())
    print("last", file=sys.stdout)
    return y * 2


@row(graphs=None, breaks=None)
def output_before_an_exception(x):
    print("first")
    y = x + 1
    print("second", y.shape)
    raise ValueError("third")


@row(X, dataclasses.make_dataclass("Data", ["a", "b"])(1, [2]))
def dataclass_fields_changed(x, data):
    data.a += 1
    data.b.append(data.a)
    return dataclasses.replace(data, a=x + 1)


# -- graph breaks ----------------------------------------------------------------------------


def stop(value: Any = None) -> Any:
    firebrick.graph_break()
    return value


@row(graphs=None, breaks=None)
def break_in_a_deep_call(x):
    def third(y):
        y = y * 2
        stop()
        return y + 1

    def second(y, scale=3):
        return third(y * scale) - 1

    return second(x + 1) * 5


@row(graphs=None, breaks=None)
def break_in_loops(x):
    total = x
    for n in range(3):
        total = total + n
        if n == 1:
            stop()
        for m in (1, 2):
            total = total * m
    while total.sum() < 200:
        total = total * 2
    return total


@row(X, [], graphs=None, breaks=None)
def break_in_try(x, log):
    try:
        x = x + 1
        stop()
        x = x * 2
        raise ValueError("a")
    except ValueError as error:
        stop()
        log.append(str(error))
        x = x - 1
    else:
        log.append("else")
    finally:
        stop()
        log.append("finally")
    return x


@row(X, [], graphs=None, breaks=None)
def break_that_raises_in_try(x, log):
    @firebrick.disable
    def fails(y):
        log.append("called")
        raise KeyError("plain")

    try:
        x = x + 1
        fails(x)
    except KeyError as error:
        log.append(repr(error))
    return x * 2


@row(X, [], graphs=None, breaks=None)
def break_in_with(x, log):
    @contextlib.contextmanager
    def manager(name):
        log.append(f"in {name}")
        stop()
        try:
            yield len(log)
        finally:
            stop()
            log.append(f"out {name}")

    with manager("a") as a, manager("b") as b:
        x = x + a
        stop()
        x = x * b
    return x


@row(graphs=None, breaks=None)
def break_in_comprehensions(x):
    rows = [stop(r + n) for n, r in enumerate(x)]
    table = {n: stop(r) * 2 for n, r in enumerate(rows)}
    lazy = list(stop(r) for r in rows)
    return rows, table, lazy


@row(graphs=None, breaks=None)
def break_in_a_generator(x):
    def rows():
        for r in x:
            stop()
            yield r + 1

    return [r * 2 for r in rows()], sum(rows())


@row(graphs=None, breaks=None)
def break_in_methods_of_objects(x):
    class_ = Thing

    class Breaking(class_):
        def __len__(self):
            return stop(3)

        def __add__(self, other):
            return stop(other) + 1

        def __getattr__(self, name):
            return stop(7)

        @property
        def size(self):
            return stop(5)

    t = Breaking()
    return x + len(t), t + x, t.missing, t.size, bool(t), sorted([3, 1], key=stop), max([1, 2], key=lambda v: stop(-v))


@row(graphs=None, breaks=None)
def break_with_everything_alive(x):
    n, items, table, made, it = 3, [x, 1], {"k": x}, Thing(), iter([1, 2, 3])
    function = lambda y: y + n  # noqa: E731
    next(it)
    enumerated, zipped = enumerate("ab"), zip([1, 2], "ab")
    next(enumerated), next(zipped)
    view, part, mode = x[0], x.T, torch.no_grad()
    y = (n + 1, x * 2, stop(x.sum().item()), [*items])
    with mode:
        return (
            y,
            items,
            table["k"] is items[0],
            made.n,
            list(it),
            function(x),
            list(enumerated),
            list(zipped),
            view,
            part,
        )


@row(graphs=None, breaks=None)
def break_in_arguments_of_a_call(x):
    return (
        torch.add(x + 1, stop(2), alpha=stop(3)),
        "{} {}".format(stop(1), stop(b=2) if False else 2),
        [1, stop(2), *stop((3,))],
    )


@row(graphs=None, breaks=None)
def break_on_conditions(x):
    y = x + 1 if x.sum() > 0 else x - 1
    z = x.sum() > 100 or x.sum() > 3
    w = not (x.max() > 3 and y.min() < 0)
    assert x.sum() > 0
    return y, z, w, [r for r in x if r.sum() > 4], any(r.sum() > 4 for r in x)


@row(graphs=None, breaks=None)
def recursion(x):
    def down(y, n):
        return y if n == 0 else down(y + n, n - 1)

    return down(x, 30), down(x, 70)


@row(graphs=None, breaks=None)
def frames_that_look_at_themselves(x):
    here = 5
    y = x + here
    names = sorted(locals())
    return y, names, sys._getframe().f_code.co_name, eval("here + 1"), "x" in dir()


@row(graphs=None, breaks=None)
def async_functions(x):
    async def twice(y):
        await asyncio.sleep(0)
        return y * 2

    async def numbers():
        for n in range(3):
            yield n

    async def main():
        found = [n async for n in numbers()]
        async with contextlib.AsyncExitStack():
            return await twice(x) + len(found), {n: n async for n in numbers() if n}

    return asyncio.run(main())


@row(graphs=None, breaks=None)
def exception_with_a_traceback(x):
    try:
        raise ValueError("a")
    except ValueError as error:
        return x + 1, error.__traceback__ is not None, sys.exc_info()[0]


@row(graphs=None, breaks=None)
def exception_groups_in_flight(x):
    log = []
    try:
        try:
            raise ExceptionGroup("all", [ValueError(1), TypeError(2)])
        except* ValueError as group:
            stop()
            log.append(str(group))
            raise KeyError("new") from None
    except ExceptionGroup as group:
        log.append([type(e).__name__ for e in group.exceptions])
    return x + 1, log


@pytest.mark.parametrize("program", TABLE.rows, ids=lambda program: program.name)
def test_effect(program):
    check_row(program)
