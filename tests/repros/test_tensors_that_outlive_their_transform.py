"""A value written to an object inside `torch.func.jvp` stays wrapped after it; `tests.fuzz --seeds 20012455`."""

from types import SimpleNamespace

import torch

import firebrick


def scaled(holder, by, primal):
    holder.value = holder.value * by
    return (primal * primal).sin()


def test_a_later_call_takes_a_tensor_of_an_ended_transform():
    def drive(fn):
        torch.manual_seed(0)
        holder, by, ones = SimpleNamespace(value=torch.randn(3, 4)), torch.randn(3, 4), torch.ones(3, 4)
        results = [*torch.func.jvp(lambda primal: fn(holder, by, primal), (ones,), (ones,))]
        results += [fn(holder, by, ones), fn(holder, by, ones)]
        return [*results, holder.value * 1]

    for ours, eager in zip(drive(firebrick.compile(scaled)), drive(scaled), strict=True):
        assert torch.equal(ours, eager)
