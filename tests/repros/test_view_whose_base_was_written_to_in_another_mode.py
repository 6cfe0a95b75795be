"""A tensor that torch refuses to look at, a view from under `no_grad` of a tensor that is written to, ended capture."""

from typing import Any

import pytest
import torch

import firebrick


def uses(view: Any, x: Any) -> Any:
    y = x.sin()
    return view * y


def test_the_error_is_torchs_own(monkeypatch: Any) -> None:
    monkeypatch.setenv("FIREBRICK_STRICT", "1")
    x = torch.ones(2, 2, requires_grad=True)
    base = x * 1
    with torch.no_grad():
        view = base.unbind()[0]
    base.mul_(2)
    with pytest.raises(RuntimeError) as wanted:
        uses(view, x)
    with pytest.raises(RuntimeError) as caught:
        firebrick.compile(uses, backend="eager")(view, x)
    assert str(caught.value) == str(wanted.value)
