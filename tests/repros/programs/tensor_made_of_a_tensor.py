"""`torch.tensor(x)` of a tensor was the tensor itself."""

import torch


def main(x, y, m, n, f, items, table, box):
    made = torch.tensor(x)
    made.add_(1)
    return made, x
