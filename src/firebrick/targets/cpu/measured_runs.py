"""The forms of matmuls, attention and convolutions as calls that can be timed.

Libraries' are made as a graph would make them, ours by probes. Each form has a copy of the weight. A large shape stands
for itself by a part. What tensors hold does not matter.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch

from firebrick.config import Config
from firebrick.gc_pause import BUILDER
from firebrick.targets.base import Choice
from firebrick.targets.cpu.convolution_probe import ConvolutionProbe
from firebrick.targets.cpu.depthwise_kernel import lanes_of, results_of
from firebrick.targets.cpu.matmul_probe import ATTENTION, SIZES, MatmulProbe, bound, kernel_probe
from firebrick.targets.cpu.panel_kernel import BF16_LEVELS, HALVES, PANEL_COLUMNS, PanelProduct, window_of

if TYPE_CHECKING:
    from firebrick.targets.cpu.cpu_target import CpuTarget

aten, mkl, mkldnn = torch.ops.aten, torch.ops.mkl, torch.ops.mkldnn

Run = Callable[[], Any]

_PRODUCTS = 1 << 27
"""Multiplications of a thread beyond which rows and columns are left out: a millisecond or two of them decide."""
_ROWS, _COLUMNS = 256, 1024
"""Rows and columns that are never left out: tiles, and threads' shares, have to be as they will be."""
_LENGTH = 768
"""Queries and keys of attention that are measured: as many as eager mode's kernel takes large blocks for."""

_PANELS = PanelProduct("sizes[0]", "sizes[1]", "sizes[2]", (0, "sizes[1]"), 0, "sizes[2]", HALVES, "uint16_t", 0)
"""A product of bfloat16 of any size."""
_WINDOWS = replace(_PANELS, x=(0, "sizes[3]"), window=tuple(SIZES[4:18]))
"""The same under windows."""

_probes: dict[Any, Future[Any]] = {}
_lock = Lock()


def probe(target: CpuTarget, config: Config, kind: Callable[..., Any], detail: Any) -> Future[Any]:
    """Our kernels of a kind for any shape, which a thread builds where no process of this machine has."""
    key = (os.getpid(), target, config.compiler, kind, detail)  # a fork has none of the threads
    with _lock:
        future = _probes.get(key)
        if future is None or (future.done() and future.exception()):
            future = _probes[key] = ThreadPoolExecutor(1, BUILDER).submit(kind, target, config, detail)
    return future


def probes_of(target: CpuTarget, op: str, args: tuple[Any, ...]) -> Iterator[tuple[Callable[..., Any], Any]]:
    """Kinds of kernels that an op may be measured by, and their details."""
    weight, half = args[1], args[1].dtype is torch.bfloat16
    quick = half and target.simd in BF16_LEVELS
    if op == "aten::convolution":
        for choice in target.choices(op, args) if weight.dtype is torch.float32 else ():
            if choice.name == "matmul":
                yield MatmulProbe, False
            elif "columns" in choice.options:
                yield ConvolutionProbe, choice.options["columns"] or _tile(target, *args)
        if quick and weight.dim() == 4:
            yield kernel_probe, _WINDOWS
    elif half and op == "firebrick::attention":
        yield kernel_probe, replace(ATTENTION, half=True)
    elif half or weight.dtype is torch.float32:
        yield MatmulProbe, half
        if quick and op == "aten::mm":
            yield kernel_probe, _PANELS


def _tile(target: CpuTarget, x: Any, weight: Any, stride: Any, _: Any, dilation: Any, *rest: Any) -> tuple[int, ...]:
    """What a kernel of channels by themselves is written for."""
    sizes = weight.shape[-1], stride[-1], dilation[-1], results_of(rest[-1].shape[-1])
    return lanes_of(target.vector_bytes, weight.shape[0]), *sizes


_OWN = frozenset({"own", "dots", "panels", "ahead"})


