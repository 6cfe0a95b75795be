"""What may compute matmuls, convolutions and recurrent layers on a CPU: kernels written by hand, and oneDNN's.

Costs are relative to ATen's own call, which is one of the choices. They only rank: how fast each is on the machine at
hand is measured, and where nothing is, or noise hides it, the order is the same on all machines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from firebrick.targets.base import CALL, Choice
from firebrick.targets.cpu.attention_kernel import WIDEST
from firebrick.targets.cpu.epilogue import ACTIVATIONS
from firebrick.targets.cpu.matmul_kernel import REGISTERS, vectors_ahead
from firebrick.targets.cpu.panel_kernel import BF16_LEVELS, HALVES, PANEL_COLUMNS, VNNI, VNNI_LEVELS

if TYPE_CHECKING:
    from firebrick.targets.cpu.cpu_target import CpuTarget

mkldnn = torch.ops.mkldnn

COLUMNS = {64: 32, 32: 16, 16: 16}
"""Bytes of a vector -> columns of a panel, two vectors or more; without vectors the library's kernels are best."""
BROAD = {32: 64}
"""Columns of a panel -> of convolutions, where registers hold four vectors of it beside sums of six pixels."""
_WRITTEN = frozenset({"scale", "bias", "add", *ACTIVATIONS})
_HALF = frozenset({"bias", *ACTIVATIONS})
_ONEDNN = frozenset({"bias", "gelu", "gelu_tanh", "tanh", "sigmoid", "swish", "hardswish"})
"""What is done to results before they are stored. oneDNN's relu, hardtanh and hardsigmoid turn NaN into a number."""

_MANY, _SMALL = 32, 64
"""Sequences beyond which, in layers of more hidden units, a step has rows enough for oneDNN's LSTM to be quick."""
_PACKED, _AHEAD, _TILES, _BEHIND = 0.75, 0.45, 0.7, 1.5
"""Cost of kernels whose weight is packed ahead of time, oneDNN's and ours, of ours with instructions for bfloat16, and
of slow ones."""
_SOME = 16
"""Rows from which panels that are packed ahead of time are likely quicker than a weight that is read where it is."""
_LANES, _WIDEST = 4, 32
"""Channels that fill the shortest vectors, and width of a window up to which a kernel of channels by themselves is
written: it has a line for each place and result."""
_WIDE, _THIN, _THICK = 40, 8, 1024
"""Results in a row, and channels, from which a dense convolution's kernel likely pads by itself quicker: a copy of the
input that puts few channels side by side has to be made anyway. Most channels: what it copies lies on the stack."""
_SHORT = 8
"""Results in a row below which the taller tiles of narrow panels are likely quicker."""
_LEAST_OF_VOLUMES = 16
"""Products of a result that one place in the depth of a window has, if volumes are likely quicker as images."""
_FEW = 8
"""Pixels up to which a convolution of single ones is also a matmul, which reads the weight once, where it is."""
_LONG = 2048
"""Products in one sum from which oneDNN's convolution takes the sum in two pieces."""


def find_choices(target: CpuTarget, op: str, args: tuple[Any, ...]) -> tuple[Choice, ...]:
    """What computes an op, the cheapest first; of equal ones the first here."""
    if target.exact or op not in (*_OPS, "firebrick::panel_product"):
        return (CALL,)
    if op == "firebrick::panel_product":
        return (*_panel_product(target, *args), CALL)
    columns = COLUMNS.get(target.vector_bytes, 0)
    choices = [*_OPS[op](columns, *args), CALL]
    half = op in _TILED and args[1].dtype is torch.bfloat16
    tiled = op == "aten::mm" or (half and args[1].dim() == 4 and args[5] == 1 and min(args[3]) >= 0)
    if half and target.simd in BF16_LEVELS and tiled:
        options = {"columns": columns, "depth": HALVES}
        choices.append(Choice("tiles", _TILES, _TILED[op], frozenset({"pad"}), options=options))
    elif half and op == "aten::mm" and isinstance(args[0].shape[0], int) and target.widens(torch.bfloat16):
        choices = [c for c in choices if c.name != "packed"]  # oneDNN's does without the instructions
        choices.append(Choice("wide", _PACKED))
    elif columns and op == "aten::mm" and args[1].dtype is torch.float32 and isinstance(args[0].shape[0], int):
        width = vectors_ahead(REGISTERS[target.vector_bytes]) * target.vector_bytes // 4
        if min(args[1].shape) >= width:
            cost = _AHEAD if args[0].shape[0] >= _SOME else _PACKED  # of few rows the weight is but read
            choices.append(Choice("ahead", cost, _WRITTEN, options={"columns": width}))
    return tuple(sorted(choices, key=lambda c: c.cost))


