"""logsigmoid of a transposed tensor had its strides; eager's is contiguous, which `as_strided` of it shows."""

import pytest
import torch
from torch.nn import functional as F

import firebrick


def _first_two(x):
    y = F.logsigmoid(x)
    return y, torch.as_strided(y, (2,), (1,))


@pytest.mark.parametrize("trained", [False, True])
def test_it_is_contiguous(trained):
    x = torch.linspace(-2, 2, 35).view(5, 7).t().requires_grad_(trained)
    wanted = _first_two(x)
    got = firebrick.compile(_first_two)(x)
    assert got[0].stride() == wanted[0].stride()
    torch.testing.assert_close(got, wanted)
