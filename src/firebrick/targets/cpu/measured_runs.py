"""The forms of matmuls and convolutions as calls that can be timed.

Libraries' are made as a graph would make them, ours by probes. Each form has a copy of the weight. A large shape stands
for itself by a part. What tensors hold does not matter.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import torch

from firebrick.errors import FirebrickError
from firebrick.targets.cpu.convolution_probe import ConvolutionProbe
from firebrick.targets.cpu.matmul_probe import MatmulProbe, PanelProbe
from firebrick.targets.cpu.panel_kernel import BF16_LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from firebrick.config import Config
    from firebrick.targets.base import Choice
    from firebrick.targets.cpu.cpu_target import CpuTarget

aten, mkl, mkldnn = torch.ops.aten, torch.ops.mkl, torch.ops.mkldnn

Run = Callable[[], Any]

_PRODUCTS = 1 << 27
"""Multiplications of a thread beyond which rows and columns are left out: a millisecond or two of them decide."""
_ROWS, _COLUMNS = 256, 1024
"""Rows and columns that are never left out: tiles, and threads' shares, have to be as they will be."""

_probes: dict[Any, Future[Any]] = {}
_lock = Lock()


def probe(target: CpuTarget, config: Config, kind: Callable[..., Any], detail: Any) -> Future[Any]:
    """Our kernels of a kind for any shape, which a thread builds where no process of this machine has."""
    key = (os.getpid(), target, config.compiler, kind, detail)  # a fork has none of the threads
    with _lock:
        future = _probes.get(key)
        if future is None or (future.done() and future.exception()):
            future = _probes[key] = Future()
            Thread(target=_build, args=(future, partial(kind, target, config, detail)), name="firebrick probe").start()
    return future


def _build(future: Future[Any], make: Callable[[], Any]) -> None:
    try:
        future.set_result(make())
    except FirebrickError as error:  # who waits for it raises it
        future.set_exception(error)
    finally:
        future.cancel()  # after any other error nobody waits for ever


def probes_of(weight: torch.Tensor, columns: int, simd: str) -> Iterator[tuple[Callable[..., Any], Any]]:
    """Kinds of kernels that a graph with this weight may measure, and their details."""
    if weight.dtype is torch.bfloat16 and weight.dim() == 2 and simd in BF16_LEVELS:
        yield PanelProbe, None
    if weight.dtype in (torch.float32, torch.bfloat16) and weight.dim() == 2:
        yield MatmulProbe, weight.dtype is torch.bfloat16
    elif weight.dtype is torch.float32 and weight.dim() == 4:
        yield ConvolutionProbe, columns
        yield MatmulProbe, False


