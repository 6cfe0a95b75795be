"""Code of torch that asks what is known of sizes, `istft` of torch 2.14, was cut there."""

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

import firebrick


def test_what_is_known_of_sizes_is_asked_inside():
    def shortened(x):
        return x[:, :3].sin() if statically_known_true(x.shape[1] > 3) else x.cos()

    compiled = firebrick.compile(shortened, fullgraph=True)
    for n in (2, 5, 7, 3):
        x = torch.randn(2, n)
        torch.testing.assert_close(compiled(x), shortened(x))
