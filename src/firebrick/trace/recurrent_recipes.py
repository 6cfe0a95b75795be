"""Recurrent layers, taken apart into matmuls over all steps and `firebrick::recurrent` for what is sequential.

lstm(x, (h, c), [w_ih, w_hh, b_ih, b_hh])   ->   recurrent("lstm", [linear(x, w_ih, b_ih)], [w_hh], [b_hh], h, c)

PyTorch would unroll the steps, or hand a layer to oneDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from firebrick.ir.operators.recurrent_op import CELLS, recurrent_op
from firebrick.report import recorder
from firebrick.targets.base import CALL, Target

aten = torch.ops.aten


def _layers(targets: Mapping[str, Target], name: str, args: Sequence[Any]) -> Any:
    """All layers of a call; NotImplemented for what the kernel is not for."""
    x, initial, weights, biased, count, dropout, train, bidirectional, batch_first = args
    directions, each = 1 + bidirectional, 4 if biased else 2
    first = (*initial,) if name == "lstm" else (initial,)
    plain = x.dim() == 3 and len(weights) == count * directions * each and not (dropout and train)
    plain = plain and all(isinstance(t, torch.Tensor) and t.layout is torch.strided for t in (x, *first, *weights))
    if not plain or torch.is_autocast_enabled("cpu") or {t.dtype for t in (x, *first, *weights)} != {torch.float32}:
        return NotImplemented
    batch, size = x.shape[0 if batch_first else 1], weights[1].shape[1]
    gated = CELLS[name].gates * size
    shapes = [
        shape
        for k in range(count)
        for shape in ((gated, x.shape[2] if k == 0 else directions * size), (gated, size), (gated,), (gated,))[:each]
        * directions
    ]
    wrong = [tuple(w.shape) for w in weights] != shapes or x.numel() == 0 or size == 0
    if wrong or any(tuple(f.shape) != (count * directions, batch, size) for f in first):
        return NotImplemented
    target = targets.get(x.device.type)
    if target is None or target.choices("firebrick::recurrent", (name, batch, size))[0] is CALL:
        return NotImplemented
    recorder.count("recurrent layers", count)
    hidden, states = [], []
    for k in range(count):
        mine = [weights[i : i + each] for i in range(k * directions * each, (k + 1) * directions * each, each)]
        turned = batch_first and k == 0
        products = [F.linear(x, w[0], w[2] if biased else None) for w in mine]
        x, last = recurrent_op(
            name,
            [p.transpose(0, 1) for p in products] if turned else products,
            [w[1] for w in mine],
            [w[3] for w in mine] if biased else [],
            *(f[k * directions : (k + 1) * directions] for f in first),
            *([] if name == "lstm" else [None]),
        )
        states.append(last)
        if name == "lstm":
            hidden += [x[-1, :, :size], *([x[0, :, size:]] if bidirectional else [])]
    out = x.transpose(0, 1) if batch_first else x
    last = torch.cat(states) if count > 1 else states[0]
    return (out, torch.stack(hidden), last) if name == "lstm" else (out, last)


def _rule(targets: Mapping[str, Target], name: str, *args: Any, **kwargs: Any) -> Any:
    # Packed sequences have their sizes where others have their states.
    of_sequences = len(args) == 9 and not kwargs and isinstance(args[2], (tuple, list))
    return _layers(targets, name, args) if of_sequences else NotImplemented


def recurrent_functions(targets: Mapping[str, Target]) -> dict[Any, Callable[..., Any]]:
    """Function -> the same on a target's kernel, or NotImplemented for what PyTorch's own way is better for."""
    return {
        op: partial(_rule, targets, name) for name in CELLS for op in (getattr(torch, name), getattr(aten, name).input)
    }