def matmuls(
    target: CpuTarget, config: Config, forms: Mapping[str, int], like: torch.Tensor, weight: torch.Tensor
) -> Iterator[tuple[str, Run]]:
    """Matmuls by a constant weight."""
    (rows, inner), outer = like.shape, weight.shape[1]
    most = max(_PRODUCTS * target.threads // inner, 1)
    rows = min(rows, max(most // outer, _ROWS))
    outer = min(outer, max(most // rows, _COLUMNS))
    turned, dtype, seen = 1 in (weight.stride(0), weight.shape[0]), weight.dtype, set()
    ours: Any = None
    if not forms.keys().isdisjoint(_OWN):
        ours = probe(target, config, MatmulProbe, dtype is torch.bfloat16).result()
        inner, outer = ours.rounded(inner, outer)
    x, bias = torch.ones(rows, inner, dtype=dtype), torch.ones(outer, dtype=dtype)
    for form, passes in forms.items():
        plan = None
        if form in _OWN:
            plan = ours.plan(form, (rows, inner, outer), turned)
            if plan[0] in seen:
                continue
            seen.add(plan[0])
        weight = torch.ones((outer, inner) if turned else (inner, outer), dtype=dtype)
        weight = weight.t() if turned else weight
        try:
            if form == "tiles":
                columns = PANEL_COLUMNS[target.vector_bytes]
                read = torch.ones(-(-outer // columns), -(-inner // (16 * HALVES)) * 16, columns, HALVES, dtype=dtype)
                tensors = x, read, bias.float(), x.new_empty(rows, outer)
                run = probe(target, config, kernel_probe, _PANELS).result()(tensors, rows, inner, outer)
            elif form == "wide":
                run = partial(_both, x.float, _library("packed", x.float(), weight.float(), bias.float()))
            elif plan is None:
                run = _library(form, x, weight, bias)
            else:
                run = ours.run(plan, (x, weight, bias.float()), torch.empty(rows, outer))
        except (RuntimeError, ValueError):  # a library without this shape, or a kernel without its tiles
            continue
        yield form, _followed(run, (rows, outer), passes)


def _both(*runs: Run) -> None:
    for run in runs:
        run()


def _library(form: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Run:
    """A call of a library; its weight is packed now."""
    rows, source = x.shape[0], weight.t()
    if form == "mkl":
        packed = mkl._mkl_reorder_linear_weight(source, rows)
        return lambda: mkl._mkl_linear(x, packed, source, bias, rows)
    if form == "packed":
        packed = mkldnn._reorder_linear_weight(source, rows)
        return lambda: mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    out = x.new_empty(rows, weight.shape[1])
    return lambda: torch.addmm(bias, x, weight, out=out)


def batches(
    target: CpuTarget, config: Config, forms: Mapping[str, int], x: torch.Tensor, y: torch.Tensor
) -> Iterator[tuple[str, Run]]:
    """Batches of products of what both is computed."""
    batch, rows, inner = x.shape
    outer = y.shape[2]
    batch = min(batch, max(_PRODUCTS * target.threads // max(rows * inner * outer, 1), 4 * target.threads))
    ours, turned = probe(target, config, MatmulProbe, False).result(), y.stride(2) != 1
    inner, outer = ours.rounded(inner, outer)
    a, b = torch.ones(batch, rows, inner), torch.ones((batch, outer, inner) if turned else (batch, inner, outer))
    out = torch.empty(batch, rows, outer)
    for form in forms:
        if form == "own":
            plan = ours.plan(form, (rows, inner, outer), turned, batch)
            yield form, ours.run(plan, (a, b, None), out)
        else:
            yield form, lambda: torch.bmm(a, b.mT if turned else b, out=out)


def attentions(target: CpuTarget, config: Config, forms: Mapping[str, int], *args: Any) -> Iterator[tuple[str, Run]]:
    """Attention. What the values of a mask will hide is not known: here it is a quarter of the keys, between nothing
    and what is ahead of each query."""
    *given, mask, causal = args
    if any(t.stride(3) != 1 for t in given):  # a copy comes before our kernel
        return
    (batch, heads, rows, size), keys = given[0].shape, min(given[1].shape[2], _LENGTH)
    rows = min(rows, _LENGTH)
    most = max(_PRODUCTS * target.threads // max(2 * rows * keys * size, 1), 4 * target.threads)
    heads = min(heads, most)
    batch = min(batch, most // heads)
    # Rows are as far apart as where all heads of one lie side by side.
    dtype = given[0].dtype
    whole = (torch.ones(batch, n, given[0].shape[1], size, dtype=dtype) for n in (rows, keys, keys))
    read = [t[:, :, :heads].transpose(1, 2) for t in whole]
    if mask is not None:
        sizes = (batch, heads, rows, keys)[-mask.dim() :]
        mask = torch.zeros([min(sizes) for sizes in zip(mask.shape, sizes, strict=True)], dtype=dtype)
        mask[..., keys - keys // 4 :] = -math.inf
    for form in forms:
        if form == "own":
            yield form, attended(target, config, read, mask, causal)
        else:
            yield form, partial(aten._scaled_dot_product_flash_attention_for_cpu, *read, 0.0, causal, attn_mask=mask)


def attended(
    target: CpuTarget, config: Config, read: Sequence[torch.Tensor], mask: torch.Tensor | None, causal: bool
) -> Run:
    """Our kernel of what is `read`, queries, keys and values; its last tensor has the results."""
    (batch, heads, rows, size), keys = read[0].shape, read[1].shape[2]
    out = read[0].new_empty(batch, rows, heads, size).transpose(1, 2)
    steps = [s * (n > 1) for t in (mask,) if t is not None for n, s in zip(t.shape, t.stride(), strict=True)]
    places = [n for t in (*read, out) for n in (0, *t.stride()[:3])]
    numbers = (batch, heads, rows, keys, size, *places, -(mask is None), *[0, 0, 0, 0, *steps][-4:-1], causal)
    tensors = [t for t in (*read, mask, out) if t is not None]
    if out.dtype is torch.bfloat16:
        run: Run = probe(target, config, kernel_probe, replace(ATTENTION, half=True)).result()(tensors, *numbers)
        return run
    kernels = probe(target, config, MatmulProbe, False).result()
    return bound(kernels.calls["attention"], tensors, numbers, kernels)


@dataclass(frozen=True, slots=True)
class _Part:
    """A convolution by a constant weight, or as many of its results as are measured; rows are images of height 1."""

    x: list[int]
    weight: list[int]
    out: list[int]
    how: tuple[list[int], list[int], list[int]]
    groups: int

    @classmethod
    def of(cls, most: int, fill: int, x: Any, weight: Any, how: Any, groups: int, out: Any) -> _Part:
        """The part that takes at most so many multiplications; channels fill so many lanes."""
        sizes, (stride, padding, dilation) = [list(t.shape) for t in (x, weight, out)], map(list, how)
        if len(sizes[0]) == 3:
            for size in sizes:
                size.insert(2, 1)
            stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
        size, window, results = sizes
        window[0] = results[1] = -(-window[0] // fill) * fill
        line = math.prod(window) * results[-1]
        for d in range(2, len(size) - 1):  # depth, then lines
            part = max(results[d] * most // (line * results[0] * math.prod(results[2:-1])), 1)
            if part < results[d]:  # what of the input these results are of, away from its border
                size[d] = (part - 1) * stride[d - 2] + (window[d] - 1) * dilation[d - 2] + 1
                results[d], padding[d - 2] = part, 0
        size[0] = results[0] = max(min(results[0], most // (line * math.prod(results[2:-1]))), 1)
        return cls(size, window, results, (stride, padding, dilation), groups)

    def own(self, kernels: ConvolutionProbe, choice: Choice, bias: torch.Tensor) -> Run:
        """Our kernel, of a volume for each place in the depth of a window; where it does not pad by itself, on an input
        with a border, whose making counts as a pass."""
        (batch, inner, *size), (outer, each, *window), (_, _, *results) = self.x, self.weight, self.out
        stride, padding, dilation = (sides[-2:] for sides in self.how)
        pads, images = "pad" in choice.before and len(size) == 2, batch * math.prod(results[:-2])
        image = size[-2:] if pads else [n + 2 * around for n, around in zip(size[-2:], padding, strict=True)]
        x, how = _images(images, inner, *image), (stride, padding if pads else [0, 0], dilation)
        outs, runs = [_images(images, outer, *results[-2:]) for _ in range(2)], []
        for k in range(math.prod(window[:-2])):
            w = torch.ones(outer, each, *window[-2:])
            runs.append(kernels.run(x, w, None if k else bias, outs[0], how, outs[1] if k else None))
            outs.reverse()
        return runs[0] if len(runs) == 1 else lambda: [run() for run in runs]

    def tiles(self, kernel: Callable[..., Run], bias: torch.Tensor) -> Run:
        """Our kernel of bfloat16."""
        columns = PANEL_COLUMNS[64]  # of vectors as long as its instructions'
        x, (outer, _, *window), (batch, _, *size) = _images(*self.x), self.weight, self.out
        numbers, depth, apart = window_of(self.x, x.stride(), size, window, *self.how)
        panels = torch.ones(-(-outer // columns), -(-depth // (16 * HALVES)) * 16, columns, HALVES).bfloat16()
        tensors = x.bfloat16(), panels, bias.float(), _images(batch, outer, *size).bfloat16()
        return kernel(tensors, batch * math.prod(size), depth, outer, apart, *numbers)

    def library(self, bias: torch.Tensor, pieces: int) -> Run:
        """oneDNN's call on packed weights, of so many pieces of the channels."""
        x, w, (stride, padding, dilation) = _images(*self.x), torch.ones(self.weight), self.how
        x, w = x.to(bias.dtype), w.to(bias.dtype)
        how = (padding, stride, dilation, self.groups)
        parts = list(zip(x.chunk(pieces, 1), w.chunk(pieces, 1), strict=True))
        reads = [(a, mkldnn._reorder_convolution_weight(b, *how, list(a.shape))) for a, b in parts]

        def run() -> torch.Tensor:
            out: torch.Tensor = mkldnn._convolution_pointwise(*reads[0], bias, *how, "none", [], "")
            for a, b in reads[1:]:
                out = mkldnn._convolution_pointwise.binary(a, out, b, None, *how, "add", None, None, [], None)
            return out

        return run


def _images(*sizes: int) -> torch.Tensor:
    """Images or volumes, channels last."""
    return torch.ones(sizes[0], *sizes[2:], sizes[1]).movedim(-1, 1)


def convolutions(
    target: CpuTarget, config: Config, forms: Mapping[str, int], x: Any, weight: Any, *rest: Any
) -> Iterator[tuple[str, Run]]:
    """Convolutions by a constant weight, channels last."""
    *how, groups, out = rest
    choices = {c.name: c for c in target.choices("aten::convolution", (x, weight, *rest))}
    pair = target.vector_bytes // 2 if groups == 1 else 1  # of vectors, which is what probes have tiles for
    part = _Part.of(_PRODUCTS * target.threads, max(pair, 1), x, weight, how, groups, out)
    outer, inner, *_ = part.weight
    pixels, bias = math.prod(part.out) // outer, torch.ones(outer, dtype=weight.dtype)
    for form, passes in forms.items():
        try:
            if form == "matmul":
                kernels = probe(target, config, MatmulProbe, False).result()
                plan, given = kernels.plan("own", (pixels, inner, outer), True), torch.ones(pixels, inner)
                run = kernels.run(plan, (given, torch.ones(part.weight), bias), torch.ones(pixels, outer))
            elif form == "tiles":
                run = part.tiles(probe(target, config, kernel_probe, _WINDOWS).result(), bias)
            elif form == "packed":
                run = part.library(bias, choices[form].options["pieces"])
            else:
                detail = choices[form].options["columns"] or _tile(target, x, weight, *rest)
                run = part.own(probe(target, config, ConvolutionProbe, detail).result(), choices[form], bias)
        except (RuntimeError, ValueError, KeyError):
            continue
        yield form, _followed(run, (pixels, outer), passes, bias.dtype)


def _followed(run: Run, shape: tuple[int, int], passes: int, dtype: torch.dtype = torch.float32) -> Run:
    """A call, and passes over its results."""
    if passes <= 0:
        return run
    results = torch.zeros(shape, dtype=dtype)
    return lambda: (run(), [results.neg_() for _ in range(passes)])
