"""Matmuls by constant weights: kernels of our own, which read a weight where it is.

addmm(bias, x, t(W)) + other; relu   ->   firebrick::linear(x, t(W), None, bias, other, "relu", [])

So are matmuls by constant bfloat16 weights of few rows, or where oneDNN has none: sums are float32 and rounded once, by
the loops that follow. Others go to oneDNN: mkldnn::_linear_pointwise on mkldnn::_reorder_linear_weight(W, rows), which
the recipe computes once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from firebrick.extend.linear import linear_op, panel_columns
from firebrick.extend.metas import absorb
from firebrick.passes.alone import alone
from firebrick.passes.layout import laid_out, propagate_layouts
from firebrick.passes.recipe import RecipeBuilder, is_view

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import fx

    from firebrick.config import Config
    from firebrick.extend.graph import AtenGraph
    from firebrick.passes.alone import Choose

__all__ = [
    "LONG",
    "NO_POST_OP",
    "PostOp",
    "added",
    "is_packable",
    "own_post_op",
    "post_op",
    "prepack_linear",
    "readable",
    "without_gaps",
]

aten = torch.ops.aten
mkldnn = torch.ops.mkldnn

_SMALLEST = 1 << 19
"""Multiplications from which the packed kernel is faster than what it costs to call. Measured for 1 row: 384x384
21 us against 13, 768x768 42 against 44, 768x3072 120 against 169."""
_FEW_ROWS = 4
"""Rows up to which our kernel of bfloat16 is as fast as oneDNN's, which has instructions for it: the weight is read."""

_SAME_ORDER = frozenset(
    {aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims}
)
"""Views through which elements keep their order."""
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


def own_post_op(node: fx.Node) -> PostOp | None:
    """The same for kernels of our own."""
    if node.target in (aten.hardtanh.default, aten.clamp.default):
        default = (-1.0, 1.0) if node.target is aten.hardtanh.default else (None, None)
        given = (*node.args[1:], *default[len(node.args) - 1 :])
        if node.kwargs or not all(type(n) in (int, float) for n in given):
            return None
        low, high = (float(n) for n in given)  # type: ignore[arg-type]
        return PostOp("hardtanh", (low, high)) if low <= high else None
    found = PostOp("relu") if node.target is aten.relu.default else post_op(node)
    if found is not None and found.algorithm == "tanh":
        return PostOp("gelu_tanh")
    return found


LONG = 2048
"""Products in one sum from which a convolution takes the sum in pieces."""


