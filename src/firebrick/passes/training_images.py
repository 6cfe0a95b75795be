"""Convolutions of a graph with gradients, on images that lie channels last; of single pixels they are matmuls.

convolution(x, W, ...)               ->   convolution(clone(x), W, ...), and so their gradients
convolution(x, W of single pixels)   ->   mm(pixels of clone(x), t(W)) as images, and their gradients likewise
upsample_backward(channels of g)     ->   upsample_backward(clone(g))

What is computed from them lies so too: of a whole network only what comes in, what goes out and weights are copied.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import fx

from firebrick.extend import graph_pass
from firebrick.passes.layout import propagate_layouts
from firebrick.passes.recipe import emit

aten = torch.ops.aten

_IMAGES = {aten.convolution.default: 1, aten.convolution_backward.default: 2, aten.cat.default: 0}
"""Op -> how many of its arguments are images, the weight comes behind them; 0: all are that the first holds."""

_UPSAMPLES = {aten.upsample_bilinear2d_backward.default, aten.upsample_nearest2d_backward.default}


def _images_last(gm: fx.GraphModule) -> bool:
    """Rewrite the convolutions of images of several channels on a CPU, of sizes that are numbers, in place."""
    convolutions = [node for node in gm.graph.nodes if _IMAGES.get(node.target) and _fits(node)]
    wanted = {x for node in convolutions for x in (node, *node.args[: _IMAGES[node.target]])}
    copies: dict[fx.Node, fx.Node] = {}
    for node in [node for node in gm.graph.nodes if node in wanted and node.target in _IMAGES]:
        for x in node.args[: _IMAGES[node.target]] or [x for x in node.all_input_nodes if x.meta["val"].dim() == 4]:
            copies[x] = copies.get(x) or emit(node, aten.clone.default, x, memory_format=torch.channels_last)
            node.replace_input_with(x, copies[x])
    propagate_layouts(gm, {copy: x.meta["val"] for x, copy in copies.items()})
    for x, copy in copies.items():
        if x.meta["val"].stride() == copy.meta["val"].stride():
            copy.replace_all_uses_with(x)
            gm.graph.erase_node(copy)
    for node in [node for node in gm.graph.nodes if convolutions and node.target in _UPSAMPLES]:
        lie = [t.is_contiguous(memory_format=torch.channels_last) for t in (node.meta["val"], node.args[0].meta["val"])]
        if lie == [True, False]:  # a part of the channels, of which its kernel is slow
            node.update_arg(0, emit(node, aten.clone.default, node.args[0], memory_format=torch.channels_last))
    for node in convolutions:
        weight, _, stride, padding, _, transposed, _, groups, *_ = node.args[_IMAGES[node.target] :]
        single = weight.meta["val"].shape[2:] == (1, 1) and not any(padding) and {*stride} == {1}
        if single and groups == 1 and not transposed:
            _multiply(node)
    return bool(convolutions)


images_last = graph_pass(_images_last, name="images_last", level="joint")


def _fits(node: fx.Node) -> bool:
    tensors = [arg.meta["val"] for arg in node.args[: _IMAGES[node.target] + 1]]  # type: ignore[union-attr, index]
    plain = all(t.dim() == 4 and t.device.type == "cpu" and t.dtype in (torch.float32, torch.bfloat16) for t in tensors)
    known = all(type(n) is int and n for t in tensors for n in t.shape)
    # With one channel an image lies in both orders at once, and the library would lay out its weight's gradient.
    return plain and known and tensors[-2].shape[1] != 1


def _multiply(node: fx.Node) -> None:
    """A convolution of single pixels, or its gradients, as products of matrices: pixels by channels."""
    make, forward = partial(emit, node), node.target is aten.convolution.default

    def matrix(x: Any) -> fx.Node:
        last = make(aten.permute.default, x, [0, 2, 3, 1])
        return make(aten.reshape.default, last, [-1, x.meta["val"].shape[1]])

    def images(rows: fx.Node, like: torch.Tensor) -> fx.Node:
        batch, channels, *sizes = like.shape
        last = make(aten.reshape.default, rows, [batch, *sizes, channels])
        image = make(aten.permute.default, last, [0, 3, 1, 2])
        # Of dimensions of one element strides may differ: then both orders are the same.
        return image if image.meta["val"].stride() == like.stride() else make(aten.reshape.default, rows, [*like.shape])

    first, second = matrix(node.args[0]), matrix(node.args[1])
    for reader in [node] if forward else [*node.users]:
        bias, which = node.args[2], 3 if forward else reader.args[1]
        if which == 0:
            rows = make(aten.mm.default, first, matrix(node.args[2]))
        elif which == 1:
            rows = make(aten.mm.default, make(aten.t.default, first), second)
        elif which == 2:
            rows = make(aten.sum.dim_IntList, first, [0])
        else:
            op, added = (aten.mm.default, ()) if bias is None else (aten.addmm.default, (bias,))
            rows = make(op, *added, first, make(aten.t.default, second))
        reader.replace_all_uses_with(rows if which == 2 else images(rows, reader.meta["val"]))
        node.graph.erase_node(reader)
    if not forward:
        node.graph.erase_node(node)
