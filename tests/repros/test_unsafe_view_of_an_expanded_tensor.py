"""A fake `_unsafe_view` is dense, eager's looks at memory: kron of an expanded tensor read beyond its elements."""

import pytest
import torch

import firebrick

FUNCTIONS = {
    "kron": lambda x, y: torch.kron(x, y),
    "view": lambda x, y: torch.ops.aten._unsafe_view(x, [5, 1, 5, 1]) * y[:, None],
    "written": lambda x, y: torch.ops.aten._unsafe_view(x * y[:5, :5], [25]).add_(1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_unsafe_view_of_an_expanded_tensor(name):
    fn = FUNCTIONS[name]
    x, y = torch.arange(1.0, 6.0).expand(5, 5), torch.arange(200.0).reshape(10, 20)
    with torch.no_grad():
        torch.testing.assert_close(firebrick.compile(fn)(x, y), fn(x, y))
