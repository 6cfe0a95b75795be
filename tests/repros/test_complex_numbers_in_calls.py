"""A complex number as an argument of a library call made the whole graph fall back to eager kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import firebrick
from firebrick.config import Config
from firebrick.ir.loops.parse import parse
from firebrick.ir.loops.show import show
from firebrick.lower import lower
from firebrick.targets.by_device import find_targets
from firebrick.trace import trace_inference

CALLS = [
    lambda x: torch.view_as_real(x + 0j),
    lambda x: torch.view_as_real(x * (1 - 2j)),
    lambda x: torch.view_as_real(torch.full_like(x, 1 - 1j, dtype=torch.complex64)),
    lambda x: torch.view_as_real(torch.where(x > 0, x + 0j, 1j)),
]


@pytest.mark.parametrize("call", CALLS)
def test_complex_numbers_are_passed_on(call: Any) -> None:
    x = torch.randn(3, 4)
    with torch.no_grad():
        assert torch.equal(firebrick.compile(call, fullgraph=True)(x), call(x))


def test_they_are_printed_and_read_back() -> None:
    x = torch.randn(3, 4)
    with torch.no_grad():
        gm = torch.fx.symbolic_trace(CALLS[1])
        program = lower(trace_inference(gm, [x], Config()), find_targets((), Config()), Config())
    assert parse(show(program)) == program
