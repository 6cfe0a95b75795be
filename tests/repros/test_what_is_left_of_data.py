"""The last of the parts that data decide has the size that is left, for which no number stands: a split was no graph."""

import torch

import firebrick


def test_parts_for_experts_are_multiplied_in_one_graph():
    def routed(x, weights, gates):
        parts = x.split(gates.long().sum(0).tolist())
        return torch.cat([torch.nn.functional.linear(part, weights[i]) for i, part in enumerate(parts)])

    x, weights = torch.randn(12, 8), torch.randn(4, 8, 8)
    compiled = firebrick.compile(routed, fullgraph=True)
    for expert in ([0, 1, 2, 3] * 3, [0] * 6 + [3] * 6, [2] * 12):
        gates = torch.zeros(12, 4).scatter(1, torch.tensor(expert)[:, None], 1)
        torch.testing.assert_close(compiled(x, weights, gates), routed(x, weights, gates))
