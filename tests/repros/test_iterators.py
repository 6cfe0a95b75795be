"""A list's iterator that was taken over a graph break went on over a copy of what was left."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "capture"))

from compiling import Compiled  # noqa: E402


def test_list_that_grows_in_the_loop_behind_a_break():
    def run(x):
        items = [1.0, 2.0]
        for item in items:
            if (x * item).sum() > 0 and len(items) < 4:
                items.append(item)
        return items

    compiled = Compiled(run)
    x = torch.ones(2)
    assert run(x) == [1.0, 2.0, 1.0, 2.0]
    assert compiled(x) == run(x)
    assert compiled(-x) == run(-x)
