"""A graph that raised after it had drawn random numbers drew others when plain Python ran instead."""

import torch
import torch.nn.functional as F


def main(x, y, m, n, f, items, table, box):
    x = F.dropout(x, 0.5) + torch.rand(3)
    try:
        y.add_(1)
        F.embedding(torch.tensor([9]), m * n)
    except IndexError:
        x = x * 2
    return x, torch.rand(2), unwritten(x, m)


def unwritten(x, m):
    try:
        x = F.dropout(x, 0.5)
        return F.embedding(torch.tensor([9]), m)
    except IndexError:
        return x
