"""float32 of int64 has as few lanes as int64, 4 of AVX2; SLEEF's functions of float32 are of 8: the call crashed."""

import pytest
import torch

import firebrick
from firebrick.targets.cpu.cpu_target import runs_here

pytestmark = pytest.mark.skipif(not runs_here("avx2"), reason="no AVX2 here")


@pytest.mark.compiler
@pytest.mark.parametrize("numerics", ["default", "eager"])
def test_functions_of_integers(numerics):
    def f(x):
        y = x.abs() + 1
        return x.sinh(), y.log1p(), x.erf(), y.lgamma(), torch.atan2(x, y.float()), torch.pow(y.float(), x), x.exp()

    x = torch.arange(-9, 10)
    results = firebrick.compile(f, options={"simd": "avx2", "numerics": numerics})(x)
    for ours, theirs in zip(results, f(x), strict=True):
        torch.testing.assert_close(ours, theirs)
