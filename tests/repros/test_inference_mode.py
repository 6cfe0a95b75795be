"""Nothing was captured in inference mode, and code that entered it gave ordinary tensors."""

import torch
from torch import nn

import firebrick

X = torch.tensor([[1.0, -2.0, 0.5]])


def test_model_called_in_inference_mode():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU()).eval()
    compiled = firebrick.compile(model)
    before = firebrick.graphs_compiled()
    with torch.inference_mode():
        inner = X * 2
        for x in (X, inner):
            got = compiled(x)
            assert got.is_inference()
            torch.testing.assert_close(got, model(x))
    assert firebrick.graphs_compiled() == before + 2


def test_writes_in_inference_mode():
    def function(x):
        x.mul_(2)
        return x + 1, x[0]

    compiled = firebrick.compile(function, options={"strict": True})
    with torch.inference_mode():
        for _ in range(2):
            mine, other = X.clone(), X.clone()
            got, want = compiled(mine), function(other)
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(mine, other)
            mine += 1
            torch.testing.assert_close(got[1], mine[0])


def entered(x):
    with torch.inference_mode():
        y = x * 2
        inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        with torch.inference_mode(False):
            outside = torch.is_inference_mode_enabled(), torch.is_grad_enabled(), x + 1
    with torch.no_grad(), torch.inference_mode(False):
        recorded = torch.is_grad_enabled(), x * 3
    return y, inside, outside, recorded


@torch.inference_mode()
def decorated(x):
    return x * 3


def properties(value):
    if isinstance(value, torch.Tensor):
        return value.is_inference(), value.requires_grad, value.tolist()
    return [properties(item) for item in value] if isinstance(value, tuple) else value


def test_code_that_enters_it():
    x = X.clone().requires_grad_()
    for function in (entered, decorated, lambda x: decorated(x) + 1):
        compiled = firebrick.compile(function)
        for _ in range(2):
            with torch.no_grad() if function is not entered else torch.enable_grad():
                assert properties(compiled(x)) == properties(function(x))
