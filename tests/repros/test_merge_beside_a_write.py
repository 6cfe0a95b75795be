"""A write in place anywhere in the graph kept rules from joining linears whose weights are read one by one."""

import torch
from torch import nn

import firebrick
from firebrick.extend import apply_passes
from firebrick.passes import rules


class Heads(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.between = between

    def forward(self, x):
        x = x.clone().mul_(2)
        q = self.q(x)
        q = q + 1
        k = self.k(x)
        if self.between:
            x.add_(1)
        v = self.v(x)
        return (q + k + v).add_(1)


def applied(model):
    graph = []

    def backend(gm, inputs):
        (report,) = apply_passes(gm, [rules.MERGE_LINEARS[0]], verify=True)
        graph.append(report.applied)
        return gm.forward

    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(firebrick.compile(model, backend=backend)(x), model(x))
    return graph


def test_a_write_elsewhere_does_not_matter():
    assert applied(Heads(False).eval()) == [1]


def test_a_write_between_does():
    assert applied(Heads(True).eval()) == [0]
