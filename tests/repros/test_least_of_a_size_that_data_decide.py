"""`scores.topk(min(300, n))` of so many scores as data tell: what followed ran on eager kernels, as its inputs had the
smaller number as a size, and nothing had `n` itself."""

import torch

import firebrick


def test_the_best_of_those_kept():
    def best(boxes, scores):
        kept = torch.where(scores > 0.3)[0]
        boxes, scores = boxes[kept], scores[kept]
        scores, order = scores.topk(min(30, scores.shape[0]))
        wide = torch.where((boxes[order] > 0.1).all(1))[0]
        return boxes[order][wide][:10].clamp(0, 1) * 2, scores[wide][:10].sqrt()

    firebrick.reset()
    compiled = firebrick.compile(best, fullgraph=True, dynamic=True)
    for n in (90, 500, 20, 30):
        args = torch.rand(n, 4), torch.rand(n)
        torch.testing.assert_close(compiled(*args), best(*args))
    assert "size that data decide" not in firebrick.stats()["reasons"]


def test_gradients_of_every_second_of_those_kept():
    def best(scores, mask):
        return scores[mask].topk(scores[mask].shape[0] // 2).values.exp()

    firebrick.reset()
    compiled = firebrick.compile(best, fullgraph=True, dynamic=True)
    for n in (20, 50, 31):
        scores, mask = torch.randn(n, requires_grad=True), torch.rand(n) > 0.4
        (wanted,) = torch.autograd.grad(best(scores, mask).sum(), scores)
        torch.testing.assert_close(torch.autograd.grad(compiled(scores, mask).sum(), scores)[0], wanted)
    assert "size that data decide" not in firebrick.stats()["reasons"]
