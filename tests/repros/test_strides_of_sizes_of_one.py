"""Where a size is 1 the result of `x * 2` had other strides than eager's, so that a pool behind it lay otherwise.

Kernels take a number for a tensor of another shape, and then go by the strides of every dimension; without one, operands
that are contiguous, or lie channels last, make a result that is so afresh.
"""

import pytest
import torch
import torch.nn.functional as F

import firebrick
from firebrick.fakes.mode import _FakeMode

OPS = {
    "x * 2": lambda x: x * 2,
    "1 - x": lambda x: 1 - x,
    "x // 2": lambda x: x // 2,
    "x > 1": lambda x: x > 1,
    "x ** 2": lambda x: x**2,
    "x.clamp(0, 1)": lambda x: x.clamp(0, 1),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "relu": torch.relu,
    "x + x": lambda x: x + x,
    "x.int() * 2.5": lambda x: x.int() * 2.5,
    "maximum": lambda x: torch.maximum(x, torch.tensor(1.0)),
    "lerp": lambda x: x.lerp(x + 1, 0.5),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=2),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0),
    "fmod": lambda x: x.fmod(2),
    "x + row": lambda x: x + torch.ones(x.shape[-1]),
}
LAYOUTS = [
    torch.randn(1, 2, 4).transpose(0, 1),
    torch.randn(3, 1, 4).transpose(0, 1),
    torch.randn(2, 1, 4, 1).permute(1, 0, 3, 2),
    torch.randn(1, 5, 1).transpose(1, 2),
    torch.randn(4, 1).t(),
    torch.randn(1, 3, 1, 2).transpose(1, 3),
]


@pytest.mark.parametrize("name", OPS)
def test_fake_strides_are_eagers(name):
    for x in LAYOUTS:
        with _FakeMode() as mode:
            made = OPS[name](mode.from_tensor(x)).stride()
        assert made == OPS[name](x).stride(), (x.shape, x.stride())


@pytest.mark.compiler
def test_a_pool_behind_a_product_with_a_number_lies_as_eagers():
    def f(x):
        return F.adaptive_avg_pool1d((x * 2).transpose(1, 2), 2)

    compiled = firebrick.compile(f, dynamic=False)
    for length, batch in ((1, 2), (3, 2), (3, 1), (1, 3)):
        x = torch.randn(length, batch, 4).transpose(0, 1)
        assert compiled(x).stride() == f(x).stride()
