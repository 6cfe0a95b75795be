"""Products of 8-bit integers by constant weights, spelled as integers or as quantized numbers, on the target's kernel.

_int_mm(x, w)                                          ->   panel_product(x, pack_panels(w))
mm((x - a) * s, (w - b) * t)                           ->   (panel_product(x, packed) - a * sums of w - ...) * s * t
convolution((x - a) * s, (w - b) * t)                  ->   the same of the bytes under each place of the window

x and w are int8 or uint8 and int8, a and b whole numbers, s and t scales: one, or one a row of x and a column of w.
Sums are exact, where those of the rounded products are not: in 32 bits where a and b are bytes like x and w, else in
float64, which holds what any others make of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from firebrick.config import Config
from firebrick.fakes.node_values import device_of
from firebrick.ir.graph.aten import AtenGraph
from firebrick.ir.loops.program import device_type
from firebrick.ir.operators.panel_op import pack_panels_op, panel_op
from firebrick.passes.layout import laid_out
from firebrick.passes.recipe import RecipeBuilder, emit
from firebrick.report import recorder
from firebrick.targets.base import CALL, Target

aten = torch.ops.aten

_BYTES = frozenset({torch.int8, torch.uint8})
_WIDER = frozenset({torch.int16, torch.int32, torch.int64, torch.float32, torch.float64})
"""What holds a byte and the sum of two, or its product with a scale, as well as float32."""
_WRAPPING = frozenset({torch.int16, torch.int32})
"""Of these, what doesn't hold every difference of a byte and a point."""
_RESHAPES = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})
_ROUNDINGS = frozenset({aten._to_copy.default, aten.round.default, *_RESHAPES})
"""What leaves whole numbers between two others."""
_TURNS = frozenset({aten.t.default, aten.transpose.int, aten.permute.default})
_MOST = 1 << 15
"""Products of a sum up to which sums of bytes have 31 bits."""


@dataclass(frozen=True, slots=True)
class _Quantized:
    """(node - point) * scale: a tensor of bytes, and numbers or tensors that broadcast with it."""

    node: fx.Node
    point: Any = 0
    scale: Any = 1.0


def integer_products(graph: AtenGraph, targets: Mapping[str, Target], config: Config) -> AtenGraph:
    """Give products of bytes by constant weights to their kernel, where the target has one."""
    if not config.prepack or not graph.frozen:
        return graph
    recipe, changed = RecipeBuilder(graph), False
    images: dict[fx.Node, torch.Tensor] = {}
    for node in list(graph.gm.graph.nodes):
        rewrite = _REWRITES.get(node.target) if node.op == "call_function" else None
        target = targets.get(device_type(device_of(node))) if rewrite is not None else None
        by = rewrite(node, recipe, target) if rewrite is not None and target is not None else None
        if by is not None:
            node.replace_all_uses_with(by)
            node.graph.erase_node(node)
            changed = True
            if laid_out(by.meta["val"]) != laid_out(node.meta["val"]):
                images[by] = node.meta["val"]
    return recipe.finish(images) if changed else graph


_HALVES = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.convolution.default}


def widen_halves(graph: AtenGraph, targets: Mapping[str, Target], config: Config) -> AtenGraph:
    """Compute products of halves in float32, rounded once, where the machine has no instructions for them.

    Of bfloat16 by constant weights it is a form that is measured: few rows take no longer than the weight is read.
    """
    recipe = RecipeBuilder(graph)
    for node in list(graph.gm.graph.nodes) if config.numerics != "eager" else ():
        target = targets.get(device_type(device_of(node))) if node.target in _HALVES else None
        if target is None or not target.widens(dtype := node.meta["val"].dtype):
            continue
        chosen = dtype is torch.bfloat16 and node.target in (aten.mm.default, aten.addmm.default)
        if not chosen or not recipe.is_constant(node.args[-1]) or not isinstance(node.meta["val"].shape[0], int):  # type: ignore[arg-type]
            as_float32(node)
    return graph


