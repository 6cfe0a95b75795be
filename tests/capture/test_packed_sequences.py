"""Packed sequences and recurrent layers over them: one graph, whatever the lengths are, right with gradients too."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import pytest
import torch
from compiling import check
from torch import nn
from torch.nn.utils import rnn

import firebrick


class Tagger(nn.Module):
    """Embeds, packs, runs a recurrent layer, pads again; the last hidden state goes to a head."""

    def __init__(self, layer: str, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.options = nn.Embedding(20, 6), options
        self.layer = getattr(nn, layer)(6, 5, batch_first=True, **options)
        width = (options.get("proj_size") or 5) * (2 if options.get("bidirectional") else 1)
        self.head = nn.Linear(width, 3)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        packed = rnn.pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        out, state = self.layer(packed)
        padded, again = rnn.pad_packed_sequence(out, batch_first=True, padding_value=0.5)
        hidden = state[0] if isinstance(state, tuple) else state
        return self.head(torch.relu(padded)), again, hidden.sum(0) * 2


def batch(*lengths: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    words = torch.randint(0, 20, (len(lengths), 7), generator=torch.Generator().manual_seed(seed))
    return words, torch.tensor(lengths)


LAYERS: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {}),
    ("GRU", {"num_layers": 2}),
    ("RNN", {"bidirectional": True}),
    ("LSTM", {"bidirectional": True, "num_layers": 2}),
    ("LSTM", {"proj_size": 2}),
]


@pytest.mark.parametrize(("layer", "options"), LAYERS)
def test_layers_over_packed_sequences(layer, options):
    model = Tagger(layer, **options)
    compiled = firebrick.compile(copy.deepcopy(model), fullgraph=True)
    for lengths in ((3, 7, 2), (3, 7, 2), (1, 1, 1), (5, 4, 6), (7,), (2, 7)):
        words = batch(*lengths)
        got, want = compiled(*words), model(*words)
        torch.testing.assert_close(got, want)
        for one in (compiled, model):
            one.zero_grad()
        (got[0].square().sum() + got[2].sum()).backward()
        (want[0].square().sum() + want[2].sum()).backward()
        for mine, theirs in zip(compiled.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*batch(4, 2)), model(*batch(4, 2)))


def test_lengths_of_a_list_and_a_state():
    layer = nn.GRU(3, 4)

    def f(x, h):
        packed = rnn.pack_padded_sequence(x, [3, 1])
        out, last = layer(packed, h)
        return rnn.pad_packed_sequence(out, total_length=5)[0].relu(), last + h, packed.batch_sizes

    compiled = firebrick.compile(f, fullgraph=True)
    x, h = torch.randn(3, 2, 3), torch.randn(1, 2, 4)
    torch.testing.assert_close(compiled(x, h), f(x, h))


def test_a_packed_sequence_is_given():
    layer = nn.LSTM(3, 4)

    def f(packed):
        out, (h, _) = layer(packed)
        return out.data.tanh() + packed.data.sum(), h * 2, out.batch_sizes, packed.sorted_indices

    compiled = firebrick.compile(f, fullgraph=True)
    for lengths in ((3, 2), (3, 2), (2, 1, 1), (4,)):
        packed = rnn.pack_sequence([torch.randn(n, 3) for n in lengths])
        torch.testing.assert_close(compiled(packed), f(packed))


def test_errors_are_eagers():
    layer = nn.LSTM(3, 4)

    def f(x, lengths):
        return layer(rnn.pack_padded_sequence(x, lengths))[0].data + 1

    compiled = firebrick.compile(f, fullgraph=True)
    compiled(torch.randn(3, 2, 3), torch.tensor([3, 2]))
    for lengths in ((1, 2), (3, 0), (9, 1)):
        for one in (f, compiled):
            with pytest.raises(RuntimeError, match="(?i)length"):
                one(torch.randn(3, 2, 3), torch.tensor(lengths))


def test_dropout_between_layers_draws_as_eager_does():
    layer = nn.LSTM(3, 4, num_layers=2, dropout=0.5)

    def f(x):
        return layer(rnn.pack_padded_sequence(x, torch.tensor([3, 2])))[0].data + torch.rand(4)

    x, results = torch.randn(3, 2, 3), []
    for one in (f, firebrick.compile(f)):
        torch.manual_seed(3)
        results.append((one(x), one(x)))
    torch.testing.assert_close(results[0], results[1])


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


class Named(Pair):
    """A named tuple with a `__dict__`."""

    def total(self):
        return self.first + self.second


def test_fields_of_a_derived_named_tuple():
    check(lambda pair: (pair.total() * pair.second, pair[0] + pair.first), Named(torch.ones(2), 3))


def test_a_tensor_is_a_size():
    def f(x):
        return torch.zeros(x.shape[0], x.argmax(), 2) + 1, torch.arange(x.argmax() + 2) * 2, x[0] + x[x.argmax()]

    compiled = firebrick.compile(f, fullgraph=True)
    for x in (torch.tensor([1, 5, 2]), torch.tensor([1, 5, 7]), torch.tensor([9, 5, 7])):
        torch.testing.assert_close(compiled(x), f(x))


def test_a_number_is_read_anew_behind_a_write():
    def f(t, x):
        a = x[: int(t[0])].sum()
        t.add_(1)
        return a, x[: int(t[0])].sum(), x[: int(t[1])].sum()

    compiled = firebrick.compile(f, fullgraph=True)
    for n in (1, 2, 3):
        torch.testing.assert_close(
            compiled(torch.tensor([n, n + 2]), torch.arange(9.0)), f(torch.tensor([n, n + 2]), torch.arange(9.0))
        )
