"""Convolutions of rows and of volumes as ones of images, for which there are kernels.

A row is an image of height 1. A volume is a batch of images, one a place in depth, and the window a sum over its depth:

conv3d(x, W)[:, :, d]   ->   conv2d(x[:, :, d], W[:, :, 0]) + conv2d(x[:, :, d + 1], W[:, :, 1]) + ...

Volumes lie with the depth outermost and the channels last, so that the images of a place in the window are a part of
the input without gaps between its batches, which no copy is made of.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import fx

from firebrick.passes.recipe import emit

aten = torch.ops.aten


class Images:
    """One convolution of rows or volumes as convolutions of images, whose nodes are placed before `last`."""

    def __init__(self, conv: fx.Node, last: fx.Node) -> None:
        self.emit = partial(emit, last)
        self._shape = conv.meta["val"].shape
        args: Any = conv.args
        x, self._weight, self._bias, self._stride, self._padding, self._dilation, *self._rest = args
        self._rows = len(self._shape) == 3
        self._x: Any = self.of(x) if self._rows else self._padded(x)

    def of(self, x: Any) -> fx.Node:
        """A tensor of the convolution's rank as images."""
        if self._rows:
            return self.emit(aten.unsqueeze.default, x, 2)
        return self._flat(self.emit(aten.permute.default, x, [2, 0, 3, 4, 1]))

    def back(self, images: fx.Node) -> fx.Node:
        """The result, as images, in the shape of the convolution's."""
        if self._rows:
            return self.emit(aten.squeeze.dim, images, 2)
        batch, channels, depth, height, width = self._shape
        last = self.emit(aten.permute.default, images, [0, 2, 3, 1])
        whole = self.emit(aten.view.default, last, [depth, batch, height, width, channels])
        return self.emit(aten.permute.default, whole, [1, 4, 0, 2, 3])

    def convolutions(self) -> list[fx.Node]:
        """The convolutions of images whose sum is the result; the first has the bias."""
        if self._rows:
            weight = self.emit(aten.unsqueeze.default, self._weight, 2)
            stride, dilation = [1, *self._stride], [1, *self._dilation]
            return [self._convolution(self._x, weight, self._bias, stride, [0, *self._padding], dilation)]
        parts = []
        for k in range(self._weight.meta["val"].shape[2]):
            start, step = k * self._dilation[0], self._stride[0]
            end = start + (self._shape[2] - 1) * step + 1
            part = self._flat(self.emit(aten.slice.Tensor, self._x, 0, start, end, step))
            weight = self.emit(aten.select.int, self._weight, 2, k)
            bias = None if k else self._bias
            parts.append(self._convolution(part, weight, bias, self._stride[1:], [0, 0], self._dilation[1:]))
        return parts

    def _padded(self, x: fx.Node) -> fx.Node:
        """A volume, depth outermost and channels last, with the zeros around it."""
        turned = self.emit(aten.permute.default, x, [2, 0, 3, 4, 1])
        depth, height, width = self._padding
        if not (depth or height or width):
            return turned
        return self.emit(aten.constant_pad_nd.default, turned, [0, 0, width, width, height, height, 0, 0, depth, depth])

    def _flat(self, volumes: fx.Node) -> fx.Node:
        """[depth, batch, height, width, channels]   ->   images, channels last."""
        depth, batch, *image = volumes.meta["val"].shape
        images = self.emit(aten.reshape.default, volumes, [depth * batch, *image])
        return self.emit(aten.permute.default, images, [0, 3, 1, 2])

    def _convolution(self, x: Any, w: Any, bias: Any, *how: list[int]) -> fx.Node:
        """how: steps, padding and dilation."""
        transposed, more, groups = self._rest
        return self.emit(aten.convolution.default, x, w, bias, *map(list, how), transposed, [0, *more][-2:], groups)
