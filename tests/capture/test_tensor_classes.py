"""Objects and modes that take part in calls of torch, attributes that tensors carry, and numpy's scalars."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import compiling
import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import firebrick

X = torch.tensor([1.0, -2.0, 0.5])


class Scaled:
    """A tensor with a factor, by `__torch_function__`."""

    def __init__(self, value: Any, factor: float) -> None:
        self.value, self.factor = value, factor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.cos:
            return NotImplemented
        plain = [arg.value * arg.factor if isinstance(arg, cls) else arg for arg in args]
        return cls(func(*plain, **(kwargs or {})), 1.0)


class Special(Scaled):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func.__name__, len(types)


def test_objects_decide_what_calls_do() -> None:
    def function(x: Any) -> Any:
        made = torch.add(Scaled(x, 2.0), 1)
        return torch.sin(made).value, made.factor, torch.mul(Special(x, 1.0), made), torch.is_tensor(made)

    with torch.no_grad():
        compiling.check(function, X)


def test_objects_that_do_not_implement_a_call_raise() -> None:
    def function(x: Any) -> Any:
        return torch.cos(Scaled(x, 2.0))

    with torch.no_grad():
        compiling.check(function, X, graphs=None, breaks=None)


class Doubling(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {})) * (2 if func is torch.sin else 1)


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def calls(x: Any) -> Any:
    return torch.sin(x) + torch.ones(3)


@pytest.mark.parametrize("mode", [Doubling, Counting])
def test_modes_see_the_calls_of_plain_python(mode: Any) -> None:
    compiled = compiling.Compiled(calls)
    compiled(X)
    with mode() as plain:
        want = calls(X)
    for _ in range(2):
        with mode() as seen:
            got = compiled(X)
        assert torch.equal(got, want)
        assert seen.seen == plain.seen


def test_mode_entered_inside() -> None:
    def function(x: Any) -> Any:
        with Doubling() as mode:
            y = torch.sin(x)
        return y, torch.sin(x), list(mode.seen)

    compiling.check(function, X, graphs=None, breaks=None)


def test_device_mode_is_captured() -> None:
    with torch.device("cpu"):
        compiling.check(calls, X)


def test_contexts_that_do_nothing_here() -> None:
    def function(x: Any) -> Any:
        with torch.profiler.record_function("one"), torch._C.DisableTorchFunctionSubclass():
            y = x + 1
        with torch.autograd.profiler.record_function("two"):
            return y * 2

    compiling.check(function, X)


@torch.autocast("cpu", dtype=torch.bfloat16)
@torch.no_grad()
@torch.set_grad_enabled(True)
@torch.profiler.record_function("cast")
def cast(x: Any) -> Any:
    return x @ x


def test_decorated_functions_are_captured() -> None:
    compiling.check(lambda x: (cast(x), cast(x) + 1, torch.is_autocast_enabled("cpu")), torch.randn(3, 3))


def test_nested_autocast() -> None:
    def function(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = x @ x
            with torch.autocast("cpu", enabled=False):
                b = x @ x
            with torch.autocast("cpu", dtype=torch.float16), torch.no_grad():
                c = x.detach() @ x.detach()
            d, inside = a @ x, torch.get_autocast_dtype("cpu")
        return a, b, c, d, x @ x, inside, torch.is_autocast_enabled("cpu")

    compiling.check(function, torch.randn(3, 3).requires_grad_())


NOT_RECORDED, HALF = torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16)


def test_contexts_made_elsewhere() -> None:
    def function(x: Any) -> Any:
        with NOT_RECORDED as nothing, HALF as itself:
            y = x @ x
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.autocast("cpu", dtype=torch.float16))
            z = x @ x
        return y, z, x @ x, nothing, itself is HALF, torch.is_grad_enabled()

    compiling.check(function, torch.randn(3, 3).requires_grad_())


def test_break_in_contexts_made_elsewhere() -> None:
    def function(x: Any) -> Any:
        with NOT_RECORDED, HALF:
            y = x @ x
            firebrick.graph_break()
            z = y @ x
        return y, z, x @ x, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    compiling.check(function, torch.randn(3, 3).requires_grad_(), graphs=3, breaks=2)


def test_profilers_inside_see_the_program() -> None:
    def function(x: Any) -> Any:
        with torch.autograd.profiler.profile() as seen:
            y = x * 2
            with torch.profiler.record_function("named"):
                y = y + 1
        return y, len(seen.function_events) > 0

    compiling.check(function, X, graphs=None, breaks=None)


@torch.inference_mode()
def inferred(x: Any) -> Any:
    return x * 2


def test_inference_mode_inside_is_in_the_graph() -> None:
    def function(x: Any) -> Any:
        fresh = (x * 3).is_inference()
        return inferred(x) + 1, x.is_inference(), fresh

    compiling.check(function, X, graphs=1, breaks=0)
    with torch.inference_mode():
        compiling.check(function, X, graphs=1, breaks=0)


# -- attributes of tensors --------------------------------------------------------------------------


def gradient_is_set(x: Any) -> Any:
    x.grad = torch.ones_like(x) * 2
    return x.grad + 1


def gradient_is_dropped(x: Any) -> Any:
    x.grad = None
    return x * 2, x.grad


def tag_of_an_argument(x: Any) -> Any:
    x.scale = 3
    return x * x.scale, hasattr(x, "scale"), hasattr(x, "other")


def tag_of_a_result(x: Any) -> Any:
    y = x + 1
    y.scale = x * 2
    return y, y.scale + 1


@pytest.mark.parametrize("function", [gradient_is_set, gradient_is_dropped, tag_of_an_argument, tag_of_a_result])
def test_attributes_of_tensors(function: Any) -> None:
    with torch.no_grad():
        compiled = compiling.check(function, X)
        mine, other = X.clone(), X.clone()
        got, want = compiled(mine), function(other)
    assert vars(mine) == vars(other)
    assert (mine.grad is None) is (other.grad is None)
    if isinstance(want, tuple) and hasattr(want[0], "scale"):
        assert torch.equal(got[0].scale, want[0].scale)


def test_gradient_that_does_not_fit_raises() -> None:
    def function(x: Any) -> Any:
        x.grad = torch.ones(7)
        return x

    compiling.check(function, X, graphs=None, breaks=None)


def test_requires_grad_that_is_so_already() -> None:
    def function(x: Any) -> Any:
        x.requires_grad = False
        return x.requires_grad_(False) * 2

    compiled = compiling.check(function, X)
    with pytest.raises(RuntimeError, match="leaf"):
        compiled((X.clone().requires_grad_()) * 1)


def test_parameters_and_modules_made_inside() -> None:
    def function(x: Any) -> Any:
        layer = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
        weight = nn.Parameter(torch.ones(3), requires_grad=False)
        return layer(x) * 0 + (x * weight).sum(), isinstance(weight, nn.Parameter), len(list(layer.parameters()))

    with torch.no_grad():
        compiling.check(function, X)


def test_parameter_that_leaves() -> None:
    def function(x: Any) -> Any:
        weight = nn.Parameter(x + 1)
        return weight, weight, weight.requires_grad

    with torch.no_grad():
        first, second, _ = compiling.check(function, X)(X)
    assert first is second
    assert isinstance(first, nn.Parameter)
    assert first.requires_grad


def test_lazy_module() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.LazyLinear(2), nn.ReLU())
    compiled = compiling.Compiled(copy.deepcopy(plain))
    for _ in range(2):
        torch.manual_seed(1)
        want = plain(X)
        torch.manual_seed(1)
        assert torch.equal(compiled(X), want)


# -- numpy -----------------------------------------------------------------------------------------


def test_numpy_on_constants() -> None:
    def function(x: Any) -> Any:
        size = int(np.prod([2, x.shape[0]])) + int(np.ceil(np.log2(x.shape[0])))
        y = x * np.pi / np.sqrt(x.shape[0]) + np.float32(2.5) * x
        return y * size, np.float64(2) + 1, type(np.float32(1) * 2), np.int64(3), float(np.exp(1.0))

    compiling.check(function, X)


@pytest.mark.parametrize("given", [np.arange(6.0), np.arange(6, dtype=np.int32)])
def test_arrays_stay_numpys(given: Any) -> None:
    def function(a: Any) -> Any:
        b = np.sin(a.reshape(2, 3)) * 2 + np.sum(a)
        return b.dtype.name, torch.from_numpy(np.ascontiguousarray(b.T)) + 1, float(a.mean())

    compiling.check(function, given, graphs=None, breaks=None)


def test_tensor_as_array() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        a = y.numpy()
        a[0] = 7.0
        return y + torch.from_numpy(np.sqrt(np.abs(a)))

    compiling.check(function, X, graphs=None, breaks=None)
