"""The statistics that a batch norm in training returns were f32 where eager gives the type of its arguments."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("parameters", [torch.bfloat16, torch.float32, None])
def test_types_are_eagers(parameters):
    def fn(x, *rest):
        weight, bias, mean, var = rest or (None,) * 4
        return torch.ops.aten.native_batch_norm(x, weight, bias, mean, var, True, 0.1, 1e-5)

    rest = () if parameters is None else [torch.rand(3, dtype=parameters) + 0.5 for _ in range(4)]
    x = torch.randn(4, 3, 5, dtype=torch.bfloat16)
    wanted = fn(x, *[t.clone() for t in rest])
    made = firebrick.compile(fn)(x, *[t.clone() for t in rest])
    for a, b in zip(wanted, made, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(b, a, rtol=2e-2, atol=2e-2)


def test_equal_numbers_give_the_bias():
    x = torch.randn(1, 4).expand(3, 4).contiguous()
    bias = torch.randn(4)
    made = firebrick.compile(lambda x, bias: torch.nn.functional.batch_norm(x, None, None, None, bias, True))(x, bias)
    assert torch.equal(made, bias.expand(3, 4))
