"""Sums of a few products were taken in lanes, each product rounded before it was added: cdist by a matmul lost digits."""

from __future__ import annotations

import torch

import firebrick


def test_batches_of_short_sums_are_as_exact_as_eager():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, n, 4, generator=generator) for n in (5, 64))

    def f(x, y):
        return torch.bmm(x, y.mT)

    exact = f(x.double(), y.double())
    ours, eager = firebrick.compile(f, options={"cache": False})(x, y), f(x, y)
    assert (ours - exact).square().mean().sqrt() <= 1.1 * (eager - exact).square().mean().sqrt()


def test_distances_by_matmul_are_as_exact_as_eager():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, n, 2, generator=generator) for n in (5, 6))

    def f(x, y):
        return torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist")

    exact = torch.cdist(x.double(), y.double())
    ours, eager = firebrick.compile(f, options={"cache": False})(x, y), f(x, y)
    assert (ours - exact).square().mean().sqrt() <= 1.1 * (eager - exact).square().mean().sqrt()
