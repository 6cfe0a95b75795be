"""The text of a torch-level graph, by which compiled results are found again."""

import torch
import torch.nn.functional as F
from torch import fx

from firebrick.trace.graph_key import graph_text


def text_of(fn):
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(fn, (x, 2)),))
    return graph_text(fx.GraphModule(torch.nn.Module(), graph))


def test_functions_of_torch_have_names_even_if_others_made_them():
    assert "torch.nn.functional.max_pool2d" in text_of(F.max_pool2d)
    assert "torch.nn.functional.softmax" in text_of(F.softmax)


def test_functions_that_no_module_holds_have_none():
    assert text_of(lambda x, n: x) is None
