"""What a graph only finds out when it runs left the frame without its effects and with a foreign traceback."""

import torch
import torch.nn.functional as F

SEEN = []


def main(x, y, m, n, f, items, table, box):
    SEEN.append("before")
    with torch.no_grad():
        items.append(1)
        z = F.embedding(torch.tensor([5]), m)
    SEEN.append("after")
    return z
