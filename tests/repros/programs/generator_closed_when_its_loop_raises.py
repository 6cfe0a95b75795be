"""A generator that an exception takes off the stack was kept alive by a temporary of the new code."""

import torch

SEEN = []
WEIGHT = torch.tensor(1)


def counting(n, log):
    try:
        for i in range(n):
            yield i
    finally:
        log.append("closed")


def main(x, y, m, n, f, items, table, box):
    for v7 in counting(3, SEEN):
        WEIGHT.mul_(1.0)