def is_packable(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes with this dtype here."""
    return dtype is torch.float32 or (dtype is torch.bfloat16 and mkldnn._is_mkldnn_bf16_supported())


def prepack_linear(graph: AtenGraph, config: Config, choose: Choose | None = None) -> AtenGraph:
    """Give matmuls by constant weights to their kernels, with the addition and the activation that follow.

    choose: measures the forms of each; without it the cost model's is taken.
    """
    if not config.prepack or config.numerics == "eager" or not graph.frozen:
        return graph
    own = panel_columns(config) > 0

    def form_of(node: fx.Node, recipe: RecipeBuilder) -> str:
        forms = _forms(node, recipe, own)
        if choose is None or len(forms) < 2:
            return forms[0]
        part = alone(_followed(node, own), recipe.is_constant)
        return choose(part, {form: partial(_rewrite, form_of=lambda *_, form=form: form) for form in forms})

    return _rewrite(graph, form_of)


def _rewrite(graph: AtenGraph, form_of: Callable[[fx.Node, RecipeBuilder], str]) -> AtenGraph:
    recipe = RecipeBuilder(graph)
    changed = False
    moved: dict[fx.Node, torch.Tensor] = {}
    for node in list(graph.gm.graph.nodes):
        if node.op == "call_function" and node.target in (aten.mm.default, aten.addmm.default):
            form = form_of(node, recipe)
            if form != "call":
                if form != "packed" and node.meta["val"].dtype is torch.bfloat16:
                    _widen(node, recipe, form)
                else:
                    made, before = _pack(node, recipe, form)
                    if laid_out(made.meta["val"]) != laid_out(before):
                        moved[made] = before
                changed = True
    if moved:
        propagate_layouts(graph.gm, moved)
    if changed:
        graph.gm.graph.eliminate_dead_code()
        recipe.finish()
    return graph


def _factors(node: fx.Node) -> tuple[Any, Any, Any]:
    return (None, *node.args) if node.target is aten.mm.default else node.args  # type: ignore[return-value]


def _forms(node: fx.Node, recipe: RecipeBuilder, own: bool) -> list[str]:
    """What may compute it, best guess first: "own", "dots" and "panels" are kernels of ours (the first leaves the
    choice among the others to its cost model), "packed" is oneDNN with a weight in its layout, "call" ATen."""
    if node.target is aten.addmm.default and (len(node.args) > 3 or any(value != 1 for value in node.kwargs.values())):
        return ["call"]
    bias, x, weight = _factors(node)
    if not recipe.is_constant(weight) or recipe.is_constant(x) or not _fits(node, x, weight, bias):
        return ["call"]
    val = weight.meta["val"]
    rows = x.meta["val"].shape[0]
    if not isinstance(rows, int):
        return ["own"] if own and val.dtype in (torch.float32, torch.bfloat16) else ["call"]
    ours = ["own", "dots", "panels"] if 1 in (val.stride(0), val.shape[0]) else ["own"]
    ours = ours if own and val.dtype in (torch.float32, torch.bfloat16) else []
    packed = ["packed"] if is_packable(val.dtype) else []
    large = math.prod((rows, *val.shape)) >= _SMALLEST
    if large and packed and val.dtype is torch.bfloat16 and rows > _FEW_ROWS:
        return [*packed, *ours, "call"]
    return [*ours, *packed, "call"] if ours or large else ["call", *packed]


def _ends(node: fx.Node, ours: bool) -> tuple[fx.Node | None, fx.Node | None, fx.Node | None, PostOp]:
    """The addition that follows, what it adds, and the activation, as far as one kernel takes them."""
    addition, other = _addition(node)
    tail, fused = _activation(node if addition is None else addition, ours)
    if not ours and tail is not None:  # oneDNN has one of the two
        addition, other = None, None
        tail, fused = _activation(node, ours)
    return addition, other, tail, fused


def _followed(node: fx.Node, own: bool) -> list[fx.Node]:
    """A matmul and what follows it in one kernel."""
    addition, _, tail, _ = _ends(node, own and node.meta["val"].dtype is torch.float32)
    last = tail or addition or node
    found = [node]
    while found[-1] is not last:
        found.append(next(iter(found[-1].users)))
    return found


def _pack(node: fx.Node, recipe: RecipeBuilder, form: str) -> tuple[fx.Node, torch.Tensor]:
    """The call in place of a matmul and what follows it, and the value that it replaces, which may lie otherwise: what
    is added has decided how the sum lay."""
    bias, x, weight = _factors(node)
    ours = form != "packed"
    graph = recipe.aten.gm.graph
    addition, other, tail, fused = _ends(node, ours)
    last = node if addition is None else addition
    if other is not None:
        other = _viewed(graph, other, node, last)
    args: tuple[Any, ...]
    if ours:
        target: Any = linear_op
        read = without_gaps(weight, recipe, node)
        args = (x, read, None, bias, other, fused.attr, list(fused.scalars), *([form] if form != "own" else []))
    else:
        read = recipe.use(_packed(weight, x.meta["val"].shape[0], recipe), node)
        if other is not None:
            target, args = mkldnn._linear_pointwise.binary, (x, other, read, bias, "add")
        else:
            target = mkldnn._linear_pointwise.default
            args = (x, read, bias, fused.attr, list(fused.scalars), fused.algorithm)
    with graph.inserting_before(last):
        made = graph.create_node("call_function", target, args)
    made.meta = dict(node.meta)
    if addition is not None:
        absorb(made, [addition])
    result, before = _viewed(graph, made, last, last), last.meta["val"]
    last.replace_all_uses_with(result)
    graph.erase_node(last)
    if tail is not None:
        absorb(made, [tail])
        tail.replace_all_uses_with(tail.args[0])  # type: ignore[arg-type]
        graph.erase_node(tail)
    return result, before


def _widen(node: fx.Node, recipe: RecipeBuilder, form: str) -> None:
    """A product of bfloat16 factors in float32, with a constant bias; loops add another, and round."""
    bias, x, weight = _factors(node)
    graph = recipe.aten.gm.graph
    inside = bias is not None and recipe.is_constant(bias)
    given = None
    if inside:
        wide = recipe.call(f"{bias.name}_wide", aten._to_copy.default, recipe.copy(bias), dtype=torch.float32)
        given = recipe.use(wide, node)
    last = [form] if form != "own" else []
    read = without_gaps(weight, recipe, node)
    with graph.inserting_before(node):
        made = graph.call_function(linear_op, (x, read, None, given, None, "none", [], *last))
        val = node.meta["val"]
        with val.fake_mode:
            made.meta = {**node.meta, "val": val.float()}
        if bias is not None and not inside:
            summed = graph.call_function(aten.add.Tensor, (made, bias))
            summed.meta = dict(made.meta)
            made = summed
        rounded = graph.call_function(aten._to_copy.default, (made,), {"dtype": torch.bfloat16})
    rounded.meta = dict(node.meta)
    node.replace_all_uses_with(rounded)
    graph.erase_node(node)


def _fits(node: fx.Node, x: fx.Node, weight: fx.Node, bias: fx.Node | None) -> bool:
    """Whether kernels for constant weights take it."""
    out, given, w = node.meta["val"], x.meta["val"], weight.meta["val"]
    sizes = (*given.shape, *w.shape)
    known = given.dim() == 2 and all(isinstance(n, int) for n in sizes[1:])  # rows may be any number
    if out.device.type != "cpu" or not known or not math.prod(sizes):
        return False
    if given.dtype != out.dtype or w.dtype != out.dtype:
        return False
    if bias is None:
        return True
    b = bias.meta["val"]
    return b.dtype == out.dtype and tuple(b.shape) == (w.shape[1],) and b.stride() == (1,)


def added(node: fx.Node, value: fx.Node) -> fx.Node | None:
    """What `node` adds to `value`, if it has the same shape."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return None
    a, b = node.args
    other: Any = b if a is value else a
    if a is b or not isinstance(other, type(node)):
        return None
    before, more = value.meta["val"], other.meta["val"]
    return other if more.shape == before.shape and more.dtype == before.dtype else None


def _addition(node: fx.Node) -> tuple[fx.Node, fx.Node] | tuple[None, None]:
    """The addition that alone reads the product, in the order of its elements, and what it adds."""
    reader = node
    while len(reader.users) == 1:
        value, reader = reader, next(iter(reader.users))
        if reader.target in _SAME_ORDER:
            continue
        other = added(reader, value)
        return (reader, other) if other is not None else (None, None)
    return None, None


def _viewed(graph: fx.Graph, node: fx.Node, like: fx.Node, before: fx.Node) -> fx.Node:
    """The node in another's shape."""
    val, shape = node.meta["val"], like.meta["val"].shape
    if val.shape == shape:
        return node
    with graph.inserting_before(before):
        made = graph.call_function(aten.reshape.default, (node, list(shape)))
    with val.fake_mode:
        made.meta = {**like.meta, "val": val.reshape(shape)}
    return made


def _activation(node: fx.Node, ours: bool) -> tuple[fx.Node | None, PostOp]:
    """The activation that alone reads the product, through views that are alone as well."""
    reader = node
    while len(reader.users) == 1:
        reader = next(iter(reader.users))
        if is_view(reader):
            continue
        fused = (own_post_op if ours else post_op)(reader) if reader.op == "call_function" else None
        # Of a view with gaps the result has none.
        viewed = reader.args[0].meta["val"] if fused is not None else None  # type: ignore[union-attr]
        same = viewed is not None and (reader.meta["val"].dtype, laid_out(reader.meta["val"])) == (
            node.meta["val"].dtype,
            laid_out(viewed),
        )
        return (reader, fused) if same and fused is not None else (None, NO_POST_OP)
    return None, NO_POST_OP


def readable(weight: fx.Node, recipe: RecipeBuilder, before: fx.Node) -> fx.Node:
    """A weight in memory that a kernel can read: the constant's own, or the recipe's of what is computed.

    Only one whose columns and rows both have gaps is copied.
    """
    if weight.op == "get_attr" or not is_view(weight):
        made = weight if weight.op == "get_attr" else recipe.use(recipe.copy(weight), before)
    else:
        base = readable(weight.args[0], recipe, before)  # type: ignore[arg-type]
        made = weight
        if base is not weight.args[0]:
            with recipe.aten.gm.graph.inserting_before(before):
                made = recipe.aten.gm.graph.create_node("call_function", weight.target, (base, *weight.args[1:]))
            made.kwargs, made.meta = weight.kwargs, dict(weight.meta)
    return made


def without_gaps(weight: fx.Node, recipe: RecipeBuilder, before: fx.Node) -> fx.Node:
    """The same weight [inner, outer], or a copy, with elements side by side along one axis."""
    val = weight.meta["val"]
    if any(n == 1 or stride == 1 for n, stride in zip(val.shape, val.stride(), strict=True)):
        return readable(weight, recipe, before)
    return recipe.use(recipe.call(f"{weight.name}_dense", aten.clone.default, recipe.copy(weight)), before)


def _packed(weight: fx.Node, rows: int, recipe: RecipeBuilder) -> fx.Node:
    """The recipe's node of a weight in oneDNN's layout; `weight` is the second factor, [inner, outer]."""
    if weight.target in _TRANSPOSES and isinstance(weight.args[0], type(weight)):
        source = recipe.copy(weight.args[0])
    else:
        source = recipe.call(f"{weight.name}_t", aten.t.default, recipe.copy(weight))
    like = source.meta["val"]
    return recipe.call(f"{source.name}_packed", mkldnn._reorder_linear_weight.default, source, rows, like=like)
