"""A graph whose in-place operation raises, which fake tensors do not foresee, left the frame without its effects."""

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
