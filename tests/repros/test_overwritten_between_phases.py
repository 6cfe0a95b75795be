"""A GPU kernel that writes into an argument did so before its later phases had read what was there: the sum was added
twice."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "targets" / "cuda"))

from interpreted import AVAILABLE, Runner  # noqa: E402

from firebrick import pipeline  # noqa: E402
from firebrick.config import Config  # noqa: E402

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no triton")


def fn(x, y):
    x.add_(y)
    wide = x * torch.ones(3)
    return torch.slice_scatter(wide, wide[:1] * 2, 0, 0, 1)


def test_what_is_overwritten_was_read_by_all_phases():
    from groups import schedule_for

    inputs = torch.tensor([1.0]), torch.tensor([2.0])
    stages = pipeline.inspect_graph(torch.fx.symbolic_trace(fn), inputs, Config.from_env())
    schedule, texts = schedule_for(stages.program)
    (result,) = Runner(schedule, texts)(inputs, stages.aten.constants)
    assert result.tolist() == [6, 3, 3]
    assert inputs[0].item() == 3


def written_along_several_loops(x, y):
    y.add_(x)
    largest, wide = y.amax([0], keepdim=True), x.expand(2) * 1.5
    x.fill_(1)
    return largest, wide


def test_stores_along_several_loops_into_what_is_read():
    from groups import schedule_for

    inputs = torch.tensor([3.0]), torch.tensor([2.0, 4.0])
    stages = pipeline.inspect_graph(torch.fx.symbolic_trace(written_along_several_loops), inputs, Config.from_env())
    schedule, texts = schedule_for(stages.program)
    largest, wide = Runner(schedule, texts)(inputs, stages.aten.constants)
    assert largest.tolist() == [7]
    assert wide.tolist() == [4.5, 4.5]
    assert [t.tolist() for t in inputs] == [[1], [5, 7]]
