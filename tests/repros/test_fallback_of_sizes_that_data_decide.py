"""A graph of sizes that data decide whose compile failed ran on eager kernels, and an empty mask was answered wrong."""

import pytest
import torch

import firebrick
from firebrick import pipeline
from firebrick.errors import DataDecides, LoweringError
from firebrick.report import FirebrickWarning


def positive(x):
    kept = x[x > 0]
    if kept.numel() == 0:
        return x - 100
    return kept.exp().sum()


@pytest.mark.filterwarnings(f"ignore::{FirebrickWarning.__module__}.{FirebrickWarning.__name__}")
@pytest.mark.parametrize("error", [LoweringError, DataDecides])
def test_each_call_is_right_where_the_graph_can_not_be_cut(error, monkeypatch):
    def refused(*args):
        raise error("it can't be cut")

    monkeypatch.setenv("FIREBRICK_STRICT", "0")
    monkeypatch.setattr(pipeline, "Segments", refused)
    compiled = firebrick.compile(positive)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        assert torch.equal(compiled(x), positive(x))
