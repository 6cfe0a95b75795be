"""A function that pybind made was taken for a method of what pybind binds it to, and raised AttributeError."""

from __future__ import annotations

import pytest
import torch

import firebrick

X = torch.ones(3)


def test_the_question_whether_a_transform_is_active() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=0) if torch._C._are_functorch_transforms_active() else x + 1

    assert firebrick.compile(f, fullgraph=True)(X).equal(f(X))
    assert firebrick.compile(torch.vmap(f), fullgraph=True)(X[None]).equal(torch.vmap(f)(X[None]))


def test_another_function_of_pybind_is_a_call_that_breaks() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + len(torch._C._jit_get_all_schemas())

    assert firebrick.compile(f)(X).equal(f(X))
    with pytest.raises(firebrick.errors.Unsupported, match="_jit_get_all_schemas"):
        firebrick.compile(f, fullgraph=True)(X)
