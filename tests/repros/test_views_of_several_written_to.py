"""A chunk of what is written to later can't be differentiated: asking for its history raised while tracing."""

import pytest
import torch

import firebrick
from firebrick.report import FirebrickWarning


def written(y):
    v = y * 2
    chunk = v.chunk(2, 1)[0]
    v[:, :1].zero_()
    return v, chunk


@pytest.mark.filterwarnings(f"ignore::{FirebrickWarning.__module__}.{FirebrickWarning.__name__}")
def test_uses_of_the_chunk_raise_as_in_eager(monkeypatch):
    monkeypatch.setenv("FIREBRICK_STRICT", "1")  # where what fails is an error
    for function in (written, firebrick.compile(written)):
        y = torch.randn(3, 4, requires_grad=True)
        out, chunk = function(y)
        assert out[:, 0].eq(0).all()
        with pytest.raises(RuntimeError, match="is a view and its base"):
            chunk.sum()
