"""A graph that raised after a write which made its argument require gradients left a frame that had a handler."""

import torch
import torch.nn.functional as F

SEEN = []


def main(x, y, m, n, f, items, table, box):
    w = (x * 1).requires_grad_()
    print(w.sum().item())
    v = helper(w * 2, y, m)
    SEEN.append("looking up")
    y.add_(w)
    return v, F.embedding(torch.tensor([9]), m)


def helper(v, y, m):
    try:
        v.mul_(v)
        y.copy_(v)
        y = F.embedding(torch.tensor([9]), m)
    except IndexError:
        SEEN.append("caught")
    return v + y
