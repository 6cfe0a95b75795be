"""`as_strided` of an argument with an offset that was written before; `python -m tests.fuzz_aten --seed 30000237 --count 1`."""

import pytest
import torch

import firebrick


def zeroed(t):
    t.zero_()
    return t.as_strided((2,), (1,)).mean(0), t.as_strided((2,), (1,), 3) + 1


def exponents(t):
    torch._foreach_mul_([t], 2)
    t.as_strided((2,), (1,))[-1].exp_()
    return t.conj().as_strided((2,), (2,)) + 1


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", [zeroed, exponents])
def test_the_offset_counts_in_the_storage_of_the_argument(fn, dtype):
    base = torch.arange(8).to(dtype)
    ours, eager = base.clone(), base.clone()
    torch.testing.assert_close(firebrick.compile(fn)(ours[2:5]), fn(eager[2:5]))
    torch.testing.assert_close(ours, eager)