def as_float32(node: fx.Node) -> fx.Node:
    """Compute a product in float32, which is returned, and round it once."""
    wide = fx.map_arg(node.args, partial(emit, node, aten._to_copy.default, dtype=torch.float32))
    product = emit(node, node.target, *wide, **node.kwargs)
    node.replace_all_uses_with(emit(node, aten._to_copy.default, product, dtype=node.meta["val"].dtype))
    node.graph.erase_node(node)
    return product


def _dequantized(node: fx.Node, recipe: RecipeBuilder, target: Target) -> fx.Node | None:
    """A product of what are bytes with scales."""
    factors: Any = node.args
    *bias, x, weight = factors
    w = _columns(weight) if node.meta["val"].dtype is torch.float32 and recipe.is_constant(weight) else None
    q = _rows(x, node) if w is not None and not node.kwargs else None
    if w is None or q is None:
        return None
    sums = _product(q.node, w.node, recipe, target, node)
    return _scaled(sums, q, w, bias, recipe, node) if sums is not None else None


def _convolved(node: fx.Node, recipe: RecipeBuilder, target: Target) -> fx.Node | None:
    """A convolution of images of bytes, padded by what stands for zero: a product whose rows are pixels' windows."""
    args: Any = node.args
    x, weight, bias, stride, padding, dilation, transposed, _, groups = args
    if node.meta["val"].dtype is not torch.float32 or node.meta["val"].dim() != 4 or not recipe.is_constant(weight):
        return None
    if transposed or groups != 1 or any(n != 1 for n in dilation) or any(n < 0 for n in padding):
        return None
    w, q = _columns(weight), _quantized(x)
    if w is None or q is None or q.node.meta["val"].shape != x.meta["val"].shape or q.node is x:
        return None
    if any(padding) and (isinstance(q.point, fx.Node) or not _is_byte(q.point, q.node)):
        return None
    if any(isinstance(v, fx.Node) and v.meta["val"].numel() != 1 for v in (q.point, q.scale)):
        return None
    make, window, (outer, inner) = partial(emit, node), weight.meta["val"].shape[2:], weight.meta["val"].shape[:2]
    pixels = make(aten.permute.default, q.node, [0, 2, 3, 1])
    if any(padding):
        sides = [0, 0, *(n for n in reversed(padding) for _ in range(2))]
        pixels = make(aten.constant_pad_nd.default, pixels, sides, int(q.point))
    lie: dict[str, Any] = {"memory_format": torch.contiguous_format}  # in memory, so that runs of channels are copied
    pixels = make(aten.clone.default, pixels, **lie)
    for axis, (size, step) in enumerate(zip(window, stride, strict=True)):
        pixels = make(aten.unfold.default, pixels, axis + 1, size, step)
    n, *places = pixels.meta["val"].shape[:3]
    pixels = make(aten.permute.default, pixels, [0, 1, 2, 4, 5, 3])
    depth = math.prod(window) * inner
    pixels = make(aten.clone.default, pixels, **lie) if depth > inner else pixels
    rows = make(aten.reshape.default, pixels, [math.prod((n, *places)), depth])
    turned = make(aten.reshape.default, make(aten.permute.default, w.node, [2, 3, 1, 0]), [depth, outer])
    sums = _product(rows, turned, recipe, target, node)
    if sums is None:
        return None
    flat = [make(aten.reshape.default, v, [1, 1]) if isinstance(v, fx.Node) else v for v in (q.point, q.scale)]
    offset = [] if bias is None else [bias]
    result = _scaled(sums, _Quantized(rows, *flat), replace(w, node=turned), offset, recipe, node)
    image = make(aten.reshape.default, result, [n, *places, outer])
    return make(aten.permute.default, image, [0, 3, 1, 2])


