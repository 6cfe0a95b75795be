"""In training too a mask that repeats an element is given to a GPU's attention with rows that lie in memory: BERT's, of
which nothing is hidden, was one, and its attention was matmuls in float32 that saved 13.5 MiB a layer."""

import torch
import torch.nn.functional as F
from torch import fx

from firebrick import trace
from firebrick.trace import attention_recipes


def test_a_training_graph_has_the_mask_with_rows(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True), raising=False)
    seen = []

    def attention(*args, **named):
        seen.append(args[3].stride())
        return F.scaled_dot_product_attention(*args, **named)

    monkeypatch.setattr(attention_recipes, "scaled_dot_product_attention", attention)

    def fn(q, rows):
        return F.scaled_dot_product_attention(q * 2, q, q, rows[:, None, :, None].expand(2, 1, 8, 8))

    inputs = torch.randn(2, 4, 8, 16, requires_grad=True), torch.ones(2, 8)
    trace.trace_joint(fx.symbolic_trace(fn), inputs)
    assert [strides[-1] for strides in seen] == [1]
