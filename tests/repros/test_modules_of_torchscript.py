"""Compiling a module of TorchScript raised AttributeError."""

import pytest
import torch
from torch import nn

import firebrick

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(2, 3))])
def test_module(make):
    module = make(nn.Sequential(nn.Linear(3, 4), nn.Tanh()))
    gradients = []
    for call in (module, firebrick.compile(module)):
        x = torch.ones(2, 3, requires_grad=True)
        module.zero_grad()
        call(x).sum().backward()
        gradients.append((x.grad, *[p.grad.clone() for p in module.parameters()]))
    torch.testing.assert_close(gradients[1], gradients[0])