_REWRITES: Mapping[Any, Any] = {
    aten._int_mm.default: lambda n, recipe, target: _product(n.args[0], n.args[1], recipe, target, n),
    **dict.fromkeys((aten.mm.default, aten.addmm.default), _dequantized),
    aten.convolution.default: _convolved,
}


def _product(x: Any, weight: Any, recipe: RecipeBuilder, target: Target, before: fx.Node) -> fx.Node | None:
    """The sums, if the target has a kernel for them."""
    inner, outer = weight.meta["val"].shape
    if not recipe.is_constant(weight) or weight.meta["val"].dtype is not torch.int8 or inner > _MOST:
        return None
    if recipe.is_constant(x) or not isinstance(inner, int) or not isinstance(outer, int):
        return None
    choice = target.choices("firebrick::panel_product", (inner, outer))[0]
    if choice is CALL:
        return None
    recorder.count("int8 products")
    packed = recipe.call(f"{weight.name}_int8", pack_panels_op, recipe.copy(weight), *choice.options.values())
    return emit(before, panel_op, x, recipe.use(packed, before), outer)


def _scaled(sums: fx.Node, x: _Quantized, w: _Quantized, bias: list[Any], recipe: RecipeBuilder, at: fx.Node) -> Any:
    """What a product of bytes is as a product of numbers."""
    make, name = partial(emit, at), w.node.name
    exact = torch.int32 if _is_byte(x.point, x.node) and _is_byte(w.point, w.node) else torch.float64

    def number(value: Any) -> Any:
        if not isinstance(value, fx.Node):
            return int(value) if exact is torch.int32 else float(value)
        return value if value.meta["val"].dtype is exact else make(aten._to_copy.default, value, dtype=exact)

    if not _is_zero(x.point):
        by_column = recipe.call(f"{name}_sums", aten.sum.dim_IntList, recipe.copy(w.node), [0], dtype=torch.int32)
        shift = make(aten.mul.Tensor, number(recipe.use(by_column, at)), number(x.point))
        sums = make(aten.sub.Tensor, number(sums), shift)
    if not _is_zero(w.point):
        of_rows = number(make(aten.sum.dim_IntList, x.node, [1], True, dtype=torch.int32))
        if not _is_zero(x.point):
            inner = w.node.meta["val"].shape[0]
            point = number(x.point)
            shift = make(aten.mul.Tensor, point, inner) if isinstance(point, fx.Node) else point * inner
            of_rows = make(aten.sub.Tensor, of_rows, shift)
        sums = make(aten.sub.Tensor, number(sums), make(aten.mul.Tensor, of_rows, number(w.point)))
    result = make(aten._to_copy.default, sums, dtype=torch.float32)
    if isinstance(x.scale, fx.Node) or isinstance(w.scale, fx.Node):
        for scale in (x.scale, w.scale):
            if isinstance(scale, fx.Node) and scale.meta["val"].dtype is not torch.float32:
                scale = make(aten._to_copy.default, scale, dtype=torch.float32)
            result = make(aten.mul.Tensor, result, scale)
    else:
        result = make(aten.mul.Tensor, result, x.scale * w.scale)
    return make(aten.add.Tensor, result, *bias) if bias else result


def _is_zero(point: Any) -> bool:
    return not isinstance(point, fx.Node) and point == 0


def _is_byte(point: Any, of: fx.Node) -> bool:
    """Whether a point is surely among the values that `of` may have: values of weights are unknown when compiling."""
    dtype = of.meta["val"].dtype
    limits = torch.iinfo(dtype)
    while isinstance(point, fx.Node) and point.target in _ROUNDINGS and point.meta["val"].dtype is not dtype:
        point = point.args[0]
    if not isinstance(point, fx.Node):
        return bool(limits.min <= point <= limits.max)
    if point.target is aten.clamp.default:
        bounds: Any = (*point.args[1:], None, None)[:2]
        numbers = all(isinstance(n, (int, float)) for n in bounds)
        return numbers and bool(limits.min <= bounds[0] and bounds[1] <= limits.max)
    return bool(point.meta["val"].dtype is dtype)


