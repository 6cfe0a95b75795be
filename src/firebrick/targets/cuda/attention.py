"""Attention over short sequences: a kernel of our own, where the library's takes longer to begin than to compute.

A program has some queries of one head and all of its keys, in one block or block by block, with a softmax that mends
its sums as the maximum grows (https://arxiv.org/abs/2205.14135). All tensors are read and written where they lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from firebrick.ir.index.expr import ONE, ZERO, Expr, as_expr, floordiv, total
from firebrick.ir.kernels.groups import PlannedLaunch
from firebrick.ir.kernels.schedule import Param
from firebrick.ir.loops.program import Buffer, Extern, Ref
from firebrick.targets.cuda.facts import CardFacts
from firebrick.targets.cuda.tiling import power_above
from firebrick.targets.cuda.triton_functions import TYPES

_CALLS = frozenset(
    f"aten::_scaled_dot_product_{name}"
    for name in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
)
_LONGEST = 512
"""Queries and keys up to which it was measured to be faster."""
_FEW, _NARROW = 16, 2048
"""Queries up to which keys may be any number, and elements of all heads up to which that pays: from 700 keys on the
library is faster, but keeps a graph from serving all lengths, 60 us of the host's time a layer (bench/GPU.md)."""
_FILLS = 32
"""Pairs of 64 queries and 64 keys for each multiprocessor, from which the library's kernel is as fast."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: its argument's number, where it begins there, and strides of batch, head, row and column."""

    number: int
    start: int
    strides: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Attention:
    """The body of a kernel. shape: heads, heads that share a key, queries, keys, and elements of each.

    rows, keys: of a program's block. ahead: blocks of keys that are loaded ahead. sizes: names of the numbers of a
    launch that stand for a number of keys, and for strides (as text), where those are not known.
    """

    shape: tuple[Any, ...]
    query: Place
    key: Place
    value: Place
    mask: Place | None
    out: Place
    scale: float
    causal: bool
    dtype: str
    rows: int
    keys: int
    ahead: int
    sizes: tuple[str, ...]
    warps: int = 4


