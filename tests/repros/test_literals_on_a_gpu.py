"""A tensor of a program's literals on a GPU came back on the CPU: each call found it changed and compiled anew."""

import torch

from firebrick.trace import literals


def test_literals_return_to_their_device():
    (row,) = literals.write({"a": torch.tensor([[3, 4], [5, 6]])}).values()
    assert torch.equal(literals.read({"a": row})["a"], torch.tensor([[3, 4], [5, 6]]))
    assert row[-1] == "cpu"
    there = literals.read({"a": [*row[:-1], "meta"]})["a"]
    assert (there.device.type, there.shape, there.dtype) == ("meta", (2, 2), torch.int64)
