"""A write through `.data`, which no version counts, was made twice where the graph raised after it."""

import torch

NET = torch.nn.Linear(3, 3)


def main(x, y, m, n, f, items, table, box):
    NET.bias.data.add_(1)
    y.data.mul_(2)
    return x.gather(0, torch.tensor([0, 1, n]))
