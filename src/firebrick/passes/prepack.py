"""Matmuls by constant weights: kernels of our own, which read a weight where it is.

addmm(bias, x, t(W)) + other; relu   ->   firebrick::linear(x, t(W), None, bias, other, "relu", [])
or, on pack_convolution(W, columns):      firebrick::linear(x, packed, None, bias, other, "relu", [], "ahead", outer)

So are matmuls by constant bfloat16 weights of few rows, or where oneDNN has none: sums are float32 and rounded once, by
the loops that follow. With instructions for bfloat16 they are firebrick::panel_product on pack_panels(t(W)), which
rounds. Others go to oneDNN, mkldnn::_linear_pointwise on mkldnn::_reorder_linear_weight(W, rows), or to MKL,
mkl::_mkl_linear on mkl::_mkl_reorder_linear_weight(W, rows); the recipe computes packed weights once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from firebrick.config import Config
from firebrick.fakes.node_values import absorb, device_of
from firebrick.ir.graph.aten import AtenGraph
from firebrick.ir.graph.calls import shows_memory
from firebrick.ir.loops.program import device_type
from firebrick.ir.operators.convolution_op import pack_convolution_op
from firebrick.ir.operators.linear_op import linear_op
from firebrick.ir.operators.panel_op import pack_panels_op, panel_op
from firebrick.passes.alone import Choose, alone, chain
from firebrick.passes.integers import as_float32
from firebrick.passes.layout import laid_out
from firebrick.passes.recipe import RecipeBuilder, emit
from firebrick.targets.base import CALL, Choice, Target

aten = torch.ops.aten
mkl, mkldnn = torch.ops.mkl, torch.ops.mkldnn

SAME_ORDER = frozenset(
    {aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims}
)
"""Views through which elements keep their order."""
_PACKS = frozenset({"packed", "mkl", "tiles"})
"""Forms that have a weight in a layout of their own."""
_TRANSPOSES = frozenset({aten.t.default, aten.transpose.int, aten.permute.default})


@dataclass(frozen=True, slots=True)
class PostOp:
    """A function that a kernel applies to each result before it is stored, with its numbers."""

    attr: str
    scalars: tuple[float, ...] = ()


NO_POST_OP = PostOp("none")
_PLAIN: Mapping[Any, PostOp] = {
    aten.relu.default: PostOp("relu"), aten.tanh.default: PostOp("tanh"), aten.sigmoid.default: PostOp("sigmoid"),
    aten.silu.default: PostOp("swish"), aten.hardswish.default: PostOp("hardswish"),
}  # fmt: skip
"""Op without settings -> post-op."""


def post_op(node: fx.Node, choice: Choice) -> PostOp | None:
    """The post-op that does what `node` does to its first argument, if a kernel has it."""
    fused = _PLAIN.get(node.target)
    if node.target is aten.gelu.default:
        algorithm = node.kwargs.get("approximate", node.args[1] if len(node.args) > 1 else "none")
        fused = PostOp("gelu_tanh" if algorithm == "tanh" else "gelu")
    elif node.target in (aten.hardtanh.default, aten.clamp.default):
        default = (-1.0, 1.0) if node.target is aten.hardtanh.default else (None, None)
        bounds = (*node.args[1:], *default[len(node.args) - 1 :])
        if node.kwargs or not all(type(n) in (int, float) for n in bounds):
            return None
        low, high = (float(n) for n in bounds)  # type: ignore[arg-type]
        fused = PostOp("hardtanh", (low, high)) if low <= high else None
    return fused if fused is not None and fused.attr in choice.after else None


def of_onednn(fused: PostOp) -> list[Any]:
    """A post-op as oneDNN's calls take it."""
    gelu = {"gelu": "none", "gelu_tanh": "tanh"}.get(fused.attr)
    return [fused.attr if gelu is None else "gelu", list(fused.scalars), gelu or ""]


def prepack_linear(
    graph: AtenGraph, targets: Mapping[str, Target], config: Config, choose: Choose | None = None
) -> AtenGraph:
    """Give matmuls by constant weights to their kernels, with the addition and the activation that follow.

    choose: measures the forms of each; without it the cheapest by the target's estimate is taken.
    """
    if not config.prepack or not graph.frozen:
        return graph

    def form_of(node: fx.Node, recipe: RecipeBuilder) -> Choice:
        forms = {c.name: c for c in _choices(node, recipe, targets)}
        if "ahead" in forms:  # the same tiles, and the panels need not be made in each call
            forms.pop("panels", None)
        first = next(iter(forms.values()))
        if choose is None or len(forms) < 2 or not isinstance(node.meta["val"].shape[0], int):
            return first
        chain = _followed(node, max(forms.values(), key=lambda c: len(c.after)))
        rewrites = {name: partial(_rewrite, form_of=lambda *_, form=form: form) for name, form in forms.items()}
        calls = sum(not shows_memory(n) for n in chain)
        passes = {name: calls - _calls_of(node, form) for name, form in forms.items()}
        return forms[choose(alone(chain, recipe.is_constant), rewrites, passes)]

    return _rewrite(graph, form_of)


