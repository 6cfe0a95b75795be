"""Exceptions that leave the compiled function are the program's own, under `fullgraph=True` too.

PYTEST_DONT_REWRITE: the programs' own asserts stay as they are.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiling import Compiled
from naming import Table, check_row, check_whole
from torch import nn

from firebrick.errors import Unsupported

TABLE = Table()
row = TABLE.row
LOG: list[Any] = []
LINEAR = nn.Linear(3, 3)


class Mine(Exception):
    """Holds more than its text."""

    def __init__(self, text: str, rows: Any) -> None:
        super().__init__(text)
        self.rows = rows


def raises() -> Any:
    """A row that raises: where plain Python does it, a graph may end."""
    return row(graphs=None, breaks=None)


@raises()
def after_effects(x):
    x.add_(1)
    LOG.append("before")
    raise ValueError(f"{x.shape[0]} rows")


@raises()
def of_an_inner_function(x):
    def inner(y):
        raise KeyError("a")

    return inner(x.sin())


@raises()
def of_its_own_class(x):
    raise Mine("a", (x * 2).shape)


@raises()
def with_a_tensor(x):
    raise Mine("a", x * 2)


@raises()
def failing_assert(x):
    y = x + 1
    assert y.shape[0] == 5, f"{y.shape[0]} rows"
    return y


@raises()
def failing_assert_without_words(x):
    y = x + 1
    assert y.shape[0] == 5
    return y


@raises()
def torch_check(x):
    y = x + 1
    torch._check(y.shape[0] == 5, lambda: "five rows")
    return y


@raises()
def shapes_of_a_matmul(x):
    y = x + 1
    return y @ y


@raises()
def shapes_of_cat_after_a_write(x):
    x.mul_(2)
    return torch.cat([x, x[:, :1]], 0)


@raises()
def shapes_of_a_module(x):
    return LINEAR(x[:, :2])


@raises()
def key_of_a_dict(x):
    return {"a": x + 1}["b"]


@raises()
def attribute_of_a_tensor(x):
    return (x + 1).nothing


@raises()
def arguments_of_a_call(x):
    return (lambda a: a)(x, x + 1)


@raises()
def from_another(x):
    y = x + 1
    try:
        raise KeyError("a")
    except KeyError as error:
        raise ValueError(y.shape) from error


@raises()
def through_finally(x):
    y = x + 1
    try:
        raise KeyError("a")
    finally:
        LOG.append(y.shape)


@raises()
def out_of_no_grad(x):
    with torch.no_grad():
        raise ValueError((x + 1).shape)


@raises()
def group(x):
    x = x + 1
    raise ExceptionGroup("g", [ValueError(1)])


@raises()
def in_the_third_round(x):
    for index in range(5):
        x = x + 1
        if index == 2:
            raise IndexError(index)
    return x


@pytest.mark.parametrize("program", TABLE.rows, ids=lambda program: program.name)
def test_row(program: Any) -> None:
    for check, calls in ((check_row, 7), (check_whole, 5)):
        LOG.clear()
        check(program)
        assert len(LOG) in (0, calls)  # what logs does it once in each call


def test_an_exception_on_one_way_leaves_the_other_whole() -> None:
    def f(x: torch.Tensor, rows: int) -> torch.Tensor:
        if rows != 2:
            raise ValueError(rows)
        return x * rows

    compiled = Compiled(f, fullgraph=True)
    x = torch.ones(2)
    with pytest.raises(ValueError, match="3"):
        compiled(x, 3)
    assert torch.equal(compiled(x, 2), x * 2)
    with pytest.raises(ValueError, match="3"):
        compiled(x, 3)
    assert len(compiled.graphs) == 1


def test_an_op_that_only_fakes_refuse_is_no_exception_of_the_program() -> None:
    @torch.library.custom_op("named_escapes::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with pytest.raises(Unsupported, match="fake-tensor-failed"):
        Compiled(lambda x: twice(x + 1) + 1, fullgraph=True)(torch.ones(2))
