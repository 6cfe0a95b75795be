"""Layers whose capture is replayed from the first one were all shown as that one: twelve layers in one box."""

import pytest
import torch
from torch import nn

from firebrick.tools.graph_view import Group, group_nodes, view_graph
from firebrick.tools.subject import Target, capture

pytestmark = pytest.mark.compiler


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.lift(x)).sin().cos()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = Inner(), nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(x + self.inner(x).exp().tanh()) * 2.0 + 1.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(12)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_twelve_layers_are_twelve_boxes_with_their_own_modules():
    captured = capture(Target("net", Net().eval(), (torch.ones(2, 8),)))
    (view,) = [view_graph(captured, graph) for graph in captured.graphs]
    boxes = [child for child in group_nodes(view).children if isinstance(child, Group)]
    assert [box.title for box in boxes] == [f"layers.{i} · Layer" for i in range(12)]
    for i, box in enumerate(boxes):
        (inner,) = [child for child in box.children if isinstance(child, Group)]
        assert inner.path == f"layers.{i}.inner"
        assert {node.module for node in inner.leaves()} == {f"layers.{i}.inner", f"layers.{i}.inner.lift"}
