"""A returned view of an argument that starts inside of its storage began at twice the offset."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[0],
        lambda x: x[1:, 1:],
        lambda x: torch.as_strided(x, (2,), (1,), 8),
        lambda x: x.view(torch.int32),
    ],
)
def test_view_begins_where_it_does_in_eager(view):
    x = torch.arange(24.0).reshape(4, 6)[1:, 1::2]
    made = firebrick.compile(view)(x)
    assert torch.equal(made, view(x))
    assert made.data_ptr() == view(x).data_ptr()
