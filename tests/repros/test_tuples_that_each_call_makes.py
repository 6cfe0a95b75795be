"""A tuple of constants that a call builds was one object for all calls; one that the code holds was another one."""

from typing import Any

import torch

import firebrick

SEEN: list[Any] = []


def builds(x: Any, n: int) -> Any:
    SEEN.append(("made", n))
    return x.sin()


def holds(x: Any) -> Any:
    pair = (1, ("a", 2))
    SEEN.append(pair)
    return x.sin(), pair


def test_a_tuple_is_new_in_each_call() -> None:
    SEEN.clear()
    compiled = firebrick.compile(builds, backend="eager")
    for _ in range(2):
        compiled(torch.ones(2), 3)
    assert SEEN[0] == SEEN[1]
    assert SEEN[0] is not SEEN[1]


def test_a_constant_is_the_codes_own() -> None:
    SEEN.clear()
    holds(torch.ones(2))
    compiled = firebrick.compile(holds, backend="eager")
    for _ in range(2):
        _, pair = compiled(torch.ones(2))
        assert pair is SEEN[0]
        assert SEEN[-1] is SEEN[0]
