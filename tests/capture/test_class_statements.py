"""`class` statements in captured functions: Python runs them, in order and once; what is around them is captured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from compiling import check


def method_and_attribute(x: Any) -> Any:
    y = x + 1

    class Local:
        scale = 2

        def apply(self, value: Any) -> Any:
            return value * self.scale

    return Local().apply(y) + Local.scale, Local.__name__, Local.__qualname__, Local.__module__


def variables_from_outside(x: Any) -> Any:
    y = x * 3

    class Local:
        kept = y + 1

        def apply(self) -> Any:
            return y + self.kept

    y = y * 2
    return Local().apply()


def exception_in_the_body(x: Any) -> Any:
    done = []
    y = x + 1
    try:

        class Local:
            done.append("before")
            bad = y.view(7)

    except RuntimeError as error:
        return y * 2, str(error), done
    return y


def decorated(x: Any) -> Any:
    @dataclass
    class Pair:
        first: Any
        second: int = 2

        def product(self) -> Any:
            return self.first * self.second

    return Pair(x).product() + Pair(x, 3).product(), Pair(x).second


def metaclass_and_super(x: Any) -> Any:
    class Meta(type):
        def __call__(cls, *args: Any) -> Any:
            return super().__call__(*args)

    class Base(metaclass=Meta):
        def apply(self, value: Any) -> Any:
            return value + 1

    class Derived(Base):
        factor = 4

        def apply(self, value: Any) -> Any:
            return super().apply(value) * __class__.factor

    return Derived().apply(x * 2), issubclass(Derived, Base), type(Derived) is Meta


def under_a_mode(x: Any) -> Any:
    with torch.no_grad():
        y = x * 2

        class Local:
            recorded = torch.is_grad_enabled()
            made = y + 1

        z = Local.made * 2
    return z, Local.recorded, torch.is_grad_enabled()


def nonlocal_in_the_body(x: Any) -> Any:
    count = 0

    class Local:
        nonlocal count
        count = 5
        numbers = list(range(count))
        del numbers

    return x * count, hasattr(Local, "numbers")


def in_a_loop(x: Any) -> Any:
    results = []
    for index in range(3):

        class Local:
            value = index

        results.append(x * Local.value)
    return results, (x * 2).sum()


@pytest.mark.parametrize(
    "function",
    [
        method_and_attribute,
        variables_from_outside,
        exception_in_the_body,
        decorated,
        metaclass_and_super,
        under_a_mode,
        nonlocal_in_the_body,
        in_a_loop,
    ],
)
def test_programs(function: Any) -> None:
    compiled = check(function, torch.tensor([1.0, -2.0, 0.5]), graphs=None, breaks=None, calls=3)
    assert "unsupported-instruction" in compiled.breaks
    assert compiled.ops  # what is around the statement is captured
