"""Autocast that was on at a graph break stayed on for good."""

import torch

import firebrick


def main(x, y, m, n, f, items, table, box):
    with torch.autocast("cpu", torch.bfloat16):
        a = m @ m.T
        firebrick.graph_break()
        b = m @ m.T
    return a.dtype, b.dtype, (m @ m.T).dtype, torch.is_autocast_enabled("cpu")
