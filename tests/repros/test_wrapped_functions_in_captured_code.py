"""Regions, functions that `run` wraps and what is compiled inside of captured code are part of the caller's graph.

A region was looked into only once torch's own compiler was imported, so it is tried where nothing imports that.
"""

import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn

import firebrick

REGION = """
import sys, torch, firebrick
region = torch.compiler.nested_compile_region(lambda x: x.sin() * 2)
x = torch.randn(4, 8)
result = firebrick.compile(lambda x: region(x) + region(x * 2), backend="eager", fullgraph=True)(x)
torch.testing.assert_close(result, x.sin() * 2 + (x * 2).sin() * 2)
assert firebrick.stats()["counts"]["graphs"] == 1 and "torch._dynamo" not in sys.modules
"""
LINEAR = nn.Linear(8, 8)
reused = firebrick.run(lambda x: x.sin())


def test_a_region_is_part_of_the_graph_of_its_caller() -> None:
    done = subprocess.run([sys.executable, "-c", REGION], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-800:]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: reused(x) + 1,
        lambda x: firebrick.compile(torch.sin)(x) + 1,
        lambda x: torch.compile(partial(torch.add, alpha=2))(x, x) + 1,
        lambda x: firebrick.compile(x.add)(x) + 1,
        lambda x: torch.compile(LINEAR)(x) + LINEAR(x),
        lambda x: torch.compile(LINEAR.forward)(x),
    ],
    ids=["run", "function of torch", "partial", "method of a tensor", "module", "method"],
)
def test_one_graph(function) -> None:
    x = torch.randn(4, 8)
    torch.testing.assert_close(firebrick.compile(function, backend="eager", fullgraph=True)(x), function(x))
