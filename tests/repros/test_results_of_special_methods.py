"""Special methods that give what they must not raise as in plain Python: `__bool__` that gives a number was taken."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

import firebrick

USES: dict[str, list[Any]] = {
    "__bool__": [bool, operator.not_, lambda o: 1 if o else 2, lambda o: any([o]), lambda o: o and 3, lambda o: [0 for _ in [0] if o]],
    "__len__": [len, bool, lambda o: 1 if o else 2],
    "__index__": [operator.index, range, lambda o: [1, 2, 3][o]],
    "__hash__": [hash, lambda o: {o: 1}[o], lambda o: o in {o}],
    "__contains__": [lambda o: 3 in o],
    "__iter__": [list, lambda o: [item for item in o]],
    "__str__": [str, lambda o: f"{o}", lambda o: f"{o!s:>3}"],
    "__repr__": [repr, str, lambda o: f"{o!r}"],
    "__format__": [format, lambda o: f"{o:3}"],
    "__int__": [int], "__float__": [float], "__complex__": [complex],
}  # fmt: skip
RESULTS = ["a", 1, -1, 0, None, 2.5, [], True, 10**30, torch.ones(1), torch.tensor(3)]


def told(function: Any, *args: Any) -> Any:
    try:
        result = function(*args)
    except Exception as error:
        return type(error), str(error)
    return [part.tolist() if isinstance(part, torch.Tensor) else repr(part) for part in result]


def differing(method: Any, use: Any, name: str) -> str | None:
    cls = type("Odd", (), {name: method})

    def call(x: Any, obj: Any) -> Any:
        return x * 2, use(obj)

    def make(x: Any) -> Any:
        return x * 2, use(cls())

    for function, args in ((call, (torch.ones(1), cls())), (make, (torch.ones(1),))):
        want, got = told(function, *args), told(firebrick.compile(function, backend="eager"), *args)
        if want != got:
            return f"{want} but {got}"
    return None


@pytest.mark.parametrize("name", USES)
@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_what_they_give_is_checked(name: str) -> None:
    rows = [(result, use) for result in RESULTS for use in USES[name]]
    bad = [(result, use, found) for result, use in rows if (found := differing(lambda *_, r=result: r, use, name))]
    assert not bad


@pytest.mark.parametrize("name", ["__bool__", "__len__", "__hash__", "__iter__", "__contains__", "__index__"])
def test_one_that_is_none(name: str) -> None:
    assert not [found for use in USES[name] if (found := differing(None, use, name))]


def test_ones_that_are_no_functions() -> None:
    assert not differing(staticmethod(lambda: 3), bool, "__bool__")
    assert not differing(classmethod(lambda cls: True), bool, "__bool__")
