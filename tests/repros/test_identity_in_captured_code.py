"""What captured code asks about identity (`id`, `is`, keys of dicts, members of sets) held for other objects as well.

`id(obj) == number` was a constant without a guard; two equal literals were one object; a key that was not there stayed
away though a later call's was.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import firebrick

X = torch.ones(2)


class Plain:
    pass


def twice_if_it_has_the_id(obj: Any, number: int, x: Any) -> Any:
    return x * 2 if id(obj) == number else x * 3


def twice_if_it_has_the_hash(obj: Any, number: int, x: Any) -> Any:
    return x * 2 if hash(obj) == number else x * 3


def twice_if_one(one: Any, other: Any, x: Any) -> Any:
    return x * 2 if one is other else x * 3


def twice_if_member(obj: Any, members: Any, x: Any) -> Any:
    return x * 2 if obj in members else x * 3


def by_item(obj: Any, items: Any, x: Any) -> Any:
    return x * items.get(obj, 7)


def members(one: Any, other: Any, x: Any) -> Any:
    return x * len({one, other})


def keys(one: Any, other: Any, x: Any) -> Any:
    items = {one: 1}
    items[other] = 7
    return x * len(items) * items[one]


def count(one: Any, other: Any, x: Any) -> Any:
    return x * [one, other].count(one)


def check(function: Any, calls: list[tuple[Any, ...]]) -> None:
    compiled = firebrick.compile(function, backend="eager")
    for round_ in range(2):
        for call in calls:
            assert torch.equal(compiled(*call, X), function(*call, X)), (round_, call)


@pytest.mark.parametrize("kind", [Plain, nn.ReLU, list, lambda: lambda: 1, lambda: type("Made", (), {})])
def test_addresses(kind: Any) -> None:
    one, other = kind(), kind()
    check(twice_if_it_has_the_id, [(one, id(one)), (other, id(one)), (other, id(other)), (one, id(other))])
    if kind is not list:
        check(twice_if_it_has_the_hash, [(one, hash(one)), (other, hash(one)), (other, hash(other))])


@pytest.mark.parametrize("kind", [Plain, nn.ReLU, list, lambda: int("123456"), lambda: float("1.5"), lambda: "".join("ab")])  # fmt: skip
def test_two_that_are_one_or_not(kind: Any) -> None:
    one, other = kind(), kind()
    check(twice_if_one, [(one, one), (one, other), (other, other), (other, one)])


def test_equal_numbers_behind_a_break() -> None:
    def program(one: Any, other: Any, x: Any) -> Any:
        y = x if one else x + 1
        return y * 2 if id(one) in {id(other)} else y * 3

    one, other = int("123456"), int("123456")
    check(program, [(one, one), (other, other), (one, other)])


@pytest.mark.parametrize("kind", [Plain, nn.ReLU, lambda: lambda: 1, lambda: type("Made", (), {})])
def test_two_in_a_list(kind: Any) -> None:
    one, other, third = kind(), kind(), kind()
    check(count, [(one, one), (third, third), (other, third), (third, one)])


def test_a_number_that_was_computed() -> None:
    check(lambda n, x: x * 2 if n * 1000 is n * 1000 else x * 3, [(7,), (0,)])


def test_keys_and_members() -> None:
    one, other = Plain(), Plain()
    for function in (members, keys):
        check(function, [(one, other), (one, one), (other, other), (other, one)])
    check(twice_if_member, [(one, {one}), (other, {one}), (other, {other}), (one, {one, other}), (other, [one])])
    check(by_item, [(one, {other: 3}), (other, {other: 3}), (one, {one: 3, other: 4}), (one, {other: 3, one: 4})])


def test_a_hash_of_the_class_that_is_the_address() -> None:
    class Hashed:
        def __hash__(self) -> int:
            return id(self)

        def __eq__(self, other: object) -> bool:
            return self is other

    one, other = Hashed(), Hashed()
    check(by_item, [(one, {one: 3}), (other, {one: 3}), (one, {one: 3})])


def test_equal_layers_of_which_one_is_asked_for() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Any, which: set[int]) -> Any:
            return self.linear(x) * 2 if id(self) in which else self.linear(x)

    layers = nn.ModuleList([Layer() for _ in range(4)])

    def through(which: set[int], x: Any) -> Any:
        for layer in layers:
            x = layer(x, which)
        return x

    check(through, [({id(layer)},) for layer in layers])
