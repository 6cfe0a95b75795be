"""A function decorated with a mode in captured code left the mode too early, or not at all, when it called itself."""

import pytest
import torch

import firebrick


def modes():
    return torch.is_inference_mode_enabled(), torch.is_grad_enabled()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.no_grad(), torch.inference_mode()])
def test_every_call_has_its_own_mode(mode):
    def f(x):
        @mode
        def called(n):
            return (modes(), called(n - 1), modes()) if n else modes()

        return called(2), modes(), (x + 1).dim()

    assert firebrick.compile(f, backend="eager")(torch.ones(2)) == f(torch.ones(2))
