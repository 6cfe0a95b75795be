"""Fixtures of the code generation tests."""

import pytest

from firebrick.codegen.target import _SIMD, _cpu_features


def _levels():
    return [name for name, row in _SIMD.items() if row.needs <= _cpu_features()]


@pytest.fixture(params=_levels())
def simd(request):
    """Every SIMD level that this machine can run."""
    return request.param
