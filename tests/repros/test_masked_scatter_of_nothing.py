"""masked_scatter() with a source of no rows was taken to be refused: calls in which a mask is empty were no graph's."""

import torch

import firebrick
from firebrick.ir.index.sizes import Fact


def test_an_empty_source_fits_an_empty_mask(monkeypatch):
    def audio_rows(x, mask):
        return x.masked_scatter(mask[:, None], x[mask] * 2) + 1

    def check(fact, values, check=Fact.check):
        checked.append(fact.difference.evaluate(values))
        check(fact, values)

    checked = []
    monkeypatch.setattr(Fact, "check", check)
    x, compiled = torch.randn(5, 8), firebrick.compile(audio_rows, fullgraph=True)
    for rows in ([], [1, 3], [], [0, 1, 2, 3, 4]):
        mask = torch.zeros(5, dtype=torch.bool)
        mask[rows] = True
        torch.testing.assert_close(compiled(x, mask), audio_rows(x, mask))
    assert not checked  # nothing is asked of how many rows there are