def _rewrite(graph: AtenGraph, form_of: Callable[[fx.Node, RecipeBuilder], Choice]) -> AtenGraph:
    recipe = RecipeBuilder(graph)
    changed = False
    moved: dict[fx.Node, torch.Tensor] = {}
    for node in list(graph.gm.graph.nodes):
        if node.op == "call_function" and node.target in (aten.mm.default, aten.addmm.default):
            form = form_of(node, recipe)
            if form.name == "wide":
                node, changed = as_float32(node), True
                form = form_of(node, recipe)
            if form.name not in ("call", "wide"):
                packed, before = _pack(node, recipe, form)
                if laid_out(packed.meta["val"]) != laid_out(before):
                    moved[packed] = before
                changed = True
    return recipe.finish(moved) if changed else graph


def _factors(node: fx.Node) -> tuple[Any, Any, Any]:
    return (None, *node.args) if node.target is aten.mm.default else node.args  # type: ignore[return-value]


def _choices(node: fx.Node, recipe: RecipeBuilder, targets: Mapping[str, Target]) -> tuple[Choice, ...]:
    """What may compute it, best guess first: kernels of the target's own read the weight, "packed" has it in oneDNN's
    layout."""
    if node.target is aten.addmm.default and (len(node.args) > 3 or any(value != 1 for value in node.kwargs.values())):
        return (CALL,)
    bias, x, weight = _factors(node)
    target = targets.get(device_type(device_of(node)))
    if target is None or not recipe.is_constant(weight) or recipe.is_constant(x) or not _fits(node, x, weight, bias):
        return (CALL,)
    return target.choices("aten::mm", (x.meta["val"], weight.meta["val"]))


def _ends(node: fx.Node, choice: Choice) -> tuple[fx.Node | None, fx.Node | None, fx.Node | None, PostOp]:
    """The addition that follows, what it adds, and the activation, as far as one kernel takes them."""
    addition, other = _addition(node) if "add" in choice.after else (None, None)
    tail, fused = _activation(node if addition is None else addition, choice)
    if choice.single and tail is not None:
        addition, other = None, None
        tail, fused = _activation(node, choice)
    return addition, other, tail, fused


def _calls_of(node: fx.Node, choice: Choice) -> int:
    """How many calls one kernel takes; less one where loops round its results."""
    addition, _, tail, _ = _ends(node, choice)
    rounds = node.meta["val"].dtype is torch.bfloat16 and choice.name not in (*_PACKS, "call")
    return 1 + (addition is not None) + (tail is not None) - rounds


def _followed(node: fx.Node, choice: Choice) -> list[fx.Node]:
    """A matmul and what follows it in one kernel."""
    addition, _, tail, _ = _ends(node, choice)
    return chain(node, tail or addition or node)


def _pack(node: fx.Node, recipe: RecipeBuilder, form: Choice) -> tuple[fx.Node, torch.Tensor]:
    """The call in place of a matmul and what follows it, and the value that it replaces, which may lie otherwise: what
    is added has decided how the sum lay."""
    bias, x, weight = _factors(node)
    graph, half = recipe.aten.gm.graph, node.meta["val"].dtype is torch.bfloat16
    addition, other, tail, fused = _ends(node, form)
    last = node if addition is None else addition
    if other is not None:
        other = _viewed(graph, other, node, last)
    args: tuple[Any, ...]
    if form.name == "tiles":
        pack = recipe.call(f"{weight.name}_tiles", pack_panels_op, recipe.copy(weight), *form.options.values())
        target: Any = panel_op
        ends = (weight.meta["val"].shape[1], _wide_bias(bias, recipe, node), fused.attr, list(fused.scalars))
        args = (x, recipe.use(pack, node), *ends)
    elif form.name not in _PACKS:
        target = linear_op
        ahead = [weight.meta["val"].shape[1]] if form.name == "ahead" else []
        read = _in_panels(weight, recipe, node, form) if ahead else without_gaps(weight, recipe, node)
        bias = _wide_bias(bias, recipe, node) if half else bias
        named = [form.name] * (form.name != "own")
        args = (x, read, None, bias, other, fused.attr, list(fused.scalars), *named, *ahead)
    else:
        rows = x.meta["val"].shape[0]
        source = _source(weight, recipe)
        reorder = (mkl._mkl_reorder_linear_weight if form.name == "mkl" else mkldnn._reorder_linear_weight).default
        pack = recipe.call(f"{source.name}_{form.name}", reorder, source, rows, like=source.meta["val"])
        read = recipe.use(pack, node)
        if form.name == "mkl":  # the weight itself is for other numbers of rows
            turned = emit(node, aten.t.default, readable(weight, recipe, node))
            target, args = mkl._mkl_linear.default, (x, read, turned, bias, rows)
        elif other is not None:
            target, args = mkldnn._linear_pointwise.binary, (x, other, read, bias, "add")
        else:
            target = mkldnn._linear_pointwise.default
            args = (x, read, bias, *of_onednn(fused))
    with graph.inserting_before(last):
        call = graph.create_node("call_function", target, args)
    call.meta = dict(node.meta)
    if addition is not None:
        absorb(call, [addition])
    result = call
    if half and target is linear_op:  # its results are float32, and loops round them
        with node.meta["val"].fake_mode:
            call.meta["val"] = node.meta["val"].float()
        result = emit(last, aten._to_copy.default, call, dtype=torch.bfloat16)
    result, before = _viewed(graph, result, last, last), last.meta["val"]
    last.replace_all_uses_with(result)
    graph.erase_node(last)
    if tail is not None:
        absorb(call, [tail])
        tail.replace_all_uses_with(tail.args[0])  # type: ignore[arg-type]
        graph.erase_node(tail)
    return result, before


