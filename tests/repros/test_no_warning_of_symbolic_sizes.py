"""torch warns of symbolic sizes that are given to FX nodes: compiled code gives none."""

import warnings

import torch
from torch import nn

import firebrick


def test_a_matmul_of_rows_that_vary_warns_of_nothing():
    model = nn.Linear(8, 8).eval()
    compiled = firebrick.compile(lambda x: model(x) + x, dynamic=True, options={"cache": False})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.randn(3, 5, 8)
        torch.testing.assert_close(compiled(x), model(x) + x)
