"""Chains of pointwise ops longer than Python's stack, and the vectors that their loops compute side by side."""

import pytest
import torch

import firebrick


def chain(x, count):
    y = x
    for i in range(count):
        y = torch.clamp(torch.abs(y * 0.999 + 0.001 * i) - 0.25 + x, -2.0, 2.0)
    return y


def rows(x):
    return torch.softmax(chain(x, 30), dim=-1) * chain(x, 20)


def total(x):
    return chain(x, 30).sum() + chain(x, 100).amax()


def behind_a_reduction(x):
    return chain(x - x.mean(dim=-1, keepdim=True), 200)


@pytest.mark.parametrize(
    ("shape", "dtype", "far"),
    [
        ((7,), torch.float32, 2e-5),
        ((129,), torch.float32, 2e-5),
        ((4, 1031), torch.float32, 2e-5),
        ((129,), torch.float64, 1e-12),
        ((3, 4096), torch.bfloat16, 0.1),
    ],
    ids=str,
)
def test_long_chains_of_any_size_agree_with_eager(shape, dtype, far):
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    x.view(-1)[0] = float("nan")
    both = lambda x: (chain(x, 30), rows(x))  # noqa: E731
    with torch.no_grad():
        torch.testing.assert_close(firebrick.compile(both)(x), both(x), rtol=far, atol=far, equal_nan=True)


def test_a_chain_behind_a_reduction_may_be_as_long():
    x = torch.randn(3, 70)
    with torch.no_grad():
        got, want = firebrick.compile(behind_a_reduction)(x), behind_a_reduction(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_chain_of_three_thousand_operations_is_one_kernel():
    x = torch.randn(257)
    before = firebrick.stats()["counts"].get("kernels", 0)
    with torch.no_grad():
        got = firebrick.compile(chain)(x, 500)
    assert firebrick.stats()["counts"]["kernels"] == before + 1
    torch.testing.assert_close(got, chain(x, 500), rtol=1e-4, atol=1e-4)


def test_reductions_of_long_chains_agree():
    x = torch.randn(5, 333)
    with torch.no_grad():
        torch.testing.assert_close(firebrick.compile(total)(x), total(x), rtol=1e-5, atol=1e-4)
