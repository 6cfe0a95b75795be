"""A new submodule was written among the plain attributes of its module."""

import torch

NET = torch.nn.Linear(3, 3)


def main(x, y, m, n, f, items, table, box):
    if not hasattr(NET, "late"):
        NET.late = torch.nn.ReLU()
    return NET.late(x), [name for name, _ in NET.named_children()]
