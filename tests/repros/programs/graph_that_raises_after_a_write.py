"""A graph that wrote to an argument and then raised left the frame: past its handlers, without its effects."""

import torch
import torch.nn.functional as F

SEEN = []


def main(x, y, m, n, f, items, table, box):
    try:
        x.detach().add_(1)
        SEEN.append("written")
        m.mul_(2)
        z = F.embedding(torch.tensor([5]), m)
    except IndexError:
        SEEN.append("caught")
        z = y.add_(1)
    items.append(n)
    y.mul_(2)
    return z + F.embedding(torch.tensor([n + 4]), m)
