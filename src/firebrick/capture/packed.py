"""Packed sequences: torch's functions of them read how long each one is, which no trace can; graphs are cut there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import _VF

from firebrick.capture.inference_mode import storage_of
from firebrick.fakes.function_forms import SHAPES, recorded

if TYPE_CHECKING:
    from firebrick.capture.graph import GraphBuilder


def is_packed(target: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call reads how long packed sequences are; other calls of recurrent layers have weights in place 2."""
    return target in PACKED and (target not in SHAPES or (len(args) == 9 and isinstance(args[3], (list, tuple))))


def place_of(fake: torch.Tensor) -> tuple[Any, ...]:
    """Where the first number of a tensor lies; the first of the batch sizes is how many sequences there are."""
    return storage_of(fake), fake.storage_offset(), fake.dtype


def number_at(graph: GraphBuilder, fake: torch.Tensor) -> Any:
    """That number, where it is known as a size; else None."""
    place, written = place_of(fake), graph.written
    changed = map(storage_of, (*written, *(one.fake for one in graph.inputs if written)))
    return None if place[0] in changed else graph.numbers.get(place)


def _pack(graph: GraphBuilder, padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
    total, steps = (graph.sizes.sizes.size(graph.sizes.sizes.from_data(1)) for _ in range(2))
    batch_sizes = torch.empty((steps,), dtype=torch.int64, device="cpu")
    graph.numbers[place_of(batch_sizes)] = padded.shape[not batch_first]
    return recorded((padded,), padded.new_empty((total, *padded.shape[2:])), batch_sizes)


def _pad(graph: GraphBuilder, data: Any, batch_sizes: Any, batch_first: bool, value: float, steps: Any) -> Any:
    rows = number_at(graph, batch_sizes)
    rows = graph.sizes.sizes.size(graph.sizes.sizes.from_data(1)) if rows is None else rows
    padded = data.new_empty((steps, rows, *data.shape[1:]))
    lengths = torch.empty((rows,), dtype=torch.int64, device="cpu")
    return recorded((data,), padded.transpose(0, 1) if batch_first else padded, lengths)


def _layers(graph: GraphBuilder, data: Any, batch_sizes: Any, state: Any, weights: Any, *options: Any) -> Any:
    *_, dropout, train, bidirectional = options
    states = state if isinstance(state, (list, tuple)) else (state,)
    graph.mode.has_drawn |= bool(dropout and train)  # type: ignore[attr-defined]
    out = data.new_empty((data.shape[0], (1 + bidirectional) * states[0].shape[2]))
    return recorded((data, *states, *weights), out, *(h.new_empty(h.shape) for h in states))


PACKED: Mapping[Any, Callable[..., Any]] = {
    _VF._pack_padded_sequence: _pack,
    _VF._pad_packed_sequence: _pad,
    **dict.fromkeys((_VF.lstm, _VF.gru, _VF.rnn_tanh, _VF.rnn_relu), _layers),
}
"""Function -> its results for fake tensors, where sizes may be symbols that data decide."""
