"""An exception out of a `with` block that switches a mode left the mode switched."""

import torch


def main(x, y, m, n, f, items, table, box):
    with torch.set_grad_enabled(False):
        v10
