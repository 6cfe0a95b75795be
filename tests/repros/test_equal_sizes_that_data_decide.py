"""A size that data decide was found to be another one that a later call binds: each call of the graph raised a KeyError,
and ran as plain Python."""

import torch

import firebrick


def added(x, mask):
    rows = torch.nn.functional.layer_norm(x[mask], x.shape[-1:])
    x = x + 1
    x[mask] += (rows * 2).relu()
    return x * 2, torch.compiler.is_compiling()


def test_the_graph_runs():
    compiled = firebrick.compile(added, fullgraph=True)
    with torch.no_grad():
        for mask in ([1, 0, 1, 1], [1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]):
            x, mask = torch.randn(4, 8), torch.tensor(mask) > 0
            ours, is_compiled = compiled(x, mask)
            assert is_compiled
            torch.testing.assert_close(ours, added(x, mask)[0])
