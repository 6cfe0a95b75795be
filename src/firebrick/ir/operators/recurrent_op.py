"""The operator of recurrent layers, `firebrick::recurrent`: all steps of one layer, in one or both directions.

Compiled graphs have a generated kernel instead of the call (`targets/cpu/recurrent_kernel.py`); the function here says
what it computes, for prints, the interpreter and eager kernels. `firebrick::mkldnn_rnn_layer` is PyTorch's operator for
a layer of LSTM whose gradients are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from firebrick.ir.operators.definition import LIBRARY, define


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of `CELLS`.

    gates: parts that the products of a step have. step: from the parts of the input, those of the hidden state, the
    hidden state and the cell state to the next two states; a cell without a cell state returns its hidden state twice.
    """

    gates: int
    step: Callable[..., tuple[Tensor, Tensor]]


def _lstm(x: Sequence[Tensor], u: Sequence[Tensor], h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = (a + b for a, b in zip(x, u, strict=True))
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(x: Sequence[Tensor], u: Sequence[Tensor], h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    n = torch.tanh(x[2] + torch.sigmoid(x[0] + u[0]) * u[2])
    h = (h - n) * torch.sigmoid(x[1] + u[1]) + n
    return h, h


def _rnn(function: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    return lambda x, u, h, c: (function(x[0] + u[0]),) * 2


CELLS: Mapping[str, Cell] = {
    "lstm": Cell(4, _lstm), "gru": Cell(3, _gru), "rnn_tanh": Cell(1, _rnn(torch.tanh)),
    "rnn_relu": Cell(1, _rnn(torch.relu)),
}  # fmt: skip
"""Name, as that of torch's function -> what a step of the layer does."""


def _recurrent(
    cell: str,
    projected: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    hidden: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run a layer over [steps, batch, gates * size] of projected inputs, one tensor a direction.

    weights [gates * size, size] and biases, if any, are those of the hidden state. hidden, state [directions, batch,
    size] are the first ones. Returns [steps, batch, directions * size], and the last cell states [directions, batch,
    size], or hidden states of cells that have no other.
    """
    row, outs, last = CELLS[cell], [], []
    for d, (inputs, weight) in enumerate(zip(projected, weights, strict=True)):
        h, c = hidden[d], hidden[d] if state is None else state[d]
        states: list[Tensor] = []
        for x in reversed(inputs) if d else inputs:
            u = torch.mm(h, weight.t()) if not biases else torch.addmm(biases[d], h, weight.t())
            h, c = row.step(x.chunk(row.gates, -1), u.chunk(row.gates, -1), h, c)
            states.append(h)
        outs.append(torch.stack(states[::-1] if d else states))
        last.append(c)
    return torch.cat(outs, -1), torch.stack(last)


def _recurrent_meta(cell: str, projected: Any, weights: Any, biases: Any, hidden: Tensor, state: Any) -> Any:
    steps, (directions, batch, size) = projected[0].shape[0], hidden.shape
    return hidden.new_empty((steps, batch, directions * size)), hidden.new_empty(hidden.shape)


def _recurrent_out(*args: Any, out: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    results = _recurrent(*args)
    return out.copy_(results[0]), last.copy_(results[1])


def _recorded_lstm(*args: Any) -> tuple[Tensor, ...]:
    """`aten::mkldnn_rnn_layer` as its backward needs it: it keeps its workspace only where gradients are recorded."""
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd(), torch.autocast("cpu", enabled=False):
        results: tuple[Tensor, ...] = torch.ops.aten.mkldnn_rnn_layer.default(*args)
    return results


def _recorded_lstm_meta(*args: Any) -> tuple[Tensor, ...]:
    tensors, (reverse, sizes, *options) = args[:7], args[7:]
    metas = _lstm_metas(tuple([(tuple(t.shape), t.dtype) for t in tensors]), reverse, tuple(sizes), *options)
    return tuple([torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in metas])


@lru_cache(maxsize=64)
def _lstm_metas(tensors: tuple[Any, ...], reverse: bool, sizes: tuple[int, ...], *options: Any) -> tuple[Any, ...]:
    """Shapes and dtypes of the results; only oneDNN knows how long the workspace is: a layer of zeros says so."""
    with torch._C._DisableTorchDispatch():
        results = _recorded_lstm(*(torch.zeros(s, dtype=t) for s, t in tensors), reverse, [*sizes], *options)
        return tuple([(tuple(t.shape), t.dtype) for t in results])


_arguments = "str cell, Tensor[] projected, Tensor[] weights, Tensor[] biases, Tensor hidden, Tensor? state"
recurrent_op: Any = define(f"recurrent({_arguments}) -> (Tensor, Tensor)", _recurrent, _recurrent_meta)
LIBRARY.define(f"recurrent.out({_arguments}, *, Tensor(a!) out, Tensor(b!) last) -> (Tensor(a!), Tensor(b!))")
LIBRARY.impl("recurrent.out", _recurrent_out, "CompositeExplicitAutograd")

_schema = str(torch.ops.aten.mkldnn_rnn_layer.default._schema).removeprefix("aten::")
recorded_lstm: Any = define(_schema, _recorded_lstm, _recorded_lstm_meta)
