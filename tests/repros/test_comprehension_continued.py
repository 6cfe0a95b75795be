"""A list that a comprehension fills was not looked at when the comprehension went on behind a graph break."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "capture"))

from compiling import check  # noqa: E402


def test_break_inside_a_comprehension():
    def run(x, items):
        rows = [(x * item).sum().item() for item in items]
        return rows, x * len(rows)

    check(run, torch.ones(3), [1, 2, 3], graphs=None, breaks=None)


def test_item_that_a_list_lacks():
    def run(x, items, item):
        try:
            items.index(item)
        except ValueError as error:
            return x + 1, str(error)
        return x

    check(run, torch.ones(3), [1, 2], 3)
