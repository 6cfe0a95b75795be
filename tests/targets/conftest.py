"""Fixtures of the code generation tests."""

import sys
from pathlib import Path

import pytest

from firebrick.targets.cpu.cpu_target import _SIMD
from firebrick.targets.cpu.processor import features

# The functions that trace and lower small programs are those of the lowering tests.
sys.path.append(str(Path(__file__).parents[1] / "lower"))


def _levels():
    return [name for name, row in _SIMD.items() if row.needs <= features()]


@pytest.fixture(params=_levels())
def simd(request):
    """Every SIMD level that this machine can run."""
    return request.param
