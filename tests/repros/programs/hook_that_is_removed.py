"""A hook's handle and its module had different ideas of the module's hooks."""

import torch

NET = torch.nn.Linear(3, 3)


def main(x, y, m, n, f, items, table, box):
    handle = NET.register_forward_pre_hook(lambda module, args: x)
    before = NET(m)
    handle.remove()
    return before, NET(m)