def sample(target: CpuTarget, x: torch.Tensor, weight: torch.Tensor) -> tuple[int, int, int]:
    """Rows, products of a sum and columns of the part of a matmul that is measured."""
    (rows, inner), outer = x.shape, weight.shape[1]
    most = max(_PRODUCTS * target.threads // inner, 1)
    rows = min(rows, max(most // outer, _ROWS))
    return rows, inner, min(outer, max(most // rows, _COLUMNS))


_OWN = frozenset({"own", "dots", "panels"})


def matmuls(
    target: CpuTarget, config: Config, forms: Mapping[str, int], like: torch.Tensor, weight: torch.Tensor
) -> Iterator[tuple[str, Run]]:
    """Matmuls by a constant weight."""
    rows, inner, outer = sample(target, like, weight)
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
                run = probe(target, config, PanelProbe, None).result().run(rows, inner, outer)
            elif plan is None:
                run = _library(form, x, weight, bias)
            else:
                run = ours.run(plan, (x, weight, bias.float()), torch.empty(rows, outer))
        except (RuntimeError, ValueError):  # a library without this shape, or a kernel without its tiles
            continue
        yield form, _followed(run, (rows, outer), passes)


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


@dataclass(frozen=True, slots=True)
class _Images:
    """A convolution of images by a constant weight, or as many of its results as are measured."""

    x: list[int]
    weight: list[int]
    out: list[int]
    how: tuple[list[int], list[int], list[int]]

    @classmethod
    def of(cls, most: int, columns: int, x: torch.Tensor, weight: torch.Tensor, how: Any, out: torch.Tensor) -> _Images:
        """The part that takes at most so many multiplications; results fill panels of so many columns."""
        stride, padding, dilation = how
        (batch, inner, height, width), (outer, _, *window) = x.shape, weight.shape
        outer, (lines, across) = -(-outer // columns) * columns, out.shape[2:]
        line = outer * weight[0].numel() * across
        part = max(min(lines, most // (line * batch)), 1)
        batch = max(min(batch, most // (line * part)), 1)
        if part < lines:  # the lines of the input that these results are of
            height = max((part - 1) * stride[0] + (window[0] - 1) * dilation[0] + 1 - 2 * padding[0], 1)
            part = (height + 2 * padding[0] - (window[0] - 1) * dilation[0] - 1) // stride[0] + 1
        sizes = [batch, inner, height, width], [outer, inner, *window], [batch, outer, part, across]
        return cls(*sizes, (list(stride), list(padding), list(dilation)))

    def dense(
        self, kernels: ConvolutionProbe, choice: Choice, x: torch.Tensor, w: torch.Tensor, bias: Any, out: torch.Tensor
    ) -> Run:
        """Our kernel; where it does not pad by itself, after the copy with a border, which counts as a pass."""
        stride, padding, dilation = self.how
        if not any(padding) or "pad" in choice.before:
            in_place = choice.options["in_place"] and not any(padding)
            return kernels.run(x, w, bias, out, self.how, in_place)
        padded = aten.constant_pad_nd(x, [padding[1], padding[1], padding[0], padding[0]])
        return kernels.run(padded, w, bias, out, (stride, [0, 0], dilation), choice.options["in_place"])

    def library(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> Run:
        """oneDNN's call on a packed weight."""
        stride, padding, dilation = self.how
        packed = mkldnn._reorder_convolution_weight(w, padding, stride, dilation, 1, self.x)
        how = (padding, stride, dilation, 1)
        return lambda: mkldnn._convolution_pointwise(x, packed, bias, *how, "none", [], "")


def convolutions(
    target: CpuTarget, config: Config, forms: Mapping[str, int], x: Any, weight: Any, *rest: Any
) -> Iterator[tuple[str, Run]]:
    """Convolutions by a constant weight, channels last; of images with all channels."""
    *how, groups, out = rest
    if out.dim() != 4 or groups > 1 or weight.dtype is not torch.float32:
        return
    dense = {c.name: c for c in target.choices("aten::convolution", (x, weight, *rest))}.get("dense")
    if dense is None:
        return
    columns = dense.options["columns"]
    part = _Images.of(_PRODUCTS * target.threads, columns, x, weight, how, out)
    given: torch.Tensor = torch.ones(part.x).contiguous(memory_format=torch.channels_last)
    results: torch.Tensor = torch.ones(part.out).contiguous(memory_format=torch.channels_last)
    pixels, outer, bias = results.numel() // part.out[1], part.out[1], torch.ones(part.out[1])
    for form, passes in forms.items():
        w = torch.ones(part.weight)
        try:
            if form == "dense":
                run = part.dense(
                    probe(target, config, ConvolutionProbe, columns).result(), dense, given, w, bias, results
                )
            elif form == "matmul":
                kernels = probe(target, config, MatmulProbe, False).result()
                plan = kernels.plan("own", (pixels, part.x[1], outer), True)
                run = kernels.run(plan, (given, w, bias), results)
            elif form == "packed":
                run = part.library(given, w, bias)
            else:
                continue
        except (RuntimeError, ValueError, KeyError):
            continue
        yield form, _followed(run, (pixels, outer), passes)


def _followed(run: Run, shape: tuple[int, int], passes: int) -> Run:
    """A call, and passes over its results."""
    if not passes:
        return run
    results = torch.zeros(shape)

    def both() -> None:
        run()
        for _ in range(passes):
            results.neg_()

    return both
