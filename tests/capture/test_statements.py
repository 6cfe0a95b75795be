"""Statements of the language around tensors: control flow, exceptions, comprehensions, generators, `match`."""

from __future__ import annotations

import torch
from compiling import check

X = torch.arange(6.0).reshape(2, 3)


def test_loops_with_break_continue_and_else() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        for i in range(10):
            if i == 1:
                continue
            if i == 4:
                break
            x = x + i
        else:
            x = x * 100
        n = 0
        while n < 3:
            x = x * 2
            n += 1
        else:
            x = x - 1
        return x

    check(fn, X)


def test_try_except_else_finally() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
        log = []
        try:
            x = x + 1
            raise ValueError("a", 2)
        except (KeyError, ValueError) as error:
            log.append(f"{type(error).__name__} {error.args}")
            x = x * 2
        else:
            log.append("else")
        finally:
            log.append("finally")
        try:
            {}["missing"]
        except KeyError as error:
            log.append(str(error))
        try:
            x = x - 3
        except ValueError:
            pass
        else:
            log.append("no error")
        return x, log

    check(fn, X)


def test_nested_exceptions_and_causes() -> None:
    def inner(x: torch.Tensor) -> None:
        try:
            int("no")
        except ValueError as error:
            raise RuntimeError("outer") from error

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        try:
            inner(x)
        except RuntimeError as error:
            return x + 1, f"{error} from {type(error.__cause__).__name__}"
        return x, ""

    check(fn, X)


def test_exception_that_leaves_the_frame() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if y.shape[0] == 2:
            raise ValueError(f"bad shape {tuple(y.shape)}")
        return y

    check(fn, X, graphs=None, breaks=None)


def test_finally_runs_on_return() -> None:
    def fn(x: torch.Tensor, log: list[int]) -> torch.Tensor:
        try:
            return x + 1
        finally:
            log.append(1)

    check(fn, X, [])


def test_with_user_context_managers() -> None:
    class Manager:
        def __init__(self, log: list[str], swallow: bool) -> None:
            self.log, self.swallow = log, swallow

        def __enter__(self) -> str:
            self.log.append("enter")
            return "value"

        def __exit__(self, kind: object, error: object, trace: object) -> bool:
            self.log.append("exit" if kind is None else "error")
            return self.swallow

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
        log: list[str] = []
        with Manager(log, False) as first, Manager(log, True):
            log.append(first)
            x = x + 1
            raise ValueError
        return x * 2, log

    check(fn, X)


def test_generator_context_manager() -> None:
    from contextlib import contextmanager  # noqa: PLC0415  also imported inside captured code elsewhere

    @contextmanager
    def doubled(log: list[str]):  # noqa: ANN202
        log.append("in")
        try:
            yield 2
        finally:
            log.append("out")

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
        log: list[str] = []
        with doubled(log) as n:
            x = x * n
        return x, log

    check(fn, X)


def test_comprehensions() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        rows = [row + i for i, row in enumerate(x)]
        table = {i: row * 2 for i, row in enumerate(rows) if i}
        kinds = {len(row) for row in rows}
        nested = [[a * b for b in range(2)] for a in range(2)]
        lazy = sum(row.sum() for row in rows)
        scale = 3
        closed = [(lambda y, i=i: y * scale + i)(x) for i in range(2)]
        return rows, table, kinds, nested, lazy, closed

    check(fn, X)


def test_generators() -> None:
    def count(n: int):  # noqa: ANN202
        for i in range(n):
            received = yield i
            if received:
                yield received
        return "done"

    def outer(n: int):  # noqa: ANN202
        result = yield from count(n)
        yield result

    def fn(x: torch.Tensor) -> tuple[object, ...]:
        total = x
        for i in outer(3):
            if isinstance(i, str):
                break
            total = total + i
        gen = count(2)
        first = next(gen)
        second = gen.send(10)
        rest = list(gen)
        return total, first, second, rest, next(gen, "end")

    check(fn, X)


