"""A matmul by a constant row, whose only product lies along both axes, was measured in a form that the measuring took for
impossible: reflections of a weight, as `x @ u @ u.t()`, fell to eager kernels."""

import torch
from torch import nn

import firebrick


class Reflection(nn.Module):
    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.randn(64, 4))

    def forward(self, x):
        u = self.u[:, 1].view(-1, 1)
        return x - 2 * x @ u @ u.t()


def test_reflection(tmp_path):
    torch.manual_seed(0)
    module, x = Reflection(), torch.randn(64, 64)
    with torch.no_grad():
        got = firebrick.compile(module, options={"cache_dir": tmp_path, "measure": True})(x)
        torch.testing.assert_close(got, module(x), rtol=1e-4, atol=1e-4)
