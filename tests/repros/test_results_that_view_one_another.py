"""Two results on the same memory were one object, and in inference mode views of ordinary tensors were inference tensors."""

import pytest
import torch
from torch import nn

import firebrick

LAYER = nn.Linear(3, 3)
nn.init.eye_(LAYER.weight)
nn.init.ones_(LAYER.bias)


def of_a_value(x):
    value = x * 2
    return value, value[...], value.unsqueeze(0).squeeze(0), value.view(value.shape), value.contiguous()


def of_arguments(x):
    return x.unsqueeze(0).squeeze(0), x[...], x.detach(), x.t(), torch._neg_view(x[0]), x + 1


def of_parameters(x):
    return LAYER.weight[0], LAYER.weight.t(), LAYER.bias.detach(), LAYER(x)


def seen(results):
    """What is one object with what, and how each takes part in autograd."""
    names = [id(r) for r in results]
    return [(names.index(id(r)), r.is_inference(), r.requires_grad, r.is_neg(), r.tolist()) for r in results]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [of_a_value, of_arguments, of_parameters])
def test_results_that_view(function, grad, mode):
    x = torch.tensor([[1.0, -2.0, 0.5], [4.0, 1.5, 3.0]], requires_grad=grad)
    if function is of_arguments and grad and mode is torch.enable_grad:
        pytest.skip("a negative view that wants gradients is left to eager")
    with mode():
        assert seen(firebrick.compile(function)(x)) == seen(function(x))


def test_inference_tensors_outside_inference_mode():
    with torch.inference_mode():
        x = torch.ones(2, 3)
    assert seen(firebrick.compile(of_arguments)(x)) == seen(of_arguments(x))
