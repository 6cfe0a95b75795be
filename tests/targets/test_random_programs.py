"""Random programs, scheduled and compiled, against the interpreter on the unscheduled program."""

import pytest
import torch
from machine import Runner
from random_graphs import make
from tests.ir.interp import run

from firebrick.config import Config
from firebrick.lower import lower

pytestmark = pytest.mark.compiler

SEEDS = range(10)


def check(seed, **options):
    """Compile the program of a seed and compare all outputs."""
    from graphs import HOST, trace

    fn, inputs = make(seed)
    aten = trace(fn, inputs)
    program = lower(aten, HOST, Config())
    wanted = run(program, [x.clone() for x in inputs], aten.constants)
    got = Runner(program, Config(**options))([x.clone() for x in inputs], aten.constants)
    for k, (want, have) in enumerate(zip(wanted, got, strict=True)):
        if not want.dtype.is_floating_point:
            assert torch.equal(want, have), (seed, k)
            continue
        tolerance = {torch.bfloat16: 2e-2, torch.float64: 1e-12}.get(want.dtype, 2e-5)
        torch.testing.assert_close(
            have, want, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda t, k=k: f"{seed} {k} {t}"
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_random_program(seed):
    check(seed)


@pytest.mark.parametrize("simd", ["avx2", "scalar"])
def test_random_program_with_other_vectors(simd):
    check(3, simd=simd)
