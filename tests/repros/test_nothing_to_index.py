"""Rules of tensors without elements divided by zero, and the graph fell back to eager."""

import torch
import torch.nn.functional as F

import firebrick


def test_tensors_without_elements_are_compiled():
    def call(x, y):
        rows = y.index_fill(0, torch.tensor([4, 3, 1]), 2)
        x.flatten().mul_(2)
        return F.pad(x, [1, 2], value=2), rows, F.pad(x.reshape(0, 4, 2), [1, 0])

    compiled = firebrick.compile(call, options={"cache": False, "strict": True})
    for found, wanted in zip(
        compiled(torch.ones(8, 0), torch.ones(9, 3, 0)), call(torch.ones(8, 0), torch.ones(9, 3, 0))
    ):
        assert torch.equal(found, wanted)
