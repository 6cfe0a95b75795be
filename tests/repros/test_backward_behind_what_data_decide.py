"""The backward of a part behind a size that data decide is traced when nothing may be asked any more (seed 24310412)."""

import torch

import firebrick


def test_a_written_view_beside_a_mask_has_gradients():
    def function(x, f):
        v = x.cumsum(1)
        kept = x[x[..., 0] > f].sum(0)
        v[:, -1].mul_(2)
        return torch.stack(v.unbind(2)[::-1], 2), kept

    compiled = firebrick.compile(function)
    for f in (2.0, 1.5, -0.25, -0.25):
        x = torch.randn(3, 3, 4).requires_grad_()
        mine, theirs = compiled(x, f), function(x, f)
        for got, wanted in zip(mine, theirs):
            torch.testing.assert_close(got, wanted)
        grads = [torch.autograd.grad(sum(t.square().sum() for t in out), x)[0] for out in (mine, theirs)]
        torch.testing.assert_close(*grads)
