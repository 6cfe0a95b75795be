"""Gradients of gradients were zeros where the backward needs values that the forward computed."""

import pytest
import torch

import firebrick


def function(x):
    return (x.sin() * x).sum()


def test_hessian():
    with pytest.raises(RuntimeError, match="no gradients of its gradients"):
        torch.autograd.functional.hessian(firebrick.compile(function), torch.arange(3.0))


def test_second_gradient():
    x = torch.arange(3.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(firebrick.compile(function)(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no gradients of its gradients"):
        torch.autograd.grad(gradient.sum(), x, allow_unused=True)
