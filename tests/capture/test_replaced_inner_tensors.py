"""Tensors of classes whose `__torch_dispatch__` replaces what is in them: what is in one that was given is put into it
behind the graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import firebrick

aten = torch.ops.aten
OUT_OF_PLACE = {aten.add_.Tensor: aten.add.Tensor, aten.mul_.Tensor: aten.mul.Tensor}


class Swapping(torch.Tensor):
    """Writes replace the tensor in it; each call replaces a tensor that counts them."""

    @staticmethod
    def __new__(cls, data, calls=None, requires_grad=False):
        options = {"strides": data.stride(), "dtype": data.dtype, "device": data.device}
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, requires_grad=requires_grad, **options)

    def __init__(self, data, calls=None, requires_grad=False):
        self.data_in_it = data
        self.calls = torch.zeros((), dtype=torch.int64) if calls is None else calls

    def __tensor_flatten__(self):
        return ["data_in_it", "calls"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Swapping(inner["data_in_it"], inner["calls"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain, named = tree_map(lambda t: t.data_in_it if isinstance(t, cls) else t, (args, kwargs or {}))
        for one in tree_leaves(args) if func is not aten.detach.default else ():
            if isinstance(one, cls):
                one.calls = one.calls + 1
        if func in OUT_OF_PLACE:
            args[0].data_in_it = OUT_OF_PLACE[func](*plain, **named)
            return args[0]
        return tree_map(lambda t: cls(t) if isinstance(t, torch.Tensor) else t, func(*plain, **named))


class Ticking(Swapping):
    """Counts calls in a number of Python."""

    ticks = 0

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        for one in tree_leaves(args):
            if isinstance(one, cls):
                one.ticks += 1
        plain, named = tree_map(lambda t: t.data_in_it if isinstance(t, cls) else t, (args, kwargs or {}))
        return func(*plain, **named)

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Ticking(inner["data_in_it"], inner["calls"])


def written(s, x):
    s.add_(x)
    return s * 2


def written_often(s, x):
    s.add_(x)
    s.mul_(3)
    y = s.sin()
    s.add_(y)
    return y


def only_read(s, x):
    return (s * x).sin()


def beside_a_view(s, x):
    view = s.t()
    s.add_(x)
    return view * 1


def read_before_and_behind(s, x):
    before = s.data_in_it
    s.add_(x)
    return before + s.data_in_it


def returned(s, x):
    s.add_(x)
    return s.data_in_it, s


def in_a_list(s, x):
    for one in [s, Swapping(x)]:
        one.mul_(2)
        one.add_(x)
    return s.cos()


def step(s, x):
    with torch.no_grad():
        s.add_(x)
        s.mul_(0.5)
    return s.sin()


FUNCTIONS = written, written_often, only_read, beside_a_view, read_before_and_behind, returned, in_a_list, step


def outcome(function, parameter):
    """What two calls give, and leave in the tensor."""
    torch.manual_seed(0)
    s, x = Swapping(torch.randn(3, 3)), torch.randn(3, 3)
    s = nn.Parameter(s) if parameter else s
    first = s.data_in_it
    results = [function(s, x), function(s, x)]
    plain = tree_map(lambda t: t.data_in_it.detach() if isinstance(t, Swapping) else t.detach(), results)
    state = s._version, s.requires_grad, s.data_in_it.requires_grad, s.data_in_it is first, s.is_leaf
    return [*tree_leaves(plain), first, s.data_in_it, s.calls], state


@pytest.mark.parametrize("backend", ["eager", "firebrick"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_graph(function, backend):
    parameter = function is step
    got, state = outcome(firebrick.compile(function, backend=backend, fullgraph=True), parameter)
    wanted, wanted_state = outcome(function, parameter)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)
    assert state == wanted_state


def test_what_is_returned_is_what_is_in_it():
    s = Swapping(torch.ones(3))
    inner, outer = firebrick.compile(returned, fullgraph=True)(s, torch.ones(3))
    assert outer is s
    assert inner is s.data_in_it


def test_numbers_of_python_are_counted():
    def counted(call):
        one = Ticking(torch.ones(3))
        call(one, torch.ones(3))
        return one.ticks

    assert counted(firebrick.compile(only_read)) == counted(only_read) == 1
