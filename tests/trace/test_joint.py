"""The joint graph, and its division: printed, with what each half takes and gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from firebrick import trace
from firebrick.errors import LoweringError

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
