"""A group that begins with a view ran its own graph, too, on inputs made dense for the engine, and the view failed."""

import torch
from torch import fx

from firebrick.config import Config
from firebrick.extend import SubgraphCompiler, partition, set_fake_values


class Dense(SubgraphCompiler):
    name = "dense"
    contiguous = True

    def supports(self, node):
        return True

    def compile(self, graph, example_inputs):
        assert all(x.is_contiguous() for x in example_inputs)

        def run(x):
            assert x.is_contiguous()
            return torch.relu(x.transpose(0, 1).reshape(3, 8))

        return run


def test_a_view_of_a_transposed_input():
    x = torch.randn(3, 2, 4).transpose(0, 1)
    gm = set_fake_values(fx.symbolic_trace(lambda x: torch.relu(x.transpose(0, 1).view(3, 8))), [x])
    partition(gm, [Dense()], config=Config(strict=True, cache=False))
    for _ in range(2):
        torch.testing.assert_close(gm(x), torch.relu(x.transpose(0, 1).reshape(3, 8)))
