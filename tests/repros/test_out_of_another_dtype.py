"""An empty `out=` tensor took the dtype of the result, where eager keeps its own."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float32])
def test_an_empty_out_tensor_keeps_its_dtype(dtype):
    def call(a, b):
        made = torch.empty(0, dtype=dtype)
        torch.add(a, b, out=made)
        return made, made + 1

    a, b = torch.randn(3), torch.randn(3)
    for found, wanted in zip(firebrick.compile(call, options={"cache": False})(a, b), call(a, b), strict=True):
        torch.testing.assert_close(found, wanted)
