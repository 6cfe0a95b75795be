"""`torch.jit.isinstance` is a question about classes: it broke graphs."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, Union, get_args, get_origin  # noqa: UP035  as TorchScript spells them

import pytest
import torch

import firebrick

X = torch.ones(3)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (X, torch.Tensor),
        (3, (torch.Tensor, int)),
        ([X, X], List[torch.Tensor]),  # noqa: UP006
        ([X, 1], List[torch.Tensor]),  # noqa: UP006
        ({"a": X}, Dict[str, torch.Tensor]),  # noqa: UP006
        ((X, 1), Tuple[torch.Tensor, int]),  # noqa: UP006
        (None, Optional[torch.Tensor]),
        (X, Optional[torch.Tensor]),
        ("a", Optional[torch.Tensor]),
        ([X], list[torch.Tensor]),
    ],
)
def test_torchscript_s_isinstance(value: Any, kind: Any) -> None:
    def f(x: torch.Tensor, value: Any) -> torch.Tensor:
        return x + 1 if torch.jit.isinstance(value, kind) else x * 2

    assert firebrick.compile(f, fullgraph=True)(X, value).equal(f(X, value))


ALIAS: Any = Optional[torch.Tensor]


def test_parts_of_an_alias_that_may_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + len(get_args(ALIAS)) * (2 if get_origin(ALIAS) is list else 3)

    compiled = firebrick.compile(f, fullgraph=True)
    assert compiled(X).equal(f(X))
    monkeypatch.setitem(globals(), "ALIAS", List[torch.Tensor])  # noqa: UP006
    assert compiled(X).equal(f(X))


def test_the_origin_of_an_alias_is_no_method() -> None:
    # `typing.Union` can be called, and was taken for a method of the alias
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        return x + 1, ALIAS.__origin__ is Union, get_origin(ALIAS) is ALIAS.__origin__, ALIAS.__origin__

    made = firebrick.compile(f, fullgraph=True)(X)
    assert made[1:] == (True, True, Union)