def _wide_bias(bias: fx.Node | None, recipe: RecipeBuilder, before: fx.Node) -> fx.Node | None:
    """A bias as float32."""
    if bias is None or not recipe.is_constant(bias):
        return bias and emit(before, aten._to_copy.default, bias, dtype=torch.float32)
    return recipe.use(recipe.cast(recipe.copy(bias), torch.float32), before)


def _fits(node: fx.Node, x: fx.Node, weight: fx.Node, bias: fx.Node | None) -> bool:
    """Whether kernels for constant weights take it."""
    out, rows, w = node.meta["val"], x.meta["val"], weight.meta["val"]
    sizes = [*rows.shape[1:], *w.shape, *(n for n in rows.shape[:1] if isinstance(n, int))]  # of rows any number
    if not all(isinstance(n, int) for n in sizes) or not math.prod(sizes):
        return False
    if rows.dtype != out.dtype or w.dtype != out.dtype:
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
        if reader.target in SAME_ORDER:
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
        reshaped = graph.call_function(aten.reshape.default)
    reshaped.args = (node, list(shape))  # behind, since torch warns of sizes that are symbols
    with val.fake_mode:
        reshaped.meta = {**like.meta, "val": val.reshape(shape)}
    return reshaped


def _activation(node: fx.Node, choice: Choice) -> tuple[fx.Node | None, PostOp]:
    """The activation that alone reads the product, through views that are alone as well and a rounding to halves."""
    reader = node
    while len(reader.users) == 1:
        reader = next(iter(reader.users))
        rounds = reader.target is aten._to_copy.default and reader.kwargs.keys() == {"dtype"}
        if shows_memory(reader) or (rounds and reader.meta["val"].dtype in (torch.bfloat16, torch.float16)):
            continue
        fused = post_op(reader, choice) if reader.op == "call_function" else None
        # Of a view with gaps the result has none.
        viewed = reader.args[0].meta["val"] if fused is not None else None  # type: ignore[union-attr]
        alike = viewed is not None and laid_out(reader.meta["val"]) == laid_out(viewed)
        same = alike and reader.meta["val"].dtype == viewed.dtype  # type: ignore[union-attr]
        return (reader, fused) if same and fused is not None else (None, NO_POST_OP)
    return None, NO_POST_OP


def readable(weight: fx.Node, recipe: RecipeBuilder, before: fx.Node) -> fx.Node:
    """A weight in memory that a kernel can read: the constant's own, or the recipe's of what is computed.

    Only one whose columns and rows both have gaps is copied.
    """
    if weight.op == "get_attr" or not shows_memory(weight):
        read = weight if weight.op == "get_attr" else recipe.use(recipe.copy(weight), before)
    else:
        base = readable(weight.args[0], recipe, before)  # type: ignore[arg-type]
        read = weight
        if base is not weight.args[0]:
            with recipe.aten.gm.graph.inserting_before(before):
                read = recipe.aten.gm.graph.create_node("call_function", weight.target, (base, *weight.args[1:]))
            read.kwargs, read.meta = weight.kwargs, dict(weight.meta)
    return read


def without_gaps(weight: fx.Node, recipe: RecipeBuilder, before: fx.Node) -> fx.Node:
    """The same weight [inner, outer], or a copy, with elements side by side along one axis."""
    val = weight.meta["val"]
    if any(n == 1 or stride == 1 for n, stride in zip(val.shape, val.stride(), strict=True)):
        return readable(weight, recipe, before)
    return recipe.use(recipe.call(f"{weight.name}_dense", aten.clone.default, recipe.copy(weight)), before)


def _source(weight: fx.Node, recipe: RecipeBuilder) -> fx.Node:
    """The recipe's node of a weight [outer, inner]; `weight` is the second factor, [inner, outer]."""
    if weight.target in _TRANSPOSES and isinstance(weight.args[0], type(weight)):
        return recipe.copy(weight.args[0])
    return recipe.call(f"{weight.name}_t", aten.t.default, recipe.copy(weight))


def _in_panels(weight: fx.Node, recipe: RecipeBuilder, before: fx.Node, form: Choice) -> fx.Node:
    """A weight in panels of columns, as of a convolution of single pixels."""
    source = _source(weight, recipe)
    pixels = recipe.call(f"{source.name}_pixels", aten.reshape.default, source, [*source.meta["val"].shape, 1, 1])
    packed = recipe.call(f"{source.name}_panels", pack_convolution_op, pixels, form.options["columns"])
    return recipe.use(packed, before)
