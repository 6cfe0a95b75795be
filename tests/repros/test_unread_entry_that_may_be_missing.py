"""An entry or attribute that was found, and whose value nobody looked at, had no guard: a call without it went wrong."""

from typing import Any

import pytest
import torch

import firebrick


class Box:
    pass


def default_is_kept(box: Any, x: Any) -> Any:
    box.entries.setdefault("k", 3)
    return x.sin()


def default_is_changed(box: Any, x: Any) -> Any:
    box.entries.setdefault("k", []).append(1)
    return x.sin()


def other_default(box: Any, x: Any) -> Any:
    return box.entries.get("k", 5), x.sin()


def missing_key(box: Any, x: Any) -> Any:
    try:
        box.entries["k"]
    except KeyError:
        return x.cos()
    return x.sin()


def missing_attribute(box: Any, x: Any) -> Any:
    box.wanted
    return x.sin()


def given_back(box: Any, x: Any) -> Any:
    return x.sin(), getattr(box, "wanted", None)


def box(full: bool) -> Box:
    made = Box()
    made.entries = {"k": [1]} if full else {}
    if full:
        made.wanted = 2
    return made


def outcome(function: Any, argument: Any) -> Any:
    try:
        result = str(function(argument, torch.ones(2)))
    except (AttributeError, KeyError) as error:
        result = repr(error)
    return result, vars(argument)


FUNCTIONS = [default_is_kept, default_is_changed, other_default, missing_key, missing_attribute, given_back]


@pytest.mark.parametrize("order", [(True, False, True), (False, True, False)])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_other_calls_have_it_or_not(function: Any, order: Any) -> None:
    compiled = firebrick.compile(function, backend="eager")
    for full in order:
        assert outcome(compiled, box(full)) == outcome(function, box(full))
