"""Attributes in `__dict__` under the name of a property, and classes with their own `__setattr__`, fail to be rebuilt.

A read-only property raised an AttributeError after the graph, and a setter ran a second time on what it had stored.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import firebrick


class ReadOnly:
    def __init__(self, t: Any) -> None:
        self.__dict__["value"] = t

    @property
    def value(self) -> Any:
        return self.__dict__["value"]


class Scaled:
    def __init__(self, t: Any) -> None:
        self.value = t

    @property
    def value(self) -> Any:
        return self.__dict__["value"]

    @value.setter
    def value(self, t: Any) -> None:
        self.__dict__["value"] = t * 7


class Descriptor:
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return instance.__dict__["value"]

    def __set__(self, instance: Any, t: Any) -> None:
        raise AttributeError("value")


class Described(ReadOnly):
    value: Any = Descriptor()


class Renaming:
    def __init__(self, t: Any) -> None:
        self.value = t

    def __setattr__(self, name: str, t: Any) -> None:
        object.__setattr__(self, name, t * 3)

    def __delattr__(self, name: str) -> None:
        object.__setattr__(self, "gone", name)


class Hidden(ReadOnly):
    def __getattribute__(self, name: str) -> Any:
        return {} if name == "__dict__" else object.__getattribute__(self, name)

    def __init__(self, t: Any) -> None:
        object.__getattribute__(self, "__dict__")["value"] = t


class Slots:
    __slots__ = ("value",)

    def __init__(self, t: Any) -> None:
        object.__setattr__(self, "value", t)

    def __setattr__(self, name: str, t: Any) -> None:
        raise AttributeError(name)


class Failure(Exception):
    def __init__(self, t: Any) -> None:
        super().__init__("failure")
        object.__setattr__(self, "note", t)
        self.__dict__["value"] = t

    @property
    def value(self) -> Any:
        return self.__dict__["value"]

    def __setattr__(self, name: str, t: Any) -> None:
        raise AttributeError(name)


CLASSES = [ReadOnly, Scaled, Described, Renaming, Slots, Failure]
X = torch.ones(2)


def state(obj: Any) -> Any:
    held = object.__getattribute__(obj, "__dict__") if hasattr(obj, "__dict__") else {"value": obj.value}
    return {name: t.tolist() if isinstance(t, torch.Tensor) else t for name, t in held.items()}


@pytest.mark.parametrize("cls", [*CLASSES, Hidden])
def test_objects_that_captured_code_makes(cls: Any) -> None:
    def make(x: Any) -> Any:
        y = x * 2
        made = cls(y)
        return made, y + 1

    for _ in range(2):
        assert state(firebrick.compile(make, backend="eager")(X)[0]) == state(make(X)[0])


def by_its_dict(obj: Any, x: Any) -> Any:
    obj.__dict__["value"] = obj.value * x
    return x + 1


def by_its_setter(obj: Any, x: Any) -> Any:
    obj.value = x * 2
    obj.value = obj.value + 1
    return obj.value + 1


def deleted(obj: Any, x: Any) -> Any:
    obj.__dict__["other"] = obj.__dict__.pop("value") + x
    return x + 1


def deleted_by_its_method(obj: Any, x: Any) -> Any:
    del obj.value
    return x + 1


ROWS = [
    *((cls, function) for cls in (ReadOnly, Scaled, Described, Renaming) for function in (by_its_dict, deleted)),
    (Scaled, by_its_setter), (Renaming, by_its_setter), (Renaming, deleted_by_its_method),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "function"), ROWS, ids=lambda part: part.__name__)
def test_objects_that_captured_code_changes(cls: Any, function: Any) -> None:
    compiled = firebrick.compile(function, backend="eager")
    for _ in range(2):
        one, other = cls(X * 3), cls(X * 3)
        assert torch.equal(compiled(one, X), function(other, X))
        assert state(one) == state(other)
        assert list(state(one)) == list(state(other))
