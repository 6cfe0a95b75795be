"""Threads share out a grid of parts of a matmul or convolution: which ones there are changes no bit."""

import pytest
import torch
from torch import nn

import firebrick
from firebrick.targets.cpu.matmul_kernel import grid


def test_parts_are_as_large_as_threads_allow_and_read_little():
    # 14 lines of 8 panels for 16 threads: lines alone would leave two threads idle, and each would read all weights.
    assert grid(14, 8, 16, (100, 10, 50)) == (2, 8)
    assert grid(7, 16, 16, (100, 10, 50)) == (1, 16)
    assert grid(3, 2, 1, (1, 1, 1)) == (1, 1)
    assert grid(1, 1, 16, (1, 1, 1)) == (1, 1)


@pytest.mark.compiler
@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(36, 100, 3, padding=1), nn.Conv2d(64, 128, 1), nn.Conv2d(3, 64, 7, 2, 3), nn.Linear(196, 250)],
    ids=["3x3", "1x1", "7x7", "linear"],
)
def test_every_grid_gives_equal_bits(layer):
    x, results = torch.randn(2, getattr(layer, "in_channels", 14), 14, 196 if isinstance(layer, nn.Linear) else 14), []
    with torch.no_grad():
        for threads in (1, 3, 16):
            results.append(firebrick.compile(layer.eval(), options={"threads": threads, "measure": False})(x))
        torch.testing.assert_close(results[0], layer(x), atol=1e-5, rtol=1e-4)
    assert all(torch.equal(result, results[0]) for result in results[1:])
