"""Tensors of derived classes: what `__torch_function__` does is captured, results have the class, guards tell it."""

from __future__ import annotations

from typing import Any

import compiling
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

import firebrick

X = torch.tensor([1.0, -2.0, 0.5])
SEEN: list[str] = []


class Plain(torch.Tensor):
    """Only has a name."""


class Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.sin else result


class Unit(torch.Tensor):
    """Carries an attribute through calls."""

    @staticmethod
    def __new__(cls, data: Any, unit: Any = None) -> Any:
        made = torch.as_tensor(data).as_subclass(cls)
        made.unit = unit
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        units = [arg.unit for arg in args if isinstance(arg, Unit)]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not isinstance(result, Unit):
            result = result.as_subclass(cls)
            result.unit = units[0] if units else None
        return result

    def twice(self) -> Any:
        return self * 2

    @property
    def half(self) -> Any:
        return self / 2

    def __and__(self, other: Any) -> Any:
        return self.unit, other


class Unasked(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Recording(torch.Tensor):
    """Keeps the names of the functions that it was asked for."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        SEEN.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)


class Pair(torch.Tensor):
    """A wrapper of two tensors, by `__torch_dispatch__`."""

    @staticmethod
    def __new__(cls, a: Any, b: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def part(name: str) -> Any:
            return func(*tree_map_only(Pair, lambda pair: getattr(pair, name), args), **(kwargs or {}))

        first, second = part("a"), part("b")
        made = Pair(first, second) if isinstance(first, torch.Tensor) else first
        return return_and_correct_aliasing(func, args, kwargs or {}, made)


def facts(value: Any) -> Any:
    """Class, numbers and attributes of results, to compare."""
    if isinstance(value, Pair):
        return Pair, facts(value.a), facts(value.b)
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            own = [(name, facts(item)) for name, item in vars(value).items()]
            return type(value), value.tolist(), value.dtype, value.requires_grad, own
    return [facts(item) for item in value] if isinstance(value, (list, tuple)) else value


def check(function: Any, *make: Any, graphs: int | None = 1, breaks: int | None = 0) -> Any:
    """Plain and compiled on new arguments, twice."""
    compiled = compiling.Compiled(function)
    for _ in range(2):
        mine, other = [one() for one in make], [one() for one in make]
        want, got = compiling.outcome(function, other), compiling.outcome(compiled, mine)
        assert facts(got) == facts(want)
        assert facts(mine) == facts(other)
    assert graphs is None or len(compiled.graphs) == graphs, compiled.graphs
    assert breaks is None or len(compiled.breaks) == breaks, [frame.break_ for frame in compiled.frames]
    return compiled


def plain() -> Any:
    return X.clone()


def instance(cls: Any) -> Any:
    return lambda: Unit(X.clone(), "m") if cls is Unit else X.clone().as_subclass(cls)


def arithmetic(x: Any) -> Any:
    return torch.sin(x) + 1, x.sin(), x * torch.ones(3), -x, x[0], 2 - x, x > 0, 1 < x, x / 2, abs(x), x**2


def several(x: Any, y: Any) -> Any:
    return torch.add(x, y), y + x, torch.cat([y, x]), torch.stack([x, y]).sum(), torch.where(x > 0, x, y)


def methods(x: Any) -> Any:
    return (
        x.sum(),
        x.view(3, 1),
        x.numel(),
        x.T,
        x.clone(),
        x.to(torch.float64),
        x.shape,
        len(x),
        x.max(0),
        x.dtype,
        x.split(2),
    )


def in_place(x: Any) -> Any:
    y = x.add_(1)
    x[0] = 5
    x += 2
    return x, y is x


CLASSES = [Plain, Doubling, Unit, Unasked]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("function", [arithmetic, methods, in_place])
def test_operations(function: Any, cls: Any) -> None:
    check(function, instance(cls))


@pytest.mark.parametrize("cls", CLASSES)
def test_operations_with_plain_tensors(cls: Any) -> None:
    check(several, instance(cls), plain)


def test_attributes_methods_and_operators_of_the_class() -> None:
    def function(x: Any) -> Any:
        y = torch.sin(x) * 2
        x.unit = "km"
        return (
            y,
            y.unit,
            x.twice(),
            x.half,
            x & 3,
            isinstance(y, torch.Tensor),
            isinstance(y, Unit),
            type(y),
            torch.is_tensor(y),
        )

    check(function, instance(Unit))


def test_made_inside() -> None:
    def function(x: Any) -> Any:
        y = x.as_subclass(Doubling)
        made = Unit(x, "s")
        made.other = y
        again = torch.Tensor._make_subclass(Plain, x + 1)
        return (
            torch.sin(y),
            torch.sin(y.as_subclass(torch.Tensor)),
            torch.cos(made),
            made,
            again,
            made.as_subclass(Unit) is made,
        )

    check(function, plain)


def test_module_attributes() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.scale, self.unit = X.as_subclass(Doubling), Unit(X, "kg")

        def forward(self, x: Any) -> Any:
            return torch.sin(x * self.scale) + self.weight, x * self.unit

    check(Holder(), plain)


def test_functions_that_the_class_is_asked_for() -> None:
    def function(x: Any) -> Any:
        before = len(SEEN)
        _ = x + 1, 1 - x, x.sin(), x.shape, x.T, x[0], torch.nn.functional.relu(x), x == 1, -x, x @ x
        return SEEN[before:]

    SEEN.clear()
    want = function(X.as_subclass(Recording))
    SEEN.clear()
    assert compiling.Compiled(function)(X.as_subclass(Recording)) == want
    assert len(want) == 10


def test_classes_that_refuse() -> None:
    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return NotImplemented if func is torch.cos else super().__torch_function__(func, types, args, kwargs)

    check(lambda x: torch.sin(x), instance(Refusing))
    check(lambda x: torch.cos(x), instance(Refusing), graphs=None, breaks=None)


def test_guards_tell_the_class() -> None:
    compiled = compiling.Compiled(lambda x: torch.sin(x) * 1)
    for _ in range(2):
        for make in (plain, instance(Doubling), instance(Unit), instance(Plain), lambda: Unit(X, "other")):
            assert facts(compiled(make())) == facts(torch.sin(make()) * 1)
    assert len(compiled.graphs) == 4


def test_a_changed_torch_function_is_seen() -> None:
    class Changing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return super().__torch_function__(func, types, args, kwargs)

    def other(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return "other"

    def function(x: Any) -> Any:
        return torch.sin(x)

    def change() -> None:
        Changing.__torch_function__ = classmethod(other)

    compiling.check_change(function, change, X.as_subclass(Changing))


@pytest.mark.parametrize("cls", [Plain, Doubling, Unit])
def test_training_on_kernels(cls: Any) -> None:
    def function(x: Any, w: Any) -> Any:
        return (torch.sin(x) * w).sum(), x * 2

    compiled = firebrick.compile(function, options={"strict": True})
    grads = []
    for one in (function, compiled):
        x = instance(cls)().requires_grad_()
        w = torch.ones(3, requires_grad=True)
        loss, other = one(x, w)
        assert type(loss) is type(other) is cls
        (loss + other.sum()).backward()
        grads.append(torch.stack([x.grad.as_subclass(torch.Tensor), w.grad]))
    torch.testing.assert_close(*grads)


def test_wrappers_by_dispatch_are_plain_python() -> None:
    def function(x: Any) -> Any:
        return x * 2 + 1, torch.sin(x)

    def made(x: Any) -> Any:
        pair = Pair(x, x + 1)
        return pair * 2, pair.a

    check(function, lambda: Pair(X.clone(), X + 1), graphs=None, breaks=None)
    check(made, plain, graphs=None, breaks=None)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.tolist(),
        lambda x: [row for row in x],
        lambda x: float(x.sum()),
        lambda x: x + 1 if x.sum() > 0 else x - 1,
        lambda x: str(x),
        lambda x: x.requires_grad_().requires_grad,
        lambda x: (x.is_leaf, x.grad, x.data),
        lambda x: Plain([1.0, 2.0]),
        lambda x: 3 in x,
    ],
)
def test_what_breaks_is_plain_python(function: Any) -> None:
    check(function, instance(Doubling), graphs=None, breaks=None)


def test_switched_off_by_the_program() -> None:
    def function(x: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            y = torch.sin(x)
            inside = torch._C._is_torch_function_enabled()
        return y, torch.sin(x), inside, torch._C._is_torch_function_enabled()

    check(function, instance(Doubling))
    with torch._C.DisableTorchFunctionSubclass():
        check(function, instance(Doubling))
