"""The limits of `clamp` are rounded to the dtype of the tensor: 1e-12 is 0 in float16."""

import torch
import torch.nn.functional as F

import firebrick


def test_normalize_of_zeros_in_half_precision_is_as_in_eager():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [float("inf"), 0.0]], dtype=torch.float16)
    found = firebrick.compile(lambda t: F.normalize(t, dim=1), options={"cache": False})(x)
    torch.testing.assert_close(found, F.normalize(x, dim=1), equal_nan=True)


def test_limits_are_those_that_the_dtype_has():
    x = torch.tensor([0.0, 0.1, 1.0], dtype=torch.bfloat16)

    def call(t):
        return t.clamp(0.1001, 0.3), t.clamp_min(1e-30), t.clamp_max(0.7003), F.hardtanh(t, 0.1001, 0.7003)

    for found, wanted in zip(firebrick.compile(call, options={"cache": False})(x), call(x), strict=True):
        assert torch.equal(found, wanted)
