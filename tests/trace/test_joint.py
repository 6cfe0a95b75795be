"""The joint graph, and its division: printed, saved bytes counted, illegal partitions refused."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from firebrick import trace
from firebrick.errors import LoweringError, PassError
from firebrick.trace.maxflow import INFINITE, Network

JOINT = """\
joint graph
  in    x: f32[2, 3]
  in    w: f32[4, 3]
  in    b: f32[4]
  in    tangent_0: f32[2, 4]
  t: f32[3, 4] = t(w)
  addmm: f32[2, 4] = addmm(b, x, t)
  sigmoid: f32[2, 4] = sigmoid(addmm)
  empty_like: f32[2, 4] = empty_like(sigmoid)
  bernoulli: f32[2, 4] = bernoulli.p(empty_like, 0.5)
  div: f32[2, 4] = div.Scalar(bernoulli, 0.5)
  mul: f32[2, 4] = mul.Tensor(sigmoid, div)
  mul_1: f32[2, 4] = mul.Tensor(tangent_0, div)
  sub: f32[2, 4] = sub.Tensor(1, sigmoid)
  mul_2: f32[2, 4] = mul.Tensor(sigmoid, sub)
  mul_3: f32[2, 4] = mul.Tensor(mul_1, mul_2)
  t_1: f32[4, 2] = t(mul_3)
  mm: f32[4, 3] = mm(t_1, x)
  t_2: f32[3, 4] = t(mm)
  sum_1: f32[1, 4] = sum.dim_IntList(mul_3, [0], True)
  view: f32[4] = view(sum_1, [4])
  t_3: f32[4, 3] = t(t_2)
  return (mul, t_3, view)
  gradients of w, b"""

BACKWARD = """\
aten graph
  in    x: f32[2, 3]
  in    sigmoid: f32[2, 4]
  in    div: f32[2, 4]
  in    tangent_0: f32[2, 4]
  mul_1: f32[2, 4] = mul.Tensor(tangent_0, div)
  sub: f32[2, 4] = sub.Tensor(1, sigmoid)
  mul_2: f32[2, 4] = mul.Tensor(sigmoid, sub)
  mul_3: f32[2, 4] = mul.Tensor(mul_1, mul_2)
  t_1: f32[4, 2] = t(mul_3)
  mm: f32[4, 3] = mm(t_1, x)
  t_2: f32[3, 4] = t(mm)
  sum_1: f32[1, 4] = sum.dim_IntList(mul_3, [0], True)
  view: f32[4] = view(sum_1, [4])
  t_3: f32[4, 3] = t(t_2)
  return (t_3, view)"""


def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.sigmoid(F.linear(x, w, b)), 0.5)


def grad(*shape: int) -> torch.Tensor:
    return torch.ones(shape, requires_grad=True)


def joint_of(fn: Any, *inputs: torch.Tensor) -> trace.JointGraph:
    return trace.trace_joint(fx.symbolic_trace(fn), inputs)


def targets(aten: Any) -> list[str]:
    return [str(n.target) for n in aten.gm.graph.nodes if n.op == "call_function"]


def test_joint_graph_as_text() -> None:
    assert trace.show_joint(joint_of(layer, torch.ones(2, 3), grad(4, 3), grad(4))) == JOINT


def test_backward_as_text() -> None:
    joint = joint_of(layer, torch.ones(2, 3), grad(4, 3), grad(4))
    division = trace.divide(joint, trace.save_needed(joint))
    assert trace.show(division.backward) == BACKWARD
    assert division.plan.bytes_saved == 2 * 2 * 4 * 4


def test_parameters_are_constants_with_gradients() -> None:
    joint = joint_of(nn.Linear(3, 4), torch.ones(2, 3))
    assert joint.wrt == ["weight", "bias"]
    assert set(joint.constants) == {"weight", "bias"}


def test_running_statistics_are_written_by_the_forward() -> None:
    joint = joint_of(nn.Sequential(nn.BatchNorm1d(3)), torch.ones(2, 3))
    division = trace.divide(joint, trace.min_cut(joint))
    assert {n.removeprefix("0_") for n in division.forward.mutated} == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }
    assert not division.backward.mutated


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


def test_symbolic_sizes_are_refused() -> None:
    gm = fx.symbolic_trace(lambda x: x * 2)
    shapes = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    mode = torch._subclasses.FakeTensorMode(shape_env=shapes)
    next(iter(gm.graph.nodes)).meta["val"] = mode.from_tensor(
        torch.ones(3, 4),
        symbolic_context=torch.fx.experimental.symbolic_shapes.StatelessSymbolicContext(
            dynamic_sizes=[torch.fx.experimental.symbolic_shapes.DimDynamic.DYNAMIC] * 2
        ),
    )
    with pytest.raises(LoweringError, match="symbolic sizes"):
        trace.trace_joint(gm, [grad(3, 4)])


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
