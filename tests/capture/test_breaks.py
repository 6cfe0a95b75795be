"""Graph breaks: where capture ends, what runs natively, what goes on in continuations."""

from __future__ import annotations

import logging
import operator
from typing import Any

import pytest
import torch
from compiling import Compiled, check

from firebrick import errors
from firebrick.capture.breaks.catalogue import CATALOGUE

X = torch.arange(6.0).reshape(2, 3)


def test_the_toy_function_of_the_dynamo_post() -> None:
    def toy(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = a + b
        x = x / 2.0
        if x.sum() < 0:
            return x * -1.0
        return x

    compiled = Compiled(toy)
    a, b = torch.randn(10), torch.randn(10)
    for first in (a - 100, a + 100, a - 100):
        assert torch.equal(compiled(first, b), toy(first, b))
    assert len(compiled.graphs) == 2
    first, second = (list(gm.graph.nodes) for gm in compiled.graphs)
    assert [(n.op, n.target) for n in first] == [
        ("placeholder", "a"), ("placeholder", "b"), ("call_function", operator.add), ("call_function", operator.truediv),
        ("call_method", "sum"), ("call_function", operator.lt), ("output", "output"),
    ]  # fmt: skip
    assert [n.name for n in first[-1].args[0]] == ["truediv", "lt"]
    assert [(n.op, n.target) for n in second] == [
        ("placeholder", "x"),
        ("call_function", operator.mul),
        ("output", "output"),
    ]
    assert compiled.frames[0].guards == ("a: f32[10] cpu", "b: f32[10] cpu")


def test_item_and_tolist() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        y = x * 2
        n = y.sum().item()
        z = y + n
        return z, z[0].tolist(), int(y[0, 1]), float(y.max()), bool(y.any())

    check(fn, X, graphs=None, breaks=None)


def test_print_of_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print("sum", y.sum())  # noqa: T201
        return y * 2

    compiled = Compiled(fn)
    want = fn(X)
    plain = capsys.readouterr().out
    assert torch.equal(compiled(X), want)
    assert capsys.readouterr().out == plain
    assert len(compiled.graphs) == 2


def test_print_of_constants_is_deferred(capsys: pytest.CaptureFixture[str]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        print("one", x.shape)  # noqa: T201
        y = x + 1
        print("two")  # noqa: T201
        return y

    compiled = check(fn, X, calls=1)
    assert len(compiled.graphs) == 1
    assert capsys.readouterr().out == "one torch.Size([2, 3])\ntwo\n" * 2


def unsupported(x: Any) -> Any:
    """Not capturable: asks for its frame."""
    import sys  # noqa: PLC0415

    return x if sys._getframe().f_locals else None


def inner_breaks(x: torch.Tensor) -> torch.Tensor:
    y = x * 3
    y = unsupported(y)
    return y + 1


def test_breaks_in_inlined_calls_are_made_in_their_own_frame() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        z = inner_breaks(y)
        return z * 2

    compiled = check(fn, X, graphs=None, breaks=None)
    assert compiled.ops == 4
    assert len(compiled.graphs) == 4


def test_break_in_a_loop() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        total = x * 0
        for i in range(n):
            total = total + i
            total = unsupported(total)
            total = total * 2
        return total + 1

    check(fn, X, 3, graphs=None, breaks=None)


def test_break_in_try_and_with() -> None:
    class Manager:
        def __init__(self) -> None:
            self.log: list[str] = []

        def __enter__(self) -> Manager:
            self.log.append("in")
            return self

        def __exit__(self, *error: object) -> bool:
            self.log.append("out" if error[0] is None else "error")
            return True

    def fn(x: torch.Tensor) -> tuple[object, ...]:
        y = x + 1
        manager = Manager()
        with manager:
            y = unsupported(y * 2)
            y = y - 1
            if y.sum() > 0:
                raise ValueError("positive")
        try:
            y = unsupported(y) + 5
            y = y / 2
        finally:
            y = y + 1
        try:
            y = y * unsupported(2)
            raise KeyError("k")
        except KeyError as error:
            y = y + len(unsupported(error.args))
        return y, manager.log

    check(fn, X, graphs=None, breaks=None)


def test_break_inside_no_grad() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        a = x * 2
        with torch.no_grad():
            b = x * 3
            b = unsupported(b)
            c = b + x
        d = x * 4
        return a, b, c, d, torch.is_grad_enabled()

    check(fn, X.clone().requires_grad_(), graphs=None, breaks=None)


def test_break_with_a_deep_stack() -> None:
    def pack(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return args, kwargs

    def fn(x: torch.Tensor) -> tuple[object, ...]:
        return pack(
            x + 1, [x * 2, unsupported(x + 3)], {"a": unsupported(x)}, k=unsupported(4), l=x.sum() + unsupported(1)
        )

    check(fn, X, graphs=None, breaks=None)


def test_break_keeps_containers_closures_and_aliases() -> None:
    def fn(x: torch.Tensor, given: list[Any]) -> tuple[object, ...]:
        items = [x + 1]
        same = items
        count = 0

        def bump(y: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += 1
            items.append(y)
            given.append(count)
            return y * count

        y = bump(x)
        y = unsupported(y)
        y = bump(y)
        same.append(3)
        return y, items, same is items, count, given

    check(fn, X, [], graphs=None, breaks=None)


def test_break_with_iterators_on_the_stack() -> None:
    def fn(x: torch.Tensor) -> tuple[object, ...]:
        out = []
        for i, (name, row) in enumerate(zip("ab", x)):
            out.append(unsupported(row) * i)
            if name == "b":
                break
        rows = [unsupported(row) + 1 for row in x]
        table = {i: unsupported(row).sum() for i, row in enumerate(rows)}
        return out, rows, table

    check(fn, X, graphs=None, breaks=None)


def test_data_dependent_loops_and_conditions() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        n = 0
        while x.sum() < 100:
            x = x * 2 + 1
            n += 1
        y = x if x.max() > 1000 else -x
        z = y.sum() > 0 and y.max() > 3 or n > 100
        return y * (2 if z else 3) + n

    check(fn, X, graphs=None, breaks=None)


def test_exceptions_leave_with_their_effects_done() -> None:
    def fn(x: torch.Tensor, log: list[str]) -> torch.Tensor:
        y = x + 1
        log.append("before")
        if y.shape[0] == 2:
            raise ValueError(f"shape {tuple(y.shape)}")
        return y

    check(fn, X, [], graphs=None, breaks=None)


def test_errors_of_torch_are_the_users() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        try:
            return y @ y
        except RuntimeError as error:
            return y * len(str(error)[:3])

    check(fn, X, graphs=None, breaks=None)


def test_fullgraph_raises_with_place_and_fix() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if y.sum() > 0:
            return y
        return x

    with pytest.raises(errors.Unsupported, match=r"graph break 1 .*\n.*test_breaks.py:\d+:\d+ in .*fn\n.*fix:"):
        Compiled(fn, fullgraph=True)(X)


def test_every_break_has_a_number_of_its_own() -> None:
    numbers = [kind.number for kind in CATALOGUE.values()]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert all(kind.cause and kind.fix for kind in CATALOGUE.values())


def test_recompiles_are_limited_and_named() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    compiled = Compiled(fn, recompile_limit=3)
    for n in range(3):
        assert torch.equal(compiled(X, n), X * n)
    with pytest.warns(UserWarning, match="n was"):
        assert torch.equal(compiled(X, 7), X * 7)
    assert torch.equal(compiled(X, 8), X * 8)
    assert len(compiled.graphs) == 3


def test_functions_without_tensors_are_left_alone() -> None:
    def fn(n: int) -> list[int]:
        return [i * 2 for i in range(n)]

    compiled = Compiled(fn)
    assert compiled(3) == [0, 2, 4]
    assert not compiled.frames


def test_logging_is_dropped_or_deferred(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("firebrick.tests.capture")

    def fn(x: torch.Tensor) -> torch.Tensor:
        logger.debug("never %s", x)
        logger.warning("shape %s", x.shape)
        return x + 1

    check(fn, X, calls=1)
    assert [record.getMessage() for record in caplog.records] == ["shape torch.Size([2, 3])"] * 2
