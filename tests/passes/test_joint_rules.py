"""Rules and passes over the joint graph: they see forward and backward at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

import firebrick
from firebrick.errors import BackendError, VerificationError
from firebrick.extend import graph_pass, rule
from firebrick.report import FirebrickWarning

X, W = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), torch.ones(4, 4)
EXAMPLES = (torch.ones(2, 2), torch.ones(2, 2))


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x @ w)


def derivative(g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return g * ((1 - y) * y)


def fused(g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return g * (y - y * y)


def flipped(g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return g * (y + y * y)


def gradient(call: Any) -> torch.Tensor:
    x = X.clone().requires_grad_()
    call(x, W).square().sum().backward()
    assert x.grad is not None
    return x.grad


def test_rule_matches_in_the_backward() -> None:
    seen = []

    def where(y: torch.Tensor) -> bool:
        seen.append(tuple(y.shape))
        return True

    step = rule(derivative, fused, name="shorter_sigmoid", level="joint", examples=EXAMPLES, where=where)
    call = firebrick.compile(program, passes=[step], options={"verify_passes": True})
    torch.testing.assert_close(gradient(call), gradient(program))
    assert seen == [(3, 4)]


def test_wrong_rule_is_named_and_skipped() -> None:
    step = rule(derivative, flipped, name="flipped_sigmoid", level="joint", examples=EXAMPLES)
    call = firebrick.compile(program, passes=[step], options={"verify_passes": True, "strict": False})
    with pytest.warns(FirebrickWarning, match="flipped_sigmoid"):
        found = gradient(call)
    torch.testing.assert_close(found, gradient(program))


def test_wrong_rule_raises_when_strict() -> None:
    step = rule(derivative, flipped, name="flipped_sigmoid_strict", level="joint", examples=EXAMPLES)
    call = firebrick.compile(program, passes=[step], options={"verify_passes": True, "strict": True})
    with pytest.raises((VerificationError, BackendError), match="flipped_sigmoid_strict"):
        gradient(call)


def test_pass_sees_inputs_and_tangents() -> None:
    seen = []

    @graph_pass(level="joint")
    def look(gm: fx.GraphModule) -> bool:
        seen.extend(n.name for n in gm.graph.nodes if n.op == "placeholder")
        return False

    gradient(firebrick.compile(program, passes=[look]))
    assert seen == ["x", "w", "tangent_0"]


def test_pass_that_drops_a_gradient_is_refused() -> None:
    @graph_pass(level="joint")
    def drop(gm: fx.GraphModule) -> bool:
        output = gm.graph.output_node()
        output.args = (output.args[0][:-1],)  # type: ignore[index]
        return True

    call = firebrick.compile(program, passes=[drop], options={"strict": True})
    with pytest.raises(firebrick.errors.PassError, match="changed what the graph takes or returns"):
        gradient(call)
