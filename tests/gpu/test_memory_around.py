"""Kernels of every kind touch the memory that they are given, and no other; `sanitize.py` has the kinds."""

import pytest
from sanitize import KINDS, wrong_with


@pytest.mark.parametrize("name", KINDS)
def test_marks_stay(name):
    assert not wrong_with(name)
