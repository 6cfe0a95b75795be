"""The partition of a joint graph: what the forward saves, in bytes, and what the backward computes again."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_joint import grad, joint_of, targets
from torch import nn

from firebrick import trace
from firebrick.errors import PassError
from firebrick.trace.recompute import INFINITE, Network


def saved(fn: Any, *inputs: torch.Tensor, choose: Any = trace.min_cut) -> tuple[list[str], int]:
    """The names of what is saved, and bytes beside arguments and parameters."""
    joint = joint_of(fn, *inputs)
    division = trace.divide(joint, choose(joint))
    names = [n.name for n in division.backward.gm.graph.nodes if n.op == "placeholder"]
    return names[: len(division.plan.saved)], division.plan.bytes_saved


def test_min_cut_saves_one_tensor_for_a_chain_of_cheap_ops() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).sin().exp().cos().sum()

    joint = joint_of(chain, grad(8, 8))
    kept = trace.divide(joint, trace.save_needed(joint))
    cut = trace.divide(joint, trace.min_cut(joint))
    assert kept.plan.bytes_saved == 2 * 8 * 8 * 4
    assert cut.plan.bytes_saved == 8 * 8 * 4
    assert "aten.exp.default" in targets(cut.backward)


def test_min_cut_computes_no_matmul_and_no_random_op_again() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (F.dropout(x @ x, 0.5).exp() @ x).exp()

    joint = joint_of(f, grad(8, 8))
    division = trace.divide(joint, trace.min_cut(joint))
    assert not [t for t in targets(division.backward) if "bernoulli" in t]
    assert sum("mm" in t for t in targets(division.backward)) == 4  # two matmuls have two gradients each


def test_what_layer_norms_gave_is_computed_again_from_their_input() -> None:
    w, v = torch.ones(8, requires_grad=True), torch.randn(8, 8, requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x @ x, (8,), w).sin() @ v

    names, size = saved(f, grad(8, 8))
    assert size == (8 * 8 + 2 * 8) * 4  # the product, mean and deviation
    names, size = saved(lambda x: (y := F.layer_norm(x @ x, (8,), w)) + (y @ v).sin(), grad(8, 8))
    assert size == (3 * 8 * 8 + 2 * 8) * 4  # what residuals read lies between layers
    results = saved(lambda x: (y := F.layer_norm(x @ x, (8,), w), y @ v), grad(8, 8))
    assert results[1] == (2 * 8 * 8 + 2 * 8) * 4  # the caller may write to it, which is then an error


def test_partition_that_computes_a_random_op_again_is_refused() -> None:
    joint = joint_of(lambda x: F.dropout(x, 0.5), grad(8))
    with pytest.raises(PassError, match="bernoulli is random|is random"):
        trace.divide(joint, [])


def test_partition_may_compute_anything_else_again() -> None:
    joint = joint_of(lambda x: (x @ x).exp(), grad(8, 8))
    division = trace.divide(joint, [])
    assert division.plan.bytes_saved == 0
    assert sum("mm" in t for t in targets(division.backward)) == 3


def test_argument_that_the_forward_writes_is_saved_as_it_was() -> None:
    def f(state: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        product = state.clone() * w
        state.add_(1)
        return product

    joint = joint_of(f, torch.ones(4), grad(4))
    for choose in (trace.save_needed, trace.min_cut):
        division = trace.divide(joint, choose(joint))
        assert [p.kind for p in division.plan.saved] == ["result"]


def test_of_equal_cuts_the_one_nearest_to_the_backward_is_taken() -> None:
    names, size = saved(lambda x: (x @ x).exp().sigmoid().sum(), grad(8, 8))
    assert size == 8 * 8 * 4
    assert names == ["x", "exp"], "mm has as many bytes, and sigmoid's result does not tell what exp's was"


def test_a_cast_that_makes_a_value_smaller_is_saved_in_its_place() -> None:
    _, size = saved(lambda x: (x @ x).half().float().sin().sum(), grad(8, 8))
    assert size == 8 * 8 * 2


def test_a_view_is_saved_as_its_base() -> None:
    names, size = saved(lambda x, w: (x @ w.t()).sum(), grad(4, 8), grad(4, 8), choose=trace.save_needed)
    assert (sorted(names), size) == (["w", "x"], 0)


def test_a_wide_value_is_computed_again_from_the_narrow_one() -> None:
    _, size = saved(lambda x: (x.sum(1, keepdim=True).expand(8, 64) * 2).sin().sum(), grad(8, 64))
    assert size == 8 * 4


def test_reductions_and_convolutions_are_computed_once() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (torch.softmax(self.conv(x).exp(), 1) * x.amax()).sin()

    joint = joint_of(Net(), torch.ones(1, 2, 6, 6))
    again = targets(trace.divide(joint, trace.min_cut(joint)).backward)
    assert not [t for t in again if t in ("aten.convolution.default", "aten.amax.default", "aten._softmax.default")]


def test_a_result_is_saved_where_its_own_gradient_reads_it_and_nowhere_else() -> None:
    assert saved(lambda x: (x * 2).exp(), grad(8))[0] == ["exp"]
    assert saved(lambda x: (h := x @ x + 1, h.sin()), grad(8, 8))[0] == ["x", "add"]
    assert saved(lambda x: (h := x @ x + 1, (h * 2).sin()), grad(8, 8))[0] == ["x", "mul"]


@pytest.mark.parametrize("seed", range(40))
def test_minimum_cut_is_the_least_of_all_cuts(seed: int) -> None:
    draw, network = random.Random(seed), Network()
    inner = [network.node() for _ in range(draw.randint(1, 9))]
    edges = {}
    for a in (0, 1, *inner):
        for b in (0, 1, *inner):
            if a != b and b != 0 and a != 1 and draw.random() < 0.3:
                edges[a, b] = draw.randint(1, 9)
                network.edge(a, b, edges[a, b])
    cuts = [{1, *nodes} for size in range(len(inner) + 1) for nodes in combinations(inner, size)]

    def weight(side: set[int]) -> int:
        return sum(capacity for (a, b), capacity in edges.items() if a not in side and b in side)

    side = network.sink_side()
    assert 0 not in side
    assert weight(side) == min(map(weight, cuts))
    assert weight(side) < INFINITE
