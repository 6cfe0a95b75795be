"""Where Python asks the metaclass of a class made inside, the program's code runs, and no stand-in raises for it."""

from __future__ import annotations

from typing import Any

import torch

from capture.compiling import check


def shown(x: Any) -> Any:
    class Meta(type):
        def __repr__(cls) -> str:
            return "shown"

        def __instancecheck__(cls, instance: Any) -> bool:
            return bool(instance == 3)

    class Local(metaclass=Meta):
        pass

    try:
        return x + 1, repr(Local), isinstance(3, Local)
    except RuntimeError:
        return x


def test_it_answers() -> None:
    check(shown, torch.ones(2), graphs=None, breaks=None)
