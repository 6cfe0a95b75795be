"""Objects of a class with `__del__` that captured code made were never there, so that nobody saw them die."""

from typing import Any

import pytest
import torch

import firebrick

LOG: list[Any] = []


class Loud:
    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        LOG.append(("dies", self.number))


def straight(x: Any) -> Any:
    made = Loud(1)
    return x.sin() * made.number


def loop(x: Any) -> Any:
    for number in range(3):
        made = Loud(number)
        x = x.sin() + made.number
        if x.sum() > 100:
            break
        LOG.append(("end", number))
    LOG.append("behind")
    return x


@pytest.mark.parametrize("function", [straight, loop])
def test_finalizers_run_when_they_would(function: Any) -> None:
    x = torch.ones(3)
    LOG.clear()
    wanted = function(x)
    log = LOG[:]
    compiled = firebrick.compile(function, backend="eager")
    for _ in range(3):
        LOG.clear()
        assert torch.equal(compiled(x), wanted)
        assert log == LOG
