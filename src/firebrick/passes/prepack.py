"""Prepacked matmuls: products with constant weights become oneDNN calls on weights in oneDNN's own layout.

addmm(bias, x, t(W)); gelu      ->   mkldnn::_linear_pointwise(x, packed, bias, "gelu", [], "none")
packed = mkldnn::_reorder_linear_weight(W, rows)          in the recipe, computed once
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from firebrick.extend.metas import absorb
from firebrick.passes.recipe import RecipeBuilder, is_view

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from firebrick.config import Config
    from firebrick.extend.graph import AtenGraph

__all__ = ["LONG", "NO_POST_OP", "PostOp", "is_packable", "post_op", "prepack_linear"]

aten = torch.ops.aten
mkldnn = torch.ops.mkldnn

_SMALLEST = 1 << 19
"""Multiplications from which the packed kernel is faster than what it costs to call. Measured for 1 row: 384x384
21 us against 13, 768x768 42 against 44, 768x3072 120 against 169."""

_TRANSPOSES = frozenset({aten.t.default, aten.transpose.int, aten.permute.default})


@dataclass(frozen=True, slots=True)
class PostOp:
    """A function that oneDNN applies to each result before it is stored."""

    attr: str
    scalars: tuple[float, ...] = ()
    algorithm: str = ""


NO_POST_OP = PostOp("none")
_PLAIN: Mapping[Any, PostOp] = {
    aten.tanh.default: PostOp("tanh"),
    aten.sigmoid.default: PostOp("sigmoid"),
    aten.silu.default: PostOp("swish"),
    aten.hardswish.default: PostOp("hardswish"),
}
"""Op without settings -> post-op. oneDNN's relu, hardtanh and hardsigmoid turn NaN into a number: they stay ours."""


def post_op(node: fx.Node) -> PostOp | None:
    """The post-op that does what `node` does to its first argument, NaN and infinity included."""
    if node.target is aten.gelu.default:
        algorithm = node.kwargs.get("approximate", node.args[1] if len(node.args) > 1 else "none")
        return PostOp("gelu", (), str(algorithm))
    return _PLAIN.get(node.target)


PIECE = 768
"""Products that a matmul of long sums adds in one piece."""

LONG = 2048
"""Products in one sum from which the sum is taken in pieces."""