def plan_attention(call: Extern, buffers: Mapping[str, Buffer], card: CardFacts) -> PlannedLaunch | None:
    """The kernel of a call over short sequences, without dropout and without what a backward needs; None for others."""
    name = call.op.partition(".")[0]
    if name not in _CALLS or card.capability < 80 or call.outs[0] is None or any(call.outs[1:]):
        return None
    args = _named(name, call)
    refs: list[Ref] = [args["query"], args["key"], args["value"]]
    bias = args.get("attn_bias", args.get("attn_mask"))
    result = buffers[call.outs[0]]
    out, dtype = Ref(result.name, result.shape, result.strides, as_expr(0)), result.dtype
    every = [*refs, *([] if bias is None else [bias]), out]
    if args["dropout_p"] or not all(isinstance(r, Ref) and _lies(r, buffers, dtype) for r in every):
        return None
    sizes: dict[Expr, str] = {}
    shapes: list[list[Any]] = [[_number(n, sizes) for n in r.shape] for r in refs[:2]]
    (batch, heads, queries, width), (_, shared, keys, _) = shapes
    causal, scale, fixed = bool(args["is_causal"]), args.get("scale"), isinstance(keys, int)
    fits = all(isinstance(n, int) for n in (batch, heads, queries, width, shared)) and refs[2].shape == refs[1].shape
    fits = fits and heads % max(shared, 1) == 0 and 8 <= width <= 128 and width % 8 == 0
    fits = fits and (0 < queries <= _LONGEST >= keys > 0 if fixed else 0 < queries <= _FEW and heads * width <= _NARROW)
    fits = fits and all(r.shape[3] is refs[0].shape[3] and r.strides[3] is ONE for r in (*refs, out))
    if not fits or (causal and (bias is not None or queries != keys)):
        return None
    if not 0 < batch * heads * -(-queries // 64) * (-(-keys // 64) if fixed else 1) <= _FILLS * card.multiprocessors:
        return None
    names = list(dict.fromkeys(r.buffer for r in every))
    rows, block, ahead = _block(batch * heads, queries, keys, power_above(width), card)
    places = [Place(names.index(r.buffer), int(r.offset.const), _strides(r, sizes)) for r in every]
    query, key, value, *mask, target = places
    scale = width**-0.5 if scale is None else float(scale)
    shape = heads, heads // shared, queries, keys, width
    how = scale, causal, dtype, rows, block, ahead, (*sizes.values(),)
    body = Attention(shape, query, key, value, next(iter(mask), None), target, *how)
    params = tuple([Param(f"a{k}", dtype, n == out.buffer) for k, n in enumerate(names)])
    grid = (as_expr(batch * heads * -(-queries // rows)),)
    return PlannedLaunch("attention", params, body, tuple(names), (*sizes,), grid, (("warps", body.warps),))


def _named(name: str, call: Extern) -> dict[str, Any]:
    """The arguments of a call by their names."""
    schema = getattr(torch.ops.aten, name.partition("::")[2]).default._schema
    args = {a.name: a.default_value for a in schema.arguments}
    return {**args, **dict(zip(args, call.args, strict=False)), **dict(call.kwargs)}


def _lies(r: Ref, buffers: Mapping[str, Buffer], dtype: str) -> bool:
    """Whether it has four dimensions, and 32 bits reach all of it; sizes that a launch brings along have 64."""
    if r.dtype is not None or buffers[r.buffer].dtype != dtype or dtype not in ("f16", "bf16") or len(r.shape) != 4:
        return False
    end = r.offset + total((n - 1) * s for n, s in zip(r.shape, r.strides, strict=True))
    return r.offset.is_const and (end.const < 1 << 31 or not end.is_const)


def _number(e: Expr, sizes: dict[Expr, str]) -> int | str:
    """A number, or the name of one of the launch, times the eight elements that are loaded at once where it is."""
    if e.is_const:
        return int(e.const)
    whole = (e % 8) is ZERO
    return sizes.setdefault(floordiv(e, 8) if whole else e, f"s{len(sizes)}") + " * 8" * whole


def _strides(r: Ref, sizes: dict[Expr, str]) -> tuple[int | str, ...]:
    """Strides, 0 along what has one element."""
    return tuple([0 if n is ONE else _number(s, sizes) for n, s in zip(r.shape, r.strides, strict=True)])


def _block(heads: int, queries: int, keys: Any, wide: int, card: CardFacts) -> tuple[int, int, int]:
    """Queries and keys of a block, and blocks ahead: the fastest of 18 for sixteen shapes on an H100."""
    few = heads * -(-queries // 16) <= card.multiprocessors
    if isinstance(keys, str):  # what a multiprocessor has on its way is what it reads in the time of a load
        rows, block, ahead = 16, 128, 3
    elif queries <= 16 or (few and keys <= 128):
        rows, block, ahead = 16, min(max(16, power_above(keys)), 256 if few else 128), 1
    else:
        rows, block, ahead = 64, (64 if keys > 128 else max(16, power_above(keys))), 3 if keys > 128 else 1
    while 2 * wide * (rows + 2 * block * ahead) > card.shared_bytes:
        block, ahead = (block, ahead - 1) if ahead > 1 else (block // 2, 1)
    return rows, block, ahead


# ---------------------------------------------------------------- text


def attention_text(name: str, body: Attention, waits: tuple[str, ...]) -> str:
    """The text of a kernel; its scores are powers of two."""
    heads, share, queries, keys, width = body.shape
    wide, blocks, kind = max(16, power_above(width)), -(-queries // body.rows), TYPES[body.dtype]
    # Text of an index, how many there are, and whether a block reaches beyond them.
    fixed = isinstance(keys, int)
    m, n, d = (queries, queries % body.rows), (keys, keys % body.keys if fixed else 1), (width, wide - width)
    row, turned, key = ("m[:, None]", *m), ("n[None, :]", *n), ("n[:, None]", *n)
    column, deep = ("d[None, :]", *d), ("d[:, None]", *d)

    def at(p: Place, first: _Index, second: _Index) -> str:
        head = f"head // {share}" if share > 1 and p in (body.key, body.value) else "head"
        begin = f"a{p.number} + {p.start} + batch * {p.strides[0]} + {head} * {p.strides[1]}"
        return f"{begin} + {first[0]} * {p.strides[2]} + {second[0]} * {p.strides[3]}"

    def inside(*indices: _Index) -> str:
        return " & ".join([f"({text} < {size})" for text, size, beyond in indices if beyond])

    def load(p: Place, first: _Index, second: _Index) -> str:
        conds = inside(first, second)
        return f"tl.load({at(p, first, second)}, {conds}, 0)" if conds else f"tl.load({at(p, first, second)})"

    scores = [
        f"k = {load(body.key, turned, deep)}",
        f"v = {load(body.value, key, column)}",
        f"s = tl.dot(q, k) * {body.scale * math.log2(math.e)}",
    ]
    if body.mask is not None:
        scores.append(f"s += {load(body.mask, row, turned)}.to(tl.float32) * {math.log2(math.e)}")
    seen = " & ".join([c for c in ("(n[None, :] <= m[:, None])" * body.causal, inside(turned)) if c])
    if seen:
        scores.append(f's = tl.where({seen}, s, -float("inf"))')
    lines = [
        *waits,
        "pid = tl.program_id(0)",
        f"batch, head = pid // {blocks * heads}, pid // {blocks} % {heads}",
        f"m = pid % {blocks} * {body.rows} + tl.arange(0, {body.rows})",
        f"d = tl.arange(0, {wide})",
        f"q = {load(body.query, row, column)}",
    ]
    if fixed and keys <= body.keys:
        lines += [f"n = tl.arange(0, {body.keys})", *scores, *_FIRST]
        lines.append(f"out = tl.dot(p.to({kind}), v)")
    else:
        end = f"tl.minimum({keys}, (pid % {blocks} + 1) * {body.rows})" if body.causal else str(keys)
        lines += [
            f'top = tl.full([{body.rows}], -float("inf"), tl.float32)',
            f"total = tl.zeros([{body.rows}], tl.float32)",
            f"out = tl.zeros([{body.rows}, {wide}], tl.float32)",
            f"for j in tl.range(0, {end}, {body.keys}, num_stages={body.ahead}):",
            *("    " + s for s in (f"n = j + tl.arange(0, {body.keys})", *scores, *_NEXT)),
            f"    out = tl.dot(p.to({kind}), v, out * less[:, None])",
        ]
    lines += [
        "out /= tl.where(total == 0, 1.0, total)[:, None]  # where no key is seen: 0",
        f"tl.store({', '.join([at(body.out, row, column), f'out.to({kind})', *filter(None, [inside(row, column)])])})",
    ]
    numbers = sorted({p.number for p in (body.query, body.key, body.value, body.mask, body.out) if p is not None})
    params = ", ".join([*(f"a{k}" for k in numbers), *body.sizes])
    return "\n".join(["@triton.jit", f"def {name}({params}):", *("    " + s for s in lines)])


_Index = tuple[str, int | str, int]
_FIRST = (
    "top = tl.max(s, 1)",
    'p = tl.exp2(s - tl.where(top == -float("inf"), 0.0, top)[:, None])',
    "total = tl.sum(p, 1)",
)
_NEXT = (
    "new = tl.maximum(top, tl.max(s, 1))",
    'shift = tl.where(new == -float("inf"), 0.0, new)',
    "p = tl.exp2(s - shift[:, None])",
    "less = tl.exp2(top - shift)",
    "total = total * less + tl.sum(p, 1)",
    "top = new",
)