def test_closures_and_nonlocal() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        calls = 0

        def add(y: torch.Tensor, n: int = 1, *rest: int, k: int = 2, **kw: int) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return y + n + k + sum(rest) + sum(kw.values())

        x = add(x)
        x = add(x, 1, 2, 3, k=4, z=5)
        return x, calls

    check(fn, X)


def test_returned_closure_works() -> None:
    def fn(x: torch.Tensor, n: int):  # noqa: ANN202
        y = x * n

        def inner(z: torch.Tensor) -> torch.Tensor:
            return y + z

        return inner, y

    def use(x: torch.Tensor, n: int) -> torch.Tensor:
        inner, y = fn(x, n)
        return inner(x) + y

    check(use, X, 2)
    from compiling import Compiled  # noqa: PLC0415

    inner, y = Compiled(fn)(X, 3)
    assert torch.equal(inner(X), X * 3 + X)
    assert inner.__name__ == "inner"


def test_match() -> None:
    def fn(x: torch.Tensor, kind: object) -> torch.Tensor:
        match kind:
            case 0 | 1:
                return x + 1
            case [a, b, *rest]:
                return x + a * b + len(rest)
            case {"k": v, **others}:
                return x + v + len(others)
            case str() as text:
                return x * len(text)
            case slice(start=s):
                return x + s
            case _:
                return x

    for kind in (0, [2, 3, 4, 5], (2, 3), {"k": 2, "l": 3}, "abcd", slice(5, 6), None):
        check(fn, X, kind, graphs=None if kind is None else 1)


def test_unpacking_star_calls_and_walrus() -> None:
    def add(a: torch.Tensor, b: int, /, c: int, *, d: int) -> torch.Tensor:
        return a + b * c - d

    def fn(x: torch.Tensor) -> tuple[object, ...]:
        first, *middle, last = [1, 2, 3, 4]
        (a, b), c = (x, x + 1), 5
        args = (x, *middle)
        kwargs = {"d": 7}
        if (n := len(middle)) > 1:
            x = x + n
        return add(*args, **kwargs), a, b, c, first, last, [*args, *"ab"], {**kwargs, "e": 1}, x

    check(fn, X)


def test_chained_comparison_ternary_assert_del() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x + 1 if 0 < n <= 5 else x - 1
        assert n != 4, "no fours"
        z = y * 2
        del y
        items = [1, 2, 3]
        del items[0]
        d = {"a": 1}
        del d["a"]
        return z + len(items) + len(d)

    check(fn, X, 3)
    check(fn, X, 7)
    check(fn, X, 4, graphs=None, breaks=None)


def test_slices_and_subscripts() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        items = list(range(10))
        items[2:4] = [0, 0, 0]
        part = items[1:-1:2]
        y = x.clone()
        y[0, 1:] = 5
        y[..., 0] += 1
        return part, items, x[:, None], x[0], x[-1, ::2], y, "abc"[1], (1, 2, 3)[::-1]

    check(fn, X)


def test_format_strings() -> None:
    def fn(x: torch.Tensor, n: float, s: str) -> tuple[torch.Tensor, str]:
        return x + n, f"{n:.2f} {s!r:>8} {x.shape} {x.dtype} %d %s" % (3, s) + "{} {a}".format(1, a=s)

    check(fn, X, 1.5, "t")


def test_imports_inside() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        import math  # noqa: PLC0415
        from functools import partial  # noqa: PLC0415

        return partial(torch.add, x)(math.sqrt(4.0))

    check(fn, X)


counter = 0


def test_global_writes() -> None:
    global counter  # noqa: PLW0603

    def fn(x: torch.Tensor) -> torch.Tensor:
        global counter  # noqa: PLW0603
        counter += 1
        return x + counter

    counter = 0
    from compiling import Compiled  # noqa: PLC0415

    compiled = Compiled(fn)
    for n in range(1, 4):
        assert torch.equal(compiled(X), X + n)
        assert counter == n
