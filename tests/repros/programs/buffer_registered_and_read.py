"""A buffer registered in captured code was not found by its name."""

import torch

NET = torch.nn.ReLU()


def main(x, y, m, n, f, items, table, box):
    NET.register_buffer("late", x.clone())
    found = hasattr(NET, "late")
    z = NET(x) + NET.late if found else x
    del NET._buffers["late"]
    return z, found, hasattr(NET, "late")
