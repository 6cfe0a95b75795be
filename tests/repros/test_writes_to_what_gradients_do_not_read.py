"""Eager mode refuses a backward whose nodes saved what was written to since, also if the gradients don't read it: the
weight of a norm whose input needs no gradient. Found by `python -m tests.fuzz --training`, seed 81000314."""

import pytest
import torch
import torch.nn.functional as F

import firebrick

CASES = {
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, training=True), (6,)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (6,), w), (6,)),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w), (6,)),
    "prelu": (F.prelu, (6,)),
    "lerp": (lambda x, w: torch.lerp(x, x + 1, w), (4, 6)),
    "linear": (F.linear, (6, 6)),  # saves what it reads alone: no error
    "mul": (torch.mul, (4, 6)),
}


@pytest.mark.parametrize("backend", ["aot_eager", "firebrick"])
@pytest.mark.parametrize("case", CASES)
def test_write_between_forward_and_backward(case, backend):
    function, shape = CASES[case]

    def raises(call):
        w = torch.rand(shape, requires_grad=True)
        y = call(torch.rand(4, 6), w)
        with torch.no_grad():
            w.add_(0.01)
        try:
            y.sum().backward()
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)
        return False

    assert raises(firebrick.compile(function, backend=backend)) == raises(function) == (case not in ("linear", "mul"))
