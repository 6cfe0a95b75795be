"""A transform in inference mode asked inference tensors for their versions."""

import torch


def main(x, y, m, n, f, items, table, box):
    with torch.inference_mode():
        return torch.func.jvp(lambda q: q * q, (m,), (m,))[1] * 2
