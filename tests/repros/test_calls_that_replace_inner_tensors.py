"""A `__torch_dispatch__` may replace a tensor in what it only reads, to count its calls say: that was lost, silently."""

import torch
from torch.utils._pytree import tree_map

import firebrick


class Counting(torch.Tensor):
    @staticmethod
    def __new__(cls, data, calls):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, strides=data.stride(), dtype=data.dtype)

    def __init__(self, data, calls):
        self.plain, self.calls = data, calls

    def __tensor_flatten__(self):
        return ["plain", "calls"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Counting(inner["plain"], inner["calls"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args[0].calls = args[0].calls + 1
        return func(*tree_map(lambda t: t.plain if isinstance(t, cls) else t, args), **(kwargs or {}))


def test_calls_that_replace_inner_tensors():
    counting = Counting(torch.ones(3), torch.zeros(()))
    compiled = firebrick.compile(lambda t: t.sin() + t.cos())
    compiled(counting)
    compiled(counting)
    assert counting.calls == 4
