"""The gradients of `complex(a, b)` were returned as complex numbers: views of the tangent, with its dtype."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("backend", ["firebrick", "aot_eager"])
def test_real_and_imaginary_part(shape, backend):
    rows = []
    for call in (torch.complex, firebrick.compile(lambda a, b: torch.complex(a, b), backend=backend)):
        a, b = (torch.full(shape, value, requires_grad=True) for value in (2.0, 3.0))
        tangent = torch.full(shape, 1 + 2j, requires_grad=True)
        first = torch.autograd.grad(call(a, b), (a, b), tangent, create_graph=True)
        rows.append((first, torch.autograd.grad(first[0].square().sum() + first[1].sum(), tangent)))
    torch.testing.assert_close(rows[1], rows[0])