def _is_packable(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes with this dtype here."""
    return dtype is torch.float32 or (dtype is torch.bfloat16 and mkldnn._is_mkldnn_bf16_supported())


def _matmul(columns: int, x: Any, weight: Any) -> list[Choice]:
    """x [rows, inner] by a constant weight [inner, outer]: "own" leaves the choice of "dots" and "panels" to the
    kernel, "packed" is oneDNN with the weight in its layout, "mkl" is MKL with the weight in its."""
    half, rows = weight.dtype is torch.bfloat16, x.shape[0]
    if not isinstance(rows, int):  # oneDNN would have to know how many
        return [Choice("own", 0.5, _WRITTEN)] if columns and weight.dtype is torch.float32 else []
    choices = [Choice("packed", _PACKED, _ONEDNN | {"add"}, single=True)]
    choices = choices if _is_packable(weight.dtype) else []
    if weight.dtype is torch.float32 and torch.backends.mkl.is_available() and rows:
        choices.append(Choice("mkl", _PACKED, frozenset({"bias"})))
    if columns and (half or weight.dtype is torch.float32):
        along = 1 in (weight.stride(0), weight.shape[0])
        cost = 1.0 if half and rows > 1 else 0.5  # the library multiplies bfloat16; of one row the weight is but read
        after = _HALF if half else _WRITTEN
        choices += [Choice(name, cost, after) for name in ("own", "dots", "panels")[: 3 if along else 1]]
    return choices


def _batched(columns: int, x: Any, y: Any) -> list[Choice]:
    """x [batch, rows, inner] by y [batch, inner, outer]."""
    sides = any(n == 1 or s == 1 for n, s in zip(y.shape[1:], y.stride()[1:], strict=True))
    if not columns or x.dtype is not torch.float32 or not math.prod((*x.shape, y.shape[2])) or not sides:
        return []
    return [Choice("own", 0.5)]


def _attention(columns: int, q: Any, k: Any, v: Any, mask: Any, causal: bool) -> list[Choice]:
    """Attention of [batch, heads, length, size], of whole panels; of one query the call reads keys and values once."""
    (batch, heads, rows, size), keys = q.shape, k.shape[2]
    known = all(type(n) is int for n in (heads, size)) and all(type(n) is not int or n for n in (batch, rows, keys))
    if not columns or not known or q.dtype not in (torch.float32, torch.bfloat16) or size % columns or size > WIDEST:
        return []
    # Texts: sizes that are symbols are compared without deciding anything about them.
    alike = str([*k.shape]) == str([*v.shape]) == str([batch, heads, keys, size])
    hides = mask is None or (mask.dtype is q.dtype and str(mask.shape[-1]) == str(keys) and mask.dim() in (2, 4))
    takes = alike and hides and (mask is None or not causal)
    return [Choice("own", 1.1 if type(rows) is int and rows == 1 else 0.7)] if takes else []


def _convolution(
    columns: int, x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int, out: Any
) -> list[Choice]:
    """A convolution by a constant weight: of few single pixels it is a matmul. "dense" pads by itself or has its input
    padded, whichever is likely quicker, "clipped" and "padded" are the other way; the panels of "narrow" are."""
    del dilation
    outer, inner, *window = weight.shape
    long = out.dtype is torch.float32 and groups == 1 and inner >= 2 and math.prod(weight.shape[1:]) >= _LONG
    library = _packed(out, 1 + long)
    if not library or not columns or out.dtype is not torch.float32 or any(n < 0 for n in padding):
        return library
    thin = len(window) == 3 and window[0] > 1 and inner * math.prod(window[1:]) < _LEAST_OF_VOLUMES
    own = _BEHIND if thin else _PACKED
    if groups == 1:
        single = math.prod(window) == 1 and not any(padding) and all(n == 1 for n in stride)
        few = single and out.shape[0] * math.prod(out.shape[2:]) <= _FEW
        broad = BROAD.get(columns, columns) if outer > columns else columns
        inside = len(window) < 3 and x.shape[1] * stride[-1] <= _THICK
        wide = inside and out.shape[-1] >= _WIDE and x.shape[1] >= _THIN
        dense = Choice("dense", own, _WRITTEN, frozenset({"pad"} if wide else ()), options={"columns": broad})
        other = replace(dense, name="padded" if wide else "clipped", before=frozenset({"pad"}) - dense.before)
        forms = [dense, other] if inside and any(padding) else [dense]
        if broad > columns:
            narrow = replace(dense, name="narrow", before=frozenset(), options={"columns": columns})
            forms.insert(0 if out.shape[-1] < _SHORT and not single else len(forms), narrow)
        return [*([Choice("matmul", own, _WRITTEN)] if few else []), *forms, *library]
    whole = groups == outer == x.shape[1] and inner == 1 and outer >= _LANES and window[-1] <= _WIDEST
    pads = Choice("depthwise", own, _WRITTEN, frozenset({"pad"}), options={"columns": 0})
    return [pads, *library] if whole else library


def _packed(out: Any, pieces: int = 1) -> list[Choice]:
    """oneDNN's convolution on packed weights, in so many pieces of the channels."""
    packable = torch.backends.mkldnn.is_available() and _is_packable(out.dtype)
    return [Choice("packed", _PACKED, _ONEDNN, options={"pieces": pieces})] if packable else []


def _recurrent(columns: int, cell: str, batch: int, size: int) -> list[Choice]:
    """A layer of `batch` sequences and `size` hidden units."""
    few = cell != "lstm" or batch <= _MANY or size <= _SMALL
    return [Choice("own", 0.5 if few else 1.5)] if columns else []


def _panel_product(target: CpuTarget, inner: int, outer: int) -> list[Choice]:
    """A product of bytes by a constant weight; ATen's and, without VNNI, oneDNN's are slow or wrong."""
    columns = PANEL_COLUMNS.get(target.vector_bytes, 0)
    options = {"columns": columns, "depth": VNNI if target.simd in VNNI_LEVELS else 2}
    return [Choice("own", 0.5, options=options)] if columns and inner and outer else []


_TILED = {"aten::mm": _HALF, "aten::convolution": _WRITTEN}
_OPS: Mapping[str, Callable[..., list[Choice]]] = {
    "aten::mm": _matmul, "aten::bmm": _batched, "firebrick::attention": _attention, "firebrick::recurrent": _recurrent,
    "aten::convolution": _convolution, "aten::conv_transpose": lambda _, *args: _packed(args[-1]),
}  # fmt: skip
