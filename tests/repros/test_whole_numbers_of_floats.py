"""`arange` and `linspace` of int64 from floats: eager makes whole numbers of the arguments before it counts."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("args", [(-0.9, 2.1, 2.0), (3.1,), (2.9, 9.9, 1.9), (0, 4.5)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_arange(args, dtype):
    def call():
        return torch.arange(*args, dtype=dtype)

    assert torch.equal(firebrick.compile(call, options={"cache": False})(), call())


@pytest.mark.parametrize("ends", [(4.3, -3), (-3, 4.3), (0.5, 9.9), (0, 7)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_linspace(ends, dtype):
    def call():
        return torch.linspace(*ends, 50, dtype=dtype)

    assert torch.equal(firebrick.compile(call, options={"cache": False})(), call())
