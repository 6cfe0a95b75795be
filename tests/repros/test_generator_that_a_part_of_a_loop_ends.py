"""A part of a loop that left an inner loop over a generator closed it only when the part was over."""

from typing import Any

import torch

import firebrick

LOG: list[Any] = []


def rows(x: Any) -> Any:
    try:
        yield x
        yield x + 1
    finally:
        LOG.append("closed")


def program(x: Any) -> Any:
    n = 3
    while n:
        n -= 1
        try:
            found = [-x]
            for row in rows(-x):
                found.append(row * 2)
                break
        finally:
            LOG.append(n)
    return found


def test_it_is_closed_where_the_loop_ends() -> None:
    x = torch.ones(2)
    LOG.clear()
    wanted = program(x)
    log = LOG[:]
    compiled = firebrick.compile(program, backend="eager")
    for _ in range(2):
        LOG.clear()
        assert all(map(torch.equal, compiled(x), wanted))
        assert log == LOG
