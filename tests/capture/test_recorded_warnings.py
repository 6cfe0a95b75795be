"""`warnings.catch_warnings` inside of captured functions: what is recorded, raised and let pass there."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from compiling import Compiled, assert_same, check, outcome

import firebrick

if TYPE_CHECKING:
    from collections.abc import Iterator

X = torch.tensor([1.0, -2.0])


class Own(UserWarning):
    pass


class Counting(UserWarning):
    def __init__(self, text: str, count: int = 3) -> None:
        super().__init__(text)
        self.count = count


def said(log: list[Any]) -> list[Any]:
    """All that a program can see of what was recorded."""
    return [(str(one.message), type(one.message), one.category, one.filename, one.lineno, one.source) for one in log]


def tells(level: int = 1) -> None:
    warnings.warn("told", Own, stacklevel=level)


def recorded(x: Any) -> Any:
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        warnings.warn("first")
        warnings.warn(
            "second",
            DeprecationWarning,
        )
        warnings.warn(Own("third"))
        tells()
        tells(2)
        y = x * 2
    return y, len(log), said(log), log[0].message.args, log[0].line, log[-1].category is Own


def filtered(x: Any) -> Any:
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message="no")
        warnings.filterwarnings("ignore", category=Own)
        warnings.filterwarnings("ignore", module="another")
        for index in range(3):
            warnings.warn(f"no {index}")
            warnings.warn(f"yes {index}")
            tells()
    return x + len(log), said(log)


def errors(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Own)
        try:
            tells()
        except Own as error:
            return x + 1, str(error)
    return x


def nested(x: Any) -> Any:
    with warnings.catch_warnings(record=True) as outer:
        warnings.simplefilter("always")
        warnings.warn("one")
        with warnings.catch_warnings() as nothing:
            warnings.simplefilter("ignore")
            warnings.warn("two")
        with warnings.catch_warnings():
            warnings.warn("three")
        with warnings.catch_warnings(record=True) as inner:
            warnings.warn("four")
        warnings.warn("five")
    return x + 1, said(outer), said(inner), nothing


@contextlib.contextmanager
def recording() -> Iterator[list[Any]]:
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        yield log


def by_a_context_of_its_own(x: Any) -> Any:
    with recording() as log:
        tells()
        x = x.sin()
    if any("told" in str(one.message) for one in log):
        x = x + 1
    return x, said(log)


def wrong_calls(x: Any) -> Any:
    texts = []
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        for call in (lambda: warnings.simplefilter("loud"), lambda: warnings.warn("a", int)):  # type: ignore[arg-type]
            try:
                call()
            except (AssertionError, TypeError, ValueError) as error:
                texts.append((type(error), str(error)))
    return x + 1, texts


def an_exception_leaves(x: Any) -> Any:
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("error")
        warnings.warn("it leaves")
    return x, log


@pytest.mark.parametrize(
    "function",
    [recorded, filtered, errors, nested, by_a_context_of_its_own, wrong_calls],
)
def test_one_graph(function: Any) -> None:
    before = [*warnings.filters], warnings.showwarning
    check(function, X, calls=3)
    assert ([*warnings.filters], warnings.showwarning) == before


def test_an_exception_that_leaves() -> None:
    before = [*warnings.filters], warnings.showwarning
    check(an_exception_leaves, X, graphs=None, breaks=None)
    assert ([*warnings.filters], warnings.showwarning) == before


def leaves(x: Any) -> Any:
    with recording() as log:
        warnings.warn("left")
    return log, x + 1


def test_what_is_recorded_leaves() -> None:
    compiled = firebrick.compile(leaves, backend="eager", fullgraph=True)
    (got, _), (want, _) = compiled(X), leaves(X)
    assert said(got) == said(want)
    assert (type(got), type(got[0]), str(got[0])) == (list, warnings.WarningMessage, str(want[0]))


def filters_from_outside(x: Any) -> Any:
    with warnings.catch_warnings(record=True) as log:
        warnings.warn("who knows")
    return x + len(log)


def said_once(x: Any) -> Any:
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("default")
        for _ in range(3):
            warnings.warn("again")
    return x + len(log)


def an_operation_warns(x: Any) -> Any:
    with recording() as log:
        y = torch.tensor(x)
    return y, len(log)


def a_class_that_counts(x: Any) -> Any:
    with recording() as log:
        warnings.warn(Counting("counted"))
    return x + log[0].message.count


def broken_inside(x: Any) -> Any:
    with recording() as log:
        tells()
        firebrick.graph_break()
        tells()
    return x + len(log), [str(one.message) for one in log]


@pytest.mark.parametrize(
    "function", [filters_from_outside, said_once, an_operation_warns, a_class_that_counts, broken_inside]
)
def test_what_is_not_known_is_left_to_python(function: Any) -> None:
    before = [*warnings.filters], warnings.showwarning
    compiled = Compiled(function)
    for _ in range(3):
        assert_same(outcome(compiled, (X,)), outcome(function, (X,)))
    assert compiled.breaks
    assert ([*warnings.filters], warnings.showwarning) == before
