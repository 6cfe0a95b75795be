"""A graph that ended inside of autocast left it on, where an exception then left the block."""

import torch


def main(x, y, m, n, f, items, table, box):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = m @ m.t()
        missing(n)
    return z
