"""What eager refuses is asked of sizes of 0 too, and PyTorch's attention divides by the count of heads: the question ended
the process (Segformer over images of several sizes)."""

import torch

import firebrick


def test_heads_that_are_computed_of_sizes():
    def function(x):
        heads = x.view(x.shape[0], x.shape[1] // 8, 8, 4)
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)

    compiled = firebrick.compile(function)
    with torch.no_grad():
        for n in (8, 16, 24):
            x = torch.randn(2, n, 4)
            torch.testing.assert_close(compiled(x), function(x))
