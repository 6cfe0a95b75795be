"""What `__new__` gives is initialized by its own class, which may be a derived one."""

from __future__ import annotations

from typing import Any

import torch

from capture.compiling import check


class Base:
    def __new__(cls, value: Any) -> Any:
        return object.__new__(Derived if cls is Base else cls)

    def __init__(self, value: Any) -> None:
        self.value = value


class Derived(Base):
    def __init__(self, value: Any) -> None:
        self.value = value * 3


def test_the_class_of_the_instance_initializes_it() -> None:
    check(lambda x: Base(x).value + 1, torch.ones(2))
