"""A part of a loop whose exception a handler behind the loop dealt with handed it over as a value, and kept it alive."""

import gc
from typing import Any

import pytest
import torch

import firebrick

LOG: list[Any] = []


class Manager:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        pass


def rows(x: Any) -> Any:
    try:
        yield x
    finally:
        LOG.append("closed")


def behind(x: Any, n: int) -> Any:
    held = rows(x)
    found = [next(held)]
    count = 3
    while count:
        try:
            with Manager():
                found = (1, x[n])
        finally:
            LOG.append(count)
    return found


def swallowed(x: Any, n: int) -> Any:
    for row in x:
        for found in rows(row):
            try:
                found = x[n]
            finally:
                found = row
                break
        LOG.append(found.item())
    return x


@pytest.mark.parametrize("function", [behind, swallowed])
def test_everything_dies_when_it_would(function: Any) -> None:
    compiled = firebrick.compile(function, backend="eager")
    logs = []
    gc.disable()
    try:
        for called in (function, compiled, compiled):
            LOG.clear()
            try:
                called(torch.ones(2), 3)
            except IndexError:
                LOG.append("raised")
            logs.append(LOG[:])
    finally:
        gc.enable()
    assert logs[0] == logs[1] == logs[2]
