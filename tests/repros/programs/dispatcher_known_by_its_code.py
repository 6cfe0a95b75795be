"""Functions that a library makes all have one code: the second dispatcher was taken for the first."""

import functools

import torch


def dispatcher(k):
    @functools.singledispatch
    def scale(a):
        return a

    @scale.register(torch.Tensor)
    def _(a):
        return a * k

    return scale


SCALES = [dispatcher(2), dispatcher(3)]


def main(x, y, m, n, f, items, table, box):
    SCALES.append(SCALES.pop(0))
    return SCALES[0](x)
