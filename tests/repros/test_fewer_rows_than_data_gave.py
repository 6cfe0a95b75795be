"""A part of a graph behind a size that data decide ran on eager kernels where its inputs had `min(5, n)` rows only."""

import pytest
import torch

import firebrick
from firebrick.report import recorder


def chosen(scores, boxes):
    parts, all_scores, labels = [], [], []
    for c in range(2):
        s = scores[:, c]
        keep = s > 0.3
        s, b = s[keep], boxes[keep]
        s, i = s.topk(min(5, s.size(0)))
        parts.append(b[i])
        all_scores.append(s)
        labels.append(torch.full_like(s, c))
    return torch.cat(parts), torch.cat(all_scores), torch.cat(labels)


def first_and_number(scores, boxes):
    b = boxes[scores[:, 0] > 0.3]
    few = b[: min(4, b.size(0))] * 2
    other = boxes[scores[:, 1] > 0.5]
    return few.sum(0) / b.size(0), other + few.sum(), few * b.size(0)


@pytest.mark.parametrize("program", [chosen, first_and_number])
@pytest.mark.parametrize("grad", [False, True])
def test_all_parts_are_compiled(program, grad):
    recorder.reset()
    compiled = firebrick.compile(program, fullgraph=True)
    for seed, scale in enumerate((1.0, 1.0, 0.4, 1.0, 0.301)):  # the last have few rows, or none
        torch.manual_seed(seed)
        scores, boxes = torch.rand(20, 2) * scale, torch.rand(20, 4, requires_grad=grad)
        wanted, results = program(scores, boxes), compiled(scores, boxes)
        for a, b in zip(wanted, results, strict=True):
            torch.testing.assert_close(b, a, equal_nan=True)
            assert a.requires_grad == b.requires_grad
        if grad:
            grads = [torch.autograd.grad(sum(r.sum() for r in rs), boxes)[0] for rs in (wanted, results)]
            torch.testing.assert_close(grads[1], grads[0], equal_nan=True)
    counts = firebrick.stats()["counts"]
    assert not [key for key in counts if key.startswith("graphs run eagerly")]