# ---------------------------------------------------------------- bytes and their scales


def _quantized(node: Any) -> _Quantized | None:
    """What `node` is of bytes, if it is spelled so."""
    if not isinstance(node, fx.Node) or node.op not in ("call_function", "get_attr", "placeholder"):
        return None
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor) or val.dtype in _BYTES:
        return _Quantized(node) if isinstance(val, torch.Tensor) else None
    if val.dtype not in _WIDER or (node.kwargs and node.target is not aten._to_copy.default):
        return None
    if node.target is aten._to_copy.default:
        return _quantized(node.args[0])
    if node.target not in (aten.sub.Tensor, aten.add.Tensor, aten.mul.Tensor):
        return None
    other: Any
    value, other = node.args
    q = _quantized(value)
    if q is None or q.node.meta["val"].shape != val.shape or isinstance(q.scale, fx.Node) or q.scale != 1:
        return None
    if node.target is aten.mul.Tensor:
        return replace(q, scale=other) if _is_float(other) else None
    if not _is_zero(q.point):
        return None
    if isinstance(other, fx.Node):
        point = _whole(other) if node.target is aten.sub.Tensor else None
    elif math.isfinite(other) and other == int(other):
        point = other if node.target is aten.sub.Tensor else -other
    else:
        point = None
    wraps = val.dtype in _WRAPPING and not _is_byte(point, q.node) if point is not None else True
    return None if wraps else replace(q, point=point)


def _whole(point: fx.Node) -> fx.Node | None:
    """Whole numbers, which may be held as floats."""
    while point.target is aten._to_copy.default and _is_float(point):
        point = point.args[0]  # type: ignore[assignment]
    return None if _is_float(point) else point


def _is_float(value: Any) -> bool:
    return value.meta["val"].dtype.is_floating_point if isinstance(value, fx.Node) else True


def _rows(x: Any, at: fx.Node) -> _Quantized | None:
    """Bytes [rows, inner] with a scale, or one a row."""
    shape = x.meta["val"].shape
    while x.op == "call_function" and x.target in _RESHAPES and x.args[0].meta["val"].shape[-1] == shape[-1]:
        x = x.args[0]
    q = _quantized(x)
    if q is None:
        return None
    values = _parts(q, [(*q.node.meta["val"].shape[:-1], 1)], [-1, 1], at)
    same = q.node.meta["val"].shape == shape
    return values and _Quantized(q.node if same else emit(at, aten.reshape.default, q.node, list(shape)), *values)


def _columns(weight: Any) -> _Quantized | None:
    """Bytes [inner, outer], or [outer, inner, *window] of a convolution, with a scale or one for each of `outer`."""
    turned = weight.target in _TURNS and weight.meta["val"].dim() == 2
    q = _quantized(weight.args[0] if turned else weight)
    if q is None or q.node.meta["val"].dtype is not torch.int8 or q.node is weight:
        return None
    shape = q.node.meta["val"].shape
    first = turned or len(shape) > 2
    outer = shape[0 if first else 1]
    allowed = [(outer, *[1] * (len(shape) - 1))] if first else [(1, outer), (outer,)]
    values = _parts(q, allowed, [-1], weight)
    return values and _Quantized(emit(weight, aten.t.default, q.node) if turned else q.node, *values)


def _parts(q: _Quantized, allowed: list[Any], shape: list[int], at: fx.Node) -> Any:
    """Point and scale in a shape: numbers, or tensors of one element or of these sizes; None for others."""
    values: list[Any] = [q.point, q.scale]
    for i, value in enumerate(values):
        if isinstance(value, fx.Node):
            sizes = tuple(value.meta["val"].shape)
            if any(n != 1 for n in sizes) and sizes not in allowed:
                return None
            values[i] = emit(at, aten.reshape.default, value, shape)
    return values
