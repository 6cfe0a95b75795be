"""A value written to an object inside `torch.func.jvp` stays wrapped after it; `tests.fuzz --seeds 20012455`."""

from types import SimpleNamespace

import pytest
import torch

import firebrick
from firebrick.report import FirebrickWarning


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


class Tripled(torch.nn.Module):
    """Keeps three times what it is given, as a plain attribute."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value * 3 if isinstance(value, torch.Tensor) else value)


@pytest.mark.filterwarnings(f"ignore::{FirebrickWarning.__module__}.{FirebrickWarning.__name__}")
def test_an_attribute_of_a_module_that_is_of_an_ended_transform():
    """As a constant of a graph it was asked for its memory, which it has none of: `tests.fuzz --seeds 41003530`."""

    def scaled(module, by, weight, primal):
        module.value = module.value + by
        return primal * 2, weight * 2

    def drive(fn):
        module, by, weight = Tripled(torch.ones(3)), torch.ones(3), torch.ones(3, requires_grad=True)
        torch.func.jvp(lambda primal: fn(module, by, weight, primal)[0], (by,), (by,))
        result = fn(module, by, weight, by)[1]
        return module.value, result, *torch.autograd.grad(result.sum(), weight)

    for ours, eager in zip(drive(firebrick.compile(scaled, options={"strict": False})), drive(scaled), strict=True):
        assert torch.equal(ours, eager)
