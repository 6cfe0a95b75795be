"""Prepacked convolutions: constant weights in panels, activations channels last, batch norm folded in.

convolution(x, W, b) * s + t + other; relu   ->   firebrick::convolution(pad(x), packed, b * s + t, other, ..., "relu")
packed = firebrick::pack_convolution(W, columns, s)      in the recipe, computed once

Of single pixels they are matmuls, `firebrick::linear`. Those of rows and volumes become ones of images (`images`).
What is not float32, groups of channels and what is transposed go to oneDNN: mkldnn::_convolution_pointwise on
mkldnn::_reorder_convolution_weight(W * s). Those of a GPU are written by `cuda_convolutions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from firebrick.config import Config
from firebrick.fakes.node_values import absorb, device_of
from firebrick.ir.graph.aten import AtenGraph
from firebrick.ir.loops.program import device_type
from firebrick.ir.operators.convolution_op import convolution_op, pack_convolution_op
from firebrick.ir.operators.linear_op import linear_op
from firebrick.ir.operators.panel_op import pack_panels_op, panel_convolution_op
from firebrick.passes.alone import Choose, alone, chain
from firebrick.passes.images import Images
from firebrick.passes.prepack import NO_POST_OP, PostOp, added, of_onednn, post_op, without_gaps
from firebrick.passes.recipe import RecipeBuilder, emit
from firebrick.targets.base import CALL, Choice, Target

aten = torch.ops.aten
mkldnn = torch.ops.mkldnn


@dataclass(slots=True)
class Followed:
    """A convolution and what follows it alone, up to `last`. scale, shift: constants with one number a channel."""

    conv: fx.Node
    last: fx.Node
    scale: fx.Node | None = None
    shift: fx.Node | None = None
    other: fx.Node | None = None

    def nodes(self) -> list[fx.Node]:
        """The convolution and what follows it, in order."""
        return chain(self.conv, self.last)

    def take(self, attribute: str, operand: fx.Node | None) -> fx.Node | None:
        """The next reader, behind the one that has this operand if there is one."""
        reader = only_reader(self.last)
        if operand is not None and reader is not None:
            setattr(self, attribute, operand)
            self.last, reader = reader, only_reader(reader)
        return reader

    def affine(self, recipe: RecipeBuilder) -> fx.Node | None:
        """The next reader, behind a factor and a summand; halves have these in float32 and are rounded behind them."""
        first, reader, dtype = self.last, only_reader(self.last), self.last.meta["val"].dtype
        casts = lambda n, to: n and n.target is aten._to_copy.default and dict(n.kwargs) == {"dtype": to}  # noqa: E731
        wide = dtype.itemsize == 2 and casts(reader, torch.float32)
        if wide and reader is not None:
            self.last, reader = reader, only_reader(reader)
        for name, op in (("scale", aten.mul.Tensor), ("shift", aten.add.Tensor)):
            if reader is not None and reader.target is op and not reader.kwargs:
                reader = self.take(name, channel_operand(reader, self.last, recipe))
        if wide and reader is not None and casts(reader, dtype):
            self.last, reader = reader, only_reader(reader)
        elif wide:
            self.last, self.scale, self.shift, reader = first, None, None, only_reader(first)
        return reader

    def folded(self, recipe: RecipeBuilder, scaled: bool = True) -> tuple[fx.Node, fx.Node | None, fx.Node | None]:
        """The weight, times the scale if asked for, the bias with scale and shift, and the scale in one dimension."""
        _, weight, bias, *_ = self.conv.args
        w, b = recipe.copy(weight), recipe.copy(bias) if bias is not None else None  # type: ignore[arg-type]
        name, channels, scale = w.name, self.conv.meta["val"].shape[1], None
        if self.scale is not None:
            scale = recipe.call(f"{name}_scale", aten.reshape.default, recipe.copy(self.scale), [channels])
            if scaled:
                shape = [1] * w.meta["val"].dim()
                shape[1 if self.conv.args[6] else 0] = channels
                by_row = recipe.call(f"{name}_by_row", aten.reshape.default, scale, shape)
                w = recipe.call(f"{name}_scaled", aten.mul.Tensor, w, by_row)
            b = recipe.call(f"{name}_bias", aten.mul.Tensor, b, scale) if b is not None else None
        if self.shift is not None:
            shift = recipe.call(f"{name}_shift", aten.reshape.default, recipe.copy(self.shift), [channels])
            b = shift if b is None else recipe.call(f"{name}_shifted", aten.add.Tensor, b, shift)
        return w, b, scale


@dataclass(slots=True)
class _Match(Followed):
    """choice: "packed" is oneDNN's, the others of `_WRITERS` are kernels of the target's own."""

    choice: Choice = CALL
    fused: PostOp = NO_POST_OP


def prepack_convolution(
    graph: AtenGraph, targets: Mapping[str, Target], config: Config, choose: Choose | None = None
) -> AtenGraph:
    """Pack the constant weights of convolutions, with the scale, shift and activation that follow.

    Their results are channels last; so then is what is computed from them, and the graph's outputs are copied back.
    choose: measures the forms of each; without it the cheapest by the target's estimate is taken.
    """
    if not config.prepack or not graph.frozen:
        return graph

    def form_of(node: fx.Node, recipe: RecipeBuilder) -> Choice:
        first, *others = convolution_choices(node, targets)
        forms = {c.name: c for c in (first, *others) if c.name != "call"}
        if choose is None or len(forms) < 2 or first.name not in _WRITERS:
            return first
        richest = _match(_Match(node, node, choice=max(forms.values(), key=lambda c: len(c.after))), recipe)
        rewrites, passes = {}, {}
        for name, form in forms.items():
            rewrites[name] = partial(_rewrite, targets=targets, form_of=lambda *_, form=form: form)
            inside = name == "packed" or ("pad" in form.before and node.meta["val"].dim() < 5)
            copies = not inside and any(node.args[4])  # type: ignore[arg-type]
            passes[name] = copies - len(_match(_Match(node, node, choice=form), recipe).nodes())
        return forms[choose(alone(richest.nodes(), recipe.is_constant), rewrites, passes)]

    return _rewrite(graph, targets, form_of)


def _rewrite(
    graph: AtenGraph, targets: Mapping[str, Target], form_of: Callable[[fx.Node, RecipeBuilder], Choice]
) -> AtenGraph:
    recipe = RecipeBuilder(graph)
    images: dict[fx.Node, torch.Tensor] = {}
    for node in list(graph.gm.graph.nodes):
        if node.op == "call_function" and node.target is aten.convolution.default and fits(node, recipe):
            choice = form_of(node, recipe)
            if choice.name in _WRITERS:
                matched = _match(_Match(node, node, choice=choice), recipe)
                images[_packed(matched, recipe, targets)] = matched.last.meta["val"]
    return recipe.finish(images) if images else graph


def fits(node: fx.Node, recipe: RecipeBuilder) -> bool:
    """Whether a convolution is one of a constant weight, of sizes that are numbers; if transposed, of all channels."""
    x, weight, bias, _, _, _, transposed, _, groups = node.args
    read: Any = (weight,) if bias is None else (weight, bias)
    if (transposed and groups != 1) or not all(map(recipe.is_constant, read)) or recipe.is_constant(x):  # type: ignore[arg-type]
        return False
    image, w, out = x.meta["val"], weight.meta["val"], node.meta["val"]  # type: ignore[union-attr]
    alike = image.dim() in (3, 4, 5) and image.dtype == out.dtype == w.dtype
    return alike and all(isinstance(n, int) for n in (*image.shape, *w.shape)) and out.numel() > 0


def convolution_choices(conv: fx.Node, targets: Mapping[str, Target]) -> tuple[Choice, ...]:
    """What may compute it, best guess first."""
    x, weight, _, stride, padding, dilation, transposed, _, groups = conv.args
    out = conv.meta["val"]
    arguments = (x.meta["val"], weight.meta["val"], stride, padding, dilation, groups, out)  # type: ignore[union-attr]
    target = targets.get(device_type(device_of(conv)))
    op = "aten::conv_transpose" if transposed else "aten::convolution"
    return (CALL,) if target is None else target.choices(op, arguments)


def _match(matched: _Match, recipe: RecipeBuilder) -> _Match:
    choice, reader = matched.choice, matched.affine(recipe)
    if reader is not None and "add" in choice.after:
        reader = matched.take("other", added(reader, matched.last))
    if reader is not None and reader.args[0] is matched.last:
        fused = post_op(reader, choice)
        if fused is not None and reader.meta["val"].dtype == matched.conv.meta["val"].dtype:
            matched.fused, matched.last = fused, reader
    return matched


def only_reader(node: fx.Node) -> fx.Node | None:
    """The call that alone reads a node."""
    reader = next(iter(node.users)) if len(node.users) == 1 else None
    return reader if reader is not None and reader.op == "call_function" else None


def channel_operand(node: fx.Node, other: fx.Node, recipe: RecipeBuilder) -> fx.Node | None:
    """The operand beside `other`, if it is a constant with one number a channel."""
    a, b = node.args if len(node.args) == 2 else (None, None)
    operand: Any = b if a is other else a
    if a is b or not isinstance(operand, type(node)) or not recipe.is_constant(operand):
        return None
    rank, channels = other.meta["val"].dim(), other.meta["val"].shape[1]
    value, shape = operand.meta["val"], (channels, *[1] * (rank - 2))
    same = value.dtype == other.meta["val"].dtype == node.meta["val"].dtype
    return operand if same and tuple(value.shape) in ((1, *shape), shape) else None


def _packed(matched: _Match, recipe: RecipeBuilder, targets: Mapping[str, Target]) -> fx.Node:
    """The same with a packed weight, in place of what was matched."""
    conv, last = matched.conv, matched.last
    gone = matched.nodes()
    if conv.meta["val"].dim() == 4 or (conv.meta["val"].dim() == 5 and matched.choice.name == "packed"):
        result = _replace(matched, recipe)
    else:
        images = Images(conv, last)
        other = images.of(matched.other) if matched.other is not None else None
        parts = images.convolutions()
        for k, part in enumerate(parts):
            shift = matched.shift if k == 0 else None
            fused = matched.fused if part is parts[-1] else NO_POST_OP
            choice = {c.name: c for c in convolution_choices(part, targets)}.get(matched.choice.name, matched.choice)
            match = _Match(part, part, matched.scale, shift, other, choice, fused)
            other = _replace(match, recipe)
        assert other is not None
        absorb(other, gone)
        result = images.back(other)
    absorb(result, gone)
    last.replace_all_uses_with(result)
    return result


def _replace(matched: _Match, recipe: RecipeBuilder) -> fx.Node:
    choice = matched.choice.name
    call = _WRITERS[choice](matched, *matched.folded(recipe, choice == "packed"), recipe)
    before = matched.last.meta["val"]
    last = torch.channels_last if before.dim() == 4 else torch.channels_last_3d
    with before.fake_mode:
        call.meta["val"] = before.new_empty(before.shape).contiguous(memory_format=last)
    return call


def _matmul(matched: _Match, w: fx.Node, b: fx.Node | None, scale: fx.Node | None, recipe: RecipeBuilder) -> fx.Node:
    """[batch, channels, height, width], channels last   ->   [pixels, channels] @ w * scale + b + other, and back.

    The weight is read where it is, so the scale is not multiplied into it.
    """
    x, graph = matched.conv.args[0], recipe.aten.gm.graph
    batch, inner, height, width = x.meta["val"].shape  # type: ignore[union-attr]
    outer = w.meta["val"].shape[0]
    with w.meta["val"].fake_mode:
        out = w.meta["val"].new_empty((batch * height * width, outer))
    factor, bias = (v and recipe.use(v, matched.last) for v in (scale, b))
    make = partial(emit, matched.last)

    def pixels(image: Any, channels: int) -> fx.Node:
        return make(aten.reshape.default, make(aten.permute.default, image, [0, 2, 3, 1]), [len(out), channels])

    other = pixels(matched.other, outer) if matched.other is not None else None
    read = make(aten.squeeze.dim, make(aten.squeeze.dim, matched.conv.args[1], 3), 2)
    read = without_gaps(make(aten.t.default, read), recipe, matched.last)
    args = (pixels(x, inner), read, factor, bias, other, matched.fused.attr, list(matched.fused.scalars))
    with graph.inserting_before(matched.last):
        last = graph.call_function(linear_op, args)
    last.meta = {**matched.last.meta, "val": out}
    return make(aten.permute.default, make(aten.view.default, last, [batch, height, width, outer]), [0, 3, 1, 2])


def _own(matched: _Match, w: fx.Node, b: fx.Node | None, scale: fx.Node | None, recipe: RecipeBuilder) -> fx.Node:
    """The convolution by a kernel of our own. Where that does not pad by itself, the input is padded."""
    arguments: Any = matched.conv.args
    x, _, _, stride, (rows, columns), dilation, *_ = arguments
    graph, outer = recipe.aten.gm.graph, w.meta["val"].shape[0]
    padding = [columns, columns, rows, rows]
    if _is_border(x):
        padding = [a + b for a, b in zip(padding, (*x.args[1], 0, 0), strict=False)]
        x = x.args[0]
    choice, pads = matched.choice, any(padding) and "pad" in matched.choice.before
    factor = () if scale is None else (scale,)
    packed = recipe.call(f"{w.name}_panels", pack_convolution_op, w, choice.options["columns"], *factor)
    read, bias = (v and recipe.use(v, matched.last) for v in (packed, b))
    with graph.inserting_before(matched.last):
        if any(padding) and not pads:
            x = emit(matched.last, aten.constant_pad_nd.default, x, padding)
            padding = [0, 0, 0, 0]
        attr, scalars = matched.fused.attr, list(matched.fused.scalars)
        args = (x, read, bias, matched.other, outer, list(stride), padding, list(dilation), attr, scalars)
        call = graph.call_function(convolution_op, args)
    call.meta = dict(matched.last.meta)
    return call


def _tiles(matched: _Match, w: fx.Node, b: fx.Node | None, scale: fx.Node | None, recipe: RecipeBuilder) -> fx.Node:
    """Of bfloat16, by tiles whose rows are what a window covers, finished in float32 and rounded once."""
    x, _, _, *how = matched.conv.args[:6]
    outer, _, *window = w.meta["val"].shape
    packed = recipe.call(f"{w.name}_tiles", pack_panels_op, w, *matched.choice.options.values())
    wide, fused = b and recipe.cast(b, torch.float32), matched.fused
    read, bias, factor = (v and recipe.use(v, matched.last) for v in (packed, wide, scale))
    args = (x, read, outer, bias, fused.attr, list(fused.scalars), factor, matched.other, window, *how)
    with recipe.aten.gm.graph.inserting_before(matched.last):
        call = recipe.aten.gm.graph.call_function(panel_convolution_op, args)
    call.meta = dict(matched.last.meta)
    return call


def _is_border(x: fx.Node) -> bool:
    """Whether a node puts zeros around images."""
    if x.target is not aten.constant_pad_nd.default or x.kwargs or len(x.args) > 3 or any(x.args[2:]):
        return False
    sides: Any = x.args[1]
    return len(sides) in (2, 4) and all(type(n) is int and n >= 0 for n in sides)


def _call(matched: _Match, w: fx.Node, b: fx.Node | None, scale: fx.Node | None, recipe: RecipeBuilder) -> fx.Node:
    """The packed convolution; one with long sums is taken in two halves of its input channels (see `prepack`)."""
    x, _, _, stride, padding, dilation, transposed, more, groups = matched.conv.args
    graph, fused = recipe.aten.gm.graph, matched.fused
    image = x.meta["val"]  # type: ignore[union-attr]
    w, b = recipe.cast(w, image.dtype), b and recipe.cast(b, image.dtype)
    shape = [padding, *([more] if transposed else []), stride, dilation, groups]
    unary = of_onednn(fused)
    none: list[Any] = [None, [], None]

    def pack(source: fx.Node, name: str, size: list[int]) -> fx.Node:
        like = source.meta["val"]
        with like.fake_mode:
            like = like.transpose(0, 1) if transposed else like
        packed = recipe.call(f"{name}_packed", reorder, source, *shape, size, like=like)
        return recipe.use(packed, matched.last)

    def create(target: Any, *args: Any, value: Any = None) -> fx.Node:
        with graph.inserting_before(matched.last):
            node = graph.create_node("call_function", target, args)
        node.meta = dict(matched.last.meta) if value is None else {**matched.last.meta, "val": value}
        return node

    read_bias = recipe.use(b, matched.last) if b is not None else None
    single, binary = mkldnn._convolution_pointwise.default, mkldnn._convolution_pointwise.binary
    reorder = mkldnn._reorder_convolution_weight.default
    if transposed:
        single, reorder = (getattr(mkldnn, name).default for name in _TRANSPOSED)
    if matched.choice.options["pieces"] == 1:
        return create(single, x, pack(w, w.name, list(image.shape)), read_bias, *shape, *unary)
    channels = w.meta["val"].shape[1]
    middle = channels // 2
    result: Any = None
    for start, end in ((0, middle), (middle, channels)):
        part = create(aten.slice.Tensor, x, 1, start, end, value=image[:, start:end])
        size = [image.shape[0], end - start, *image.shape[2:]]
        source = recipe.call(f"{w.name}_{start}_part", aten.slice.Tensor, w, 1, start, end)
        read = pack(source, f"{w.name}_{start}", size)
        if result is None:
            result = create(single, part, read, read_bias, *shape, "none", [], "")
        else:
            after = unary if fused.attr != "none" else none
            result = create(binary, part, result, read, None, *shape, "add", None, *after)
    return result


_TRANSPOSED = "_convolution_transpose_pointwise", "_reorder_convolution_transpose_weight"
_WRITERS: dict[str, Callable[..., fx.Node]] = {"matmul": _matmul, "packed": _call, "tiles": _tiles}
_WRITERS |= dict.fromkeys(("dense", "clipped", "padded", "narrow", "depthwise"), _own)
"""Name of a choice -> what writes it in a convolution's place."""
