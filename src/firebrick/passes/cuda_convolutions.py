"""Convolutions of images in short types on a GPU, in the form that the target chooses by its facts:

conv(x, W, b) * s + t + other; relu   ->   cudnn_convolution_add_relu(x, W * s, other, 1, b * s + t), channels last
conv(x, W, b), windows side by side   ->   addmm(b, patches of x, t(W)): the library takes such for any other
conv(x, W, b), a window a channel     ->   the same on a weight whose channels lie side by side, for loops
others                                ->   the same on a weight that lies channels last

Their results are channels last; so then is what is computed from them, and the graph's outputs are copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import fx

from firebrick.config import Config
from firebrick.fakes.node_values import absorb
from firebrick.ir.graph.aten import AtenGraph
from firebrick.passes.convolution import Followed, convolution_choices, fits
from firebrick.passes.prepack import added
from firebrick.passes.recipe import RecipeBuilder, emit
from firebrick.targets.base import Target

aten = torch.ops.aten


def place_convolutions(graph: AtenGraph, targets: Mapping[str, Target], config: Config) -> AtenGraph:
    """Write convolutions with constant weights in the forms that a GPU is quick at."""
    if not config.prepack or not graph.frozen:
        return graph
    recipe = RecipeBuilder(graph)
    images: dict[fx.Node, torch.Tensor] = {}
    for node in list(graph.gm.graph.nodes):
        if node.op != "call_function" or node.target is not aten.convolution.default or not fits(node, recipe):
            continue
        write = _WRITERS.get(convolution_choices(node, targets)[0].name)
        made = write(node, recipe) if write is not None else None
        if made is not None:
            before = made.meta["val"]
            with before.fake_mode:
                made.meta["val"] = before.new_empty(before.shape).contiguous(memory_format=torch.channels_last)
            images[made] = before
    return recipe.finish(images) if images else graph


def _followed(conv: fx.Node, recipe: RecipeBuilder) -> Followed | None:
    """What alone follows a convolution up to a relu."""
    match = Followed(conv, conv)
    reader = match.affine(recipe)
    if reader is not None:
        reader = match.take("other", added(reader, match.last))
    if reader is None or reader.target is not aten.relu.default:
        return None
    match.last = reader
    return match


def _fused(conv: fx.Node, recipe: RecipeBuilder) -> fx.Node | None:
    """The library's kernel that scales, adds and cuts off below zero; another convolution lies channels last."""
    match = _followed(conv, recipe)
    if match is None:
        return _channels_last(conv, recipe)
    x, _, _, stride, padding, dilation, _, _, groups = conv.args
    w, b, _ = match.folded(recipe)
    name, dtype = w.name, conv.meta["val"].dtype
    options = {"dtype": dtype, "memory_format": torch.channels_last}
    w = recipe.use(recipe.call(f"{name}_channels_last", aten._to_copy.default, w, **options), match.last)
    if b is not None:
        b = recipe.use(recipe.call(f"{name}_added", aten._to_copy.default, b, dtype=dtype), match.last)
    rest = (stride, padding, dilation, groups)
    target: Any = aten.cudnn_convolution_relu.default
    args: tuple[Any, ...] = (x, w, b, *rest)
    if match.other is not None:
        target, args = aten.cudnn_convolution_add_relu.default, (x, w, match.other, 1, b, *rest)
    call = _put(match.last, target, *args)
    absorb(call, match.nodes())
    return call


def _channels_last(conv: fx.Node, recipe: RecipeBuilder) -> fx.Node | None:
    """The op itself on the same weight, laid out channels last; one of single pixels lies alike in either order."""
    weight: Any = conv.args[1]
    if min(weight.meta["val"].shape[1], weight.meta["val"][0, 0].numel()) == 1:
        return None
    w = recipe.copy(weight)
    laid = recipe.call(f"{w.name}_channels_last", aten.clone.default, w, memory_format=torch.channels_last)
    return _put(conv, aten.convolution.default, conv.args[0], recipe.use(laid, conv), *conv.args[2:])


def _put(node: fx.Node, target: Any, *args: Any) -> fx.Node:
    """A call in the place of a node, whose value it has."""
    with node.graph.inserting_before(node):
        call = node.graph.call_function(target, args)
    call.meta = dict(node.meta)
    node.replace_all_uses_with(call)
    return call


def _by_loops(conv: fx.Node, recipe: RecipeBuilder) -> fx.Node:
    """The op itself on a weight [channels, 1, height, width] whose channels lie side by side."""
    w = recipe.copy(conv.args[1])  # type: ignore[arg-type]
    turned = recipe.call(f"{w.name}_turned", aten.permute.default, w, [2, 3, 0, 1])
    laid = recipe.call(f"{w.name}_laid", aten.clone.default, turned, memory_format=torch.contiguous_format)
    weight = emit(conv, aten.permute.default, recipe.use(laid, conv), [2, 3, 0, 1])
    return _put(conv, aten.convolution.default, conv.args[0], weight, *conv.args[2:])


def _patches(conv: fx.Node, recipe: RecipeBuilder) -> fx.Node:
    """A matmul whose rows are windows, in the order in which the image lies."""
    arguments: Any = conv.args
    x, weight, bias, (k, _), *_ = arguments
    image = x.meta["val"]
    batch, inner, height, width = image.shape
    outer, rows, columns = conv.meta["val"].shape[1], height // k, width // k

    node = partial(emit, conv)
    flat = [batch * rows * columns, k * k * inner]
    w = recipe.copy(weight)
    name = w.name
    if image.stride(1) == 1:
        turned = node(aten.permute.default, x, [0, 2, 3, 1])
        split = node(aten.view.default, turned, [batch, rows, k, columns, k * inner])
        taken = node(aten.reshape.default, node(aten.permute.default, split, [0, 1, 3, 2, 4]), flat)
        w = recipe.call(f"{name}_turned", aten.permute.default, w, [0, 2, 3, 1])
        w = recipe.call(f"{name}_last", aten.clone.default, w, memory_format=torch.contiguous_format)
    else:
        split = node(aten.reshape.default, x, [batch, inner, rows, k, columns, k])
        taken = node(aten.reshape.default, node(aten.permute.default, split, [0, 2, 4, 1, 3, 5]), flat)
    w = recipe.call(f"{name}_rows", aten.reshape.default, w, [outer, k * k * inner])
    factor = node(aten.t.default, recipe.use(w, conv))
    made = node(aten.mm.default, taken, factor) if bias is None else node(aten.addmm.default, bias, taken, factor)
    absorb(made, [conv])
    whole = node(aten.view.default, made, [batch, rows, columns, outer])
    last = node(aten.permute.default, whole, [0, 3, 1, 2])
    last.meta["val"] = conv.meta["val"]
    conv.replace_all_uses_with(last)
    return last


_WRITERS: Mapping[str, Callable[[fx.Node, RecipeBuilder], fx.Node | None]] = {
    "fused": _fused,
    "channels last": _channels_last,
    "loops": _by_loops,
    "patches": _patches,
}
"""Name of a choice -> what writes it in a convolution's place; None if it stays."""
