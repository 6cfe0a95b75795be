"""Functions that transform functions, and control flow in a graph: one graph each, as in plain Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import compiling
import pytest
import torch
from torch import nn
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch.utils.checkpoint import checkpoint

import firebrick
from firebrick.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

X = torch.tensor([1.0, -2.0, 0.5])
M = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 4.0]])
LINEAR = nn.Linear(3, 2)
LINEAR.weight.data = torch.arange(6.0).reshape(2, 3)
LINEAR.bias.data = torch.ones(2)
TENSORS = {name: parameter.detach() * 2 for name, parameter in LINEAR.named_parameters()}
made_outside = torch.func.vmap(torch.func.grad(lambda row: (row**3).sum()))


def pair(a: Any, b: Any) -> Any:
    return (a * b).sum(), a + b


def vmap_over_a_lambda(x: Any) -> Any:
    return torch.vmap(lambda row: row.sum() * 2)(x)


def vmap_with_dimensions(x: Any) -> Any:
    return torch.func.vmap(pair, in_dims=(0, None), out_dims=(0, 1))(x, x[0])


def vmap_with_a_tensor_from_outside(x: Any) -> Any:
    weight = x[0] * 2
    return torch.vmap(lambda row: torch.dot(row, weight))(x)


def vmap_of_dictionaries(x: Any) -> Any:
    return torch.vmap(lambda given: {"sum": given["a"] + given["b"], "row": given["a"]})({"a": x, "b": x * 2})


def vmap_in_chunks(x: Any) -> Any:
    return torch.vmap(lambda row: row.cos(), chunk_size=1)(x)


def vmap_twice(x: Any) -> Any:
    return torch.vmap(torch.vmap(lambda a, b: a * b, in_dims=(0, None)), in_dims=(None, 0))(x[0], x[:, 0])


def transform_made_outside(x: Any) -> Any:
    return made_outside(x) + 1


def gradient(x: Any) -> Any:
    return torch.func.grad(lambda a: (a**2).sum())(x)


def gradient_with_auxiliary(x: Any) -> Any:
    return torch.func.grad_and_value(lambda a, b: ((a * b).sum(), a + 1), argnums=(0, 1), has_aux=True)(x, x + 1)


def gradient_sees_gradients_on(x: Any) -> Any:
    return torch.func.grad(lambda a: (a * 2 if a.requires_grad and torch.is_grad_enabled() else a).sum())(x)


def gradients_of_samples(x: Any) -> Any:
    weight = torch.ones(3)
    return torch.vmap(torch.func.grad(lambda w, row: ((w * row).sum() - 1) ** 2), in_dims=(None, 0))(weight, x)


def forward_mode(x: Any) -> Any:
    return torch.func.jvp(lambda a: a.sin(), (x,), (torch.ones_like(x),))


def jacobians(x: Any) -> Any:
    def function(a: Any) -> Any:
        return a.sin() * a.sum()

    return torch.func.jacrev(function)(x[0]), torch.func.jacfwd(function)(x[0])


def second_derivatives(x: Any) -> Any:
    return torch.func.hessian(pair)(x[0], x[1])


HESSIAN = pytest.param(
    second_derivatives,
    marks=pytest.mark.skipif(
        torch.__version__ < "2.13",
        reason="hessian of torch 2.12 reads a value",
    ),
)


def other_tensors_in_a_module(x: Any) -> Any:
    return torch.func.functional_call(LINEAR, TENSORS, (x,)) + LINEAR(x)


def gradients_of_a_module(x: Any) -> Any:
    return torch.func.grad(lambda tensors: torch.func.functional_call(LINEAR, tensors, (x,)).sum())(TENSORS)


def side_effect_in_a_transformed_function(x: Any) -> Any:
    seen = []

    def function(row: Any) -> Any:
        seen.append(len(row))
        return row * 2

    return torch.vmap(function)(x), seen


@pytest.mark.parametrize(
    "function",
    [
        vmap_over_a_lambda,
        vmap_with_dimensions,
        vmap_with_a_tensor_from_outside,
        vmap_of_dictionaries,
        vmap_in_chunks,
        vmap_twice,
        transform_made_outside,
        gradient,
        gradient_with_auxiliary,
        gradient_sees_gradients_on,
        gradients_of_samples,
        forward_mode,
        jacobians,
        HESSIAN,
        other_tensors_in_a_module,
        gradients_of_a_module,
        side_effect_in_a_transformed_function,
    ],
)
def test_transforms(function: Callable[..., Any]) -> None:
    with torch.no_grad():
        compiling.check(function, M)


def test_equal_modules_in_a_transform_keep_their_parameters() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            return self.two(self.one(x).sin().cos().tanh() * 2 + 1).relu() - x

    layers = nn.ModuleList([Layer() for _ in range(3)])

    def function(x: Any) -> Any:
        for layer in layers:
            x = torch.vmap(layer)(layer(x))
        for layer in layers:
            x = layer(x)
        return torch.func.functional_call(layers[1], {"one.bias": x[0]}, x)

    with torch.no_grad():
        compiling.check(function, M)


def test_tensor_that_leaves_a_transformed_function_breaks() -> None:
    def leaks(x: Any) -> Any:
        seen = []

        def function(row: Any) -> Any:
            seen.append(row.sum())
            return row * 2

        out = torch.vmap(function)(x)
        return out + len(seen)

    def leaked(x: Any) -> Any:
        seen = []
        out = torch.vmap(lambda row: (seen.append(row.sum()), row * 2)[1])(x)
        return out, seen[0] + 1

    with torch.no_grad():
        compiling.check(leaks, M)
        with pytest.raises(Unsupported, match="nested function"):
            compiling.Compiled(leaked, fullgraph=True)(M)


def test_errors_of_transforms_are_plain_pythons() -> None:
    def scalar_wanted(x: Any) -> Any:
        return torch.func.grad(lambda a: a * 2)(x)

    def no_such_dimension(x: Any) -> Any:
        return torch.vmap(lambda a: a, in_dims=5)(x)

    with torch.no_grad():
        for function in (scalar_wanted, no_such_dimension):
            compiling.check(function, M, graphs=None, breaks=None)


# -- control flow -----------------------------------------------------------------------------------


def branch(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a.sin() - 1, (x,)) * 2


def branch_with_tensors_from_outside(x: Any) -> Any:
    y, z = x * 2, x + 3
    return torch.cond(x.sum() > 0, lambda: {"a": y + 1}, lambda: {"a": z - 1})["a"]


def loop(x: Any) -> Any:
    return while_loop(lambda n, a: n < 3, lambda n, a: (n + 1, a * 2), (x.sum().abs().to(torch.int64) * 0, x))


@pytest.mark.parametrize("function", [branch, branch_with_tensors_from_outside, loop])
@pytest.mark.parametrize("backend", ["eager", "firebrick"])
def test_control_flow_by_data(function: Callable[..., Any], backend: str) -> None:
    with torch.no_grad():
        compiled = firebrick.compile(function, fullgraph=True, backend=backend)
        for x in (X, -X):
            want, got = function(x), compiled(x)
            torch.testing.assert_close(got, want)


def test_branch_with_a_side_effect_breaks() -> None:
    seen: list[int] = []

    def function(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda a: (seen.append(1), a + 1)[1], lambda a: a - 1, (x,))

    with torch.no_grad(), pytest.raises(Unsupported, match="side effects"):
        compiling.Compiled(function, fullgraph=True)(X)


def test_condition_known_at_capture() -> None:
    def function(x: Any) -> Any:
        return torch.cond(x.shape[0] > 2, lambda a: a + 1, lambda a: a - 1, (x,))

    compiling.check(function, X)


def test_scans_are_unrolled() -> None:
    def function(x: Any) -> Any:
        carry, rows = scan(lambda c, a: (c + a, c * a), x[0] * 0, x, reverse=True)
        return carry, rows, torch_map(lambda a, b: a * b, x, 2.0)

    with torch.no_grad():
        carry, rows, mapped = compiling.Compiled(function, fullgraph=True)(M)
    torch.testing.assert_close(carry, M[0] + M[1])
    torch.testing.assert_close(rows, torch.stack([M[1] * M[0], M[1] * 0]))
    torch.testing.assert_close(mapped, M * 2)


def test_associative_scan() -> None:
    def function(x: Any) -> Any:
        return associative_scan(lambda a, b: a + b, x, dim=0, combine_mode="generic")

    with torch.no_grad():
        torch.testing.assert_close(compiling.Compiled(function, fullgraph=True)(M), M.cumsum(0))


def test_checkpoint() -> None:
    plain, compiled = X.clone().requires_grad_(), X.clone().requires_grad_()
    checkpointed(plain, reentrant=False).backward()
    compiling.Compiled(checkpointed, fullgraph=True)(compiled, reentrant=False).backward()
    assert torch.equal(plain.grad, compiled.grad)


def test_reentrant_checkpoint_is_in_the_graph() -> None:
    plain, compiled = X.clone().requires_grad_(), X.clone().requires_grad_()
    checkpointed(plain, reentrant=True).backward()
    compiling.Compiled(checkpointed, fullgraph=True)(compiled, reentrant=True).backward()
    assert torch.equal(plain.grad, compiled.grad)


def checkpointed(x: Any, *, reentrant: bool) -> Any:
    return checkpoint(lambda a: (a.sin() * 2).sum(), x, use_reentrant=reentrant)


@pytest.mark.parametrize(
    "function", [vmap_with_dimensions, gradients_of_samples, jacobians, HESSIAN, forward_mode, gradients_of_a_module]
)
def test_transforms_are_compiled(function: Callable[..., Any]) -> None:
    before = firebrick.graphs_compiled()
    with torch.no_grad():
        torch.testing.assert_close(firebrick.compile(function, fullgraph=True)(M), function(M))
    assert firebrick.graphs_compiled() > before
