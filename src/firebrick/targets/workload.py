"""How much of a graph's time its matmuls, convolutions and attention take, about: what is worth measuring of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

Subject = tuple[str, tuple[Any, ...]]
"""An op and its arguments, as targets are asked for choices of it."""

_REST = 0.02
"""Share of a graph's work that is not worth measuring: costs choose what of it there is, the least first."""
_MOVED = 16
"""About how many multiplications take as long as a number that is read or written, which bounds what is measured."""


def key_of(op: str, args: Sequence[Any]) -> tuple[str, ...]:
    """What is equal for calls of the same shapes; texts, so that nothing is decided about sizes that are symbols."""
    return (op, *[str([*arg.shape] if isinstance(arg, torch.Tensor) else arg) for arg in args])


def division_of(subjects: Sequence[Subject], layers: int = 4) -> tuple[list[Subject], set[Any]]:
    """What is worth measuring of a graph, once each, and the keys of the rest, which takes a small part of the time.

    layers: those that the graph has four of.
    """
    keys = [key_of(*subject) for subject in subjects]
    by_key = dict(zip(keys, subjects, strict=True))
    tensors = [arg for _, args in subjects for arg in args if isinstance(arg, torch.Tensor)]
    if not all(type(n) is int for tensor in tensors for n in tensor.shape):
        return list(by_key.values()), set()
    counts = Counter(keys)
    work = {k: _work(*s) * counts[k] * (layers / 4 if counts[k] >= 4 else 1) for k, s in by_key.items()}
    left, rest = _REST * sum(work.values()), set()
    for key in sorted(work, key=work.__getitem__):
        left -= work[key]
        if left < 0:
            break
        rest.add(key)
    return [subject for key, subject in by_key.items() if key not in rest], rest


def _work(op: str, args: tuple[Any, ...]) -> int:
    """About how long a call takes, in multiplications."""
    x, weight, *more = args
    if op == "aten::convolution":
        out = more[-1].numel()
        products = out * weight[0].numel()
    elif op == "firebrick::attention":
        out = x.numel() // x.shape[3] * weight.shape[2]
        products = 2 * out * x.shape[3]
    else:
        out = x.numel() // x.shape[-1] * weight.shape[-1]
        products = out * x.shape[-1]
    return int(products + _MOVED * (x.numel() + weight.numel() + out))
