"""Results of torch's functions for whole layers whose own code asks for numbers where sizes are symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from firebrick.fakes.function_forms import FORMS
from firebrick.ir.index.sizes import has_symbols


def recorded(inputs: Iterable[torch.Tensor], *results: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Results that want gradients as those of the inputs do."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        return tuple(r.requires_grad_().clone() if r.is_floating_point() else r for r in results)
    return results


def _recurrent(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`torch.lstm(x, (h, c), weights, biased, layers, dropout, train, bidirectional, batch_first)` and the like."""
    if len(args) != 9 or kwargs or not isinstance(args[2], (tuple, list)) or args[0].dim() != 3:
        return function(*args, **kwargs)
    x, state, weights, biased, layers, dropout, train, bidirectional, batch_first = args
    states = state if isinstance(state, (tuple, list)) else [state]
    directions = 1 + bidirectional
    batch, steps = x.shape[:2] if batch_first else (x.shape[1], x.shape[0])
    wanted = (layers * directions, batch, weights[1].shape[1])
    plain = not (dropout and train) and len(weights) == layers * directions * (4 if biased else 2)
    plain = plain and x.shape[2] == weights[0].shape[1] and all(t.dtype == x.dtype for t in (*states, *weights))
    if not any(map(has_symbols, (x, *states))) or not plain or any(tuple(h.shape) != wanted for h in states):
        return function(*args, **kwargs)
    out, *after = (x.new_empty(sizes) for sizes in ((steps, batch, directions * wanted[2]), *(wanted for _ in states)))
    out, *after = recorded((x, *states, *weights), out, *after)
    return (out.transpose(0, 1) if batch_first else out, *after)


_LAYERS = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
SHAPES: Mapping[Any, Callable[..., Any]] = {
    **{function: partial(_recurrent, function) for function in _LAYERS},
    **FORMS,
}
"""Function -> the same for fake tensors, whatever their sizes are."""
