"""A lookup that nothing reads, in a graph with other results: these could not be unpacked."""

import pytest
import torch

import firebrick

TABLE = torch.randn(9, 8)


@pytest.mark.parametrize("backend", ["eager", "firebrick"])
@pytest.mark.parametrize("wanted", [False, True])
def test_results(backend, wanted):
    def function(x, places):
        torch.nn.functional.embedding(places, TABLE)
        return x.sin(), x + 1

    x = torch.ones(3, requires_grad=wanted)
    compiled, places = firebrick.compile(function, backend=backend), torch.tensor([1, 2])
    torch.testing.assert_close(compiled(x, places), function(x, places))