def is_packable(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes with this dtype here."""
    return dtype is torch.float32 or (dtype is torch.bfloat16 and mkldnn._is_mkldnn_bf16_supported())


def prepack_linear(graph: AtenGraph, config: Config) -> AtenGraph:
    """Pack the constant weights of matmuls, with the activation that follows."""
    if not config.prepack or config.numerics == "eager" or not graph.frozen or not torch.backends.mkldnn.is_available():
        return graph
    recipe = RecipeBuilder(graph)
    changed = False
    for node in list(graph.gm.graph.nodes):
        if node.op == "call_function" and node.target in (aten.mm.default, aten.addmm.default):
            changed = _pack(node, recipe) or changed
    if changed:
        graph.gm.graph.eliminate_dead_code()
        recipe.finish()
    return graph


def _pack(node: fx.Node, recipe: RecipeBuilder) -> bool:
    bias: Any = None
    if node.target is aten.addmm.default:
        if len(node.args) > 3 or any(value != 1 for value in node.kwargs.values()):
            return False
        bias, x, weight = node.args
    else:
        x, weight = node.args
    if not recipe.is_constant(weight) or recipe.is_constant(x) or not _fits(node, x, weight, bias):  # type: ignore[arg-type]
        return False
    graph = recipe.aten.gm.graph
    if weight.meta["val"].shape[0] >= LONG:  # type: ignore[union-attr]
        tail, made = None, _in_pieces(node, x, weight, bias, recipe)  # type: ignore[arg-type]
    else:
        tail, fused = _activation(node)
        read = recipe.use(_packed(weight, x.meta["val"].shape[0], recipe), node)  # type: ignore[arg-type,union-attr]
        args = (x, read, bias, fused.attr, list(fused.scalars), fused.algorithm)
        with graph.inserting_before(node):
            made = graph.create_node("call_function", mkldnn._linear_pointwise.default, args)
        made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    if tail is not None:
        absorb(made, [tail])
        tail.replace_all_uses_with(tail.args[0])  # type: ignore[arg-type]
        graph.erase_node(tail)
    return True


def _in_pieces(node: fx.Node, x: fx.Node, weight: fx.Node, bias: fx.Node | None, recipe: RecipeBuilder) -> fx.Node:
    """x @ w + bias   ->   x[:, k:] @ w[k:] + (x[:, :k] @ w[:k] + bias)

    oneDNN adds the products of an element in long chains; shorter ones have a smaller rounding error.
    """
    graph, given = recipe.aten.gm.graph, x.meta["val"]
    rows, inner = given.shape
    step = -(-inner // -(-inner // PIECE))
    made: fx.Node | None = None
    for start in range(0, inner, step):
        end = min(start + step, inner)
        read = recipe.use(_packed(weight, rows, recipe, (start, end)), node)
        with graph.inserting_before(node):
            part = graph.create_node("call_function", aten.slice.Tensor, (x, 1, start, end))
            part.meta = {**node.meta, "val": given[:, start:end]}
            if made is None:
                args: tuple[Any, ...] = (part, read, bias, "none", [], "")
                made = graph.create_node("call_function", mkldnn._linear_pointwise.default, args)
            else:
                args = (part, made, read, None, "add")
                made = graph.create_node("call_function", mkldnn._linear_pointwise.binary, args)
            made.meta = dict(node.meta)
    assert made is not None
    return made


def _fits(node: fx.Node, x: fx.Node, weight: fx.Node, bias: fx.Node | None) -> bool:
    """Whether oneDNN's packed kernel takes it and is worth calling."""
    out, given, w = node.meta["val"], x.meta["val"], weight.meta["val"]
    sizes = (*given.shape, *w.shape)
    if out.device.type != "cpu" or not all(isinstance(n, int) for n in sizes):
        return False
    if (
        not is_packable(out.dtype)
        or given.dtype != out.dtype
        or w.dtype != out.dtype
        or math.prod((given.shape[0], *w.shape)) < _SMALLEST
    ):
        return False
    if bias is None:
        return True
    b = bias.meta["val"]
    return b.dtype == out.dtype and tuple(b.shape) == (w.shape[1],) and b.stride() == (1,)


def _activation(node: fx.Node) -> tuple[fx.Node | None, PostOp]:
    """The activation that alone reads the product, through views that are alone as well."""
    reader = node
    while len(reader.users) == 1:
        reader = next(iter(reader.users))
        if is_view(reader):
            continue
        fused = post_op(reader) if reader.op == "call_function" else None
        same = fused is not None and reader.meta["val"].dtype == node.meta["val"].dtype
        return (reader, fused) if same and fused is not None else (None, NO_POST_OP)
    return None, NO_POST_OP


def _packed(weight: fx.Node, rows: int, recipe: RecipeBuilder, inner: tuple[int, int] | None = None) -> fx.Node:
    """The recipe's node of a packed weight. `weight` has the shape of the second factor, [inner, outer].

    inner: packs these columns of the weight only.
    """
    if weight.target in _TRANSPOSES and isinstance(weight.args[0], type(weight)):
        source = recipe.copy(weight.args[0])
    else:
        source = recipe.call(f"{weight.name}_t", aten.t.default, recipe.copy(weight))
    name = source.name
    if inner is not None:
        name = f"{name}_{inner[0]}"
        source = recipe.call(f"{name}_part", aten.slice.Tensor, source, 1, *inner)
    like = source.meta["val"]
    return recipe.call(f"{name}_packed", mkldnn._reorder_linear_weight.default, source, rows, like=like)
