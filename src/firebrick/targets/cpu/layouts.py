"""How the tensors lie that kernels written by hand read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from firebrick.ir.index.expr import ONE, Expr, as_expr, as_int
from firebrick.ir.loops.program import Ref

Strides = tuple[Expr, ...]

_PAGE, _LINE = 1024, 16
"""Elements after which addresses share lines of a first-level cache, and of one line."""
_BROAD = 64
"""Columns of panels whose tiles have six pixels, fewer than a cache has ways."""


def _contiguous(shape: Sequence[Expr]) -> Strides:
    strides: list[Expr] = [ONE]
    for n in reversed(shape[1:]):
        strides.append(strides[-1] * n)
    return tuple(reversed(strides[: len(shape)]))


def _linear(args: Sequence[Any], _: Sequence[Expr]) -> list[Strides | None]:
    """The elements of a row side by side, and those of the weight along one axis."""
    x, weight, *_others = tensors = [a for a in args if isinstance(a, Ref)]
    other = args[4]
    wanted: list[Strides | None] = [None] * len(tensors)
    for k, t in enumerate(tensors):
        if t is weight:
            sides = zip(t.shape[1:], t.strides[1:], strict=True)  # one of many, and no constant
            gaps = len(t.shape) > 2 and not any(ONE in side for side in sides)
        else:
            gaps = (t is x or t is other) and not _in_rows(t)
        wanted[k] = _contiguous(t.shape) if gaps else None
    return wanted


def _in_rows(t: Ref) -> bool:
    """Elements of a row side by side, rows a number of elements apart that is known."""
    return t.strides[-1] is ONE and t.offset.is_const and all(s.is_const for s in t.strides)


def _convolution(args: Sequence[Any], out: Sequence[Expr]) -> list[Strides | None]:
    """The channels of a pixel side by side."""
    x, packed, _, other, _, stride, padding, *_ = args
    tensors = [a for a in args if isinstance(a, Ref)]
    whole = len(packed.shape) == 5 and any(padding)  # a dense one that pads by itself takes lines as wholes
    moved = x.strides[1] is not ONE or (whole and x.strides[3] != x.shape[1])
    # Whether the pixels that a tile of a dense convolution reads in turns, more than a cache has ways, lie in the same
    # lines of it.
    many = as_int(out[3]) > 8 and len(packed.shape) == 5 and as_int(packed.shape[4]) < _BROAD and not any(padding)
    apart = many and as_int(x.shape[1] if moved else x.strides[3]) * stride[1] % _PAGE == 0
    wanted: list[Strides | None] = [None] * len(tensors)
    if moved or apart:
        wanted[0] = _channels_last(x.shape, _LINE if apart else 0)
    if other is not None and other.strides != _channels_last(other.shape):
        wanted[tensors.index(other)] = _channels_last(other.shape)
    return wanted


def _panel_convolution(args: Sequence[Any], _: Sequence[Expr]) -> list[Strides | None]:
    """Images without gaps, channels last."""
    tensors = [a for a in args if isinstance(a, Ref)]
    images = [_channels_last(t.shape) if len(t.shape) == 4 and t is not args[1] else None for t in tensors]
    return [None if lies == t.strides else lies for t, lies in zip(tensors, images, strict=True)]


def _channels_last(shape: Sequence[Expr], gap: int = 0) -> Strides:
    """gap: elements between the channels of a pixel and those of the next one."""
    batch, channels, height, width = shape
    by_batch, by_row, by_column, by_channel = _contiguous((batch, height, width, channels + as_expr(gap)))
    return by_batch, by_channel, by_row, by_column


def _recurrent(args: Sequence[Any], _: Sequence[Expr]) -> list[Strides | None]:
    """Weights and states without gaps, and the gates of an input side by side."""
    _, projected, *rest = args
    wanted = [None if p.strides[2] is ONE else _contiguous(p.shape) for p in projected]
    for tensors in rest:
        for t in tensors if isinstance(tensors, (tuple, list)) else [tensors]:
            if t is not None:
                wanted.append(None if t.strides == _contiguous(t.shape) else _contiguous(t.shape))
    return wanted


def _rows(args: Sequence[Any], _: Sequence[Expr]) -> list[Strides | None]:
    """The elements of a row side by side."""
    return [None if _in_rows(t) else _contiguous(t.shape) for t in args if isinstance(t, Ref)]


def _attention(args: Sequence[Any], _: Sequence[Expr]) -> list[Strides | None]:
    """The same, where rows may be any number of elements apart."""
    refs = (t for t in args if isinstance(t, Ref))
    return [None if t.strides[-1] is ONE and t.offset.is_const else _contiguous(t.shape) for t in refs]


LAYOUTS: Mapping[str, Callable[[Sequence[Any], Sequence[Expr]], Sequence[Strides | None]]] = {
    "firebrick::linear": _linear, "firebrick::convolution": _convolution, "firebrick::recurrent": _recurrent,
    "firebrick::panel_product": _rows, "firebrick::attention": _attention,
    "firebrick::panel_convolution": _panel_convolution,
}  # fmt: skip
"""Op -> the strides that its tensors are to have, in order; None for what lies well."""
