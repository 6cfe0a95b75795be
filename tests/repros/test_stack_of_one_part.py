"""A view of a copy of a part read memory before the part: where the copy is not made, the view is one of the part.

Stacking one row of a computed tensor is such a view.
"""

import pytest
import torch

import firebrick

CASES = {
    "stack": lambda y: torch.stack([y[-1]]),
    "beside its source": lambda y: (y, torch.stack([y[-1]])),
    "read on": lambda y: torch.stack([y[2]])[0].t() + 1,
    "written": lambda y: torch.stack([y[2, 1:]]).mul_(2),
    "unsafe view": lambda y: torch.ops.aten._unsafe_view(y[3], [2, 8])[1:],
    "no-op": lambda y: (y, (y[-1] + 0).view(16), (y[1:] + 0)[1], (y[1:] * 1)[2:, 1].t()),
    "diagonal": lambda y: (y, (y[3] + 0).diagonal(1)),
    "strided": lambda y: (y, (y[3] + 0).as_strided([2, 2], [4, 1], 3)),
    "along another axis": lambda y: torch.stack([y[1, :, 2:]], 1),
}


@pytest.mark.parametrize("case", CASES)
def test_a_stack_of_one_part(case):
    x = torch.randn(5, 4, 4)

    def call(x):
        return CASES[case](x.sin())

    torch.testing.assert_close(firebrick.compile(call, options={"cache": False})(x), call(x))
