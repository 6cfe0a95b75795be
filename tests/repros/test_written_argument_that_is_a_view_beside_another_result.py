"""autograd takes no Function that writes to a view and returns more: such calls run as plain Python (seed 24306928)."""

import torch

import firebrick


def test_a_view_with_a_history_is_written_and_more_is_returned():
    def function(v):
        v.mul_(2)
        return v.sum()

    compiled = firebrick.compile(function)
    for n in (3, 4, 5):
        grads = []
        for call in (compiled, function):
            x = torch.arange(n * 4.0).view(n, 4).requires_grad_()
            view = (x * 2)[1:]
            call(view).backward()
            grads.append((x.grad, view.detach()))
        torch.testing.assert_close(grads[0], grads[1])
