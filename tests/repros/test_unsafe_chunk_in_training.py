"""A chunk of what the backward needs stood for all of it: `unsafe_chunk` gives results that have memory of their own."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("divide", [torch.unsafe_chunk, torch.unsafe_split, torch.chunk])
@pytest.mark.parametrize("position", [0, 1])
def test_a_part_of_what_is_saved_is_returned(divide, position):
    layer = torch.nn.Linear(6, 4)

    def function(x):
        doubled = x * 2
        return divide(doubled, 2)[position], layer(doubled)

    x = torch.randn(6)
    gradients = []
    for run in (function, firebrick.compile(function)):
        layer.zero_grad()
        part, result = run(x)
        result.square().sum().backward()
        gradients.append((part.detach().clone(), layer.weight.grad.clone()))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
