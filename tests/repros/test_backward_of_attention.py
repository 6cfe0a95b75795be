"""Gradients of attention by kernels of GPUs are part of the joint graph: the tag of these ops, that they draw random
numbers, had left GPT-2's and ViT's trainings to eager mode."""

import pytest
import torch
from torch import fx

from firebrick import trace

aten = torch.ops.aten


def cudnn(q, dropout=0.0):
    return aten._scaled_dot_product_cudnn_attention(q * 2, q, q, None, True, dropout, True)[0]


def efficient(q, dropout=0.0):
    return aten._scaled_dot_product_efficient_attention(q * 2, q, q, None, True, dropout)[0]


def query():
    return torch.zeros(2, 4, 32, 64, dtype=torch.bfloat16, requires_grad=True)


@pytest.mark.parametrize("attention", [cudnn, efficient])
def test_the_gradient_is_in_the_graph(attention):
    graph = trace.trace_joint(fx.symbolic_trace(lambda q: attention(q)), [query()]).gm.graph
    (backward,) = [n for n in graph.nodes if "attention_backward" in str(n.target)]
    names = [a.name for a in backward.target._schema.arguments]
    seeds = [backward.args[names.index(f"philox_{name}")] for name in ("seed", "offset")]
    forward = next(n for n in graph.nodes if "attention" in str(n.target))
    assert not any(forward in seed.all_input_nodes for seed in seeds)  # they lie where nobody knows


@pytest.mark.parametrize("attention", [cudnn, efficient])
def test_the_seeds_of_dropout_are_the_forwards(attention):
    """GPT-2's mask takes it to these kernels, whose backward with dropout had left its training to eager mode."""
    joint = trace.trace_joint(fx.symbolic_trace(lambda q: attention(q, 0.1)), [query()])
    nodes = joint.gm.graph.nodes
    (backward,) = [n for n in nodes if "attention_backward" in str(n.target)]
    names = [a.name for a in backward.target._schema.arguments]
    forward = next(n for n in nodes if "attention" in str(n.target))
    for name in ("seed", "offset"):
        assert backward.args[names.index(f"philox_{name}")].args[0] is forward
