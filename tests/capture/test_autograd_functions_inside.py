"""`torch.autograd.Function` classes that captured code makes: inlined, or one node where gradients are recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiling import assert_same

import firebrick

X = [0.5, -1.0, 2.0]


def scaled(x: Any) -> Any:
    scale = 3

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any, factor: Any = 2) -> Any:
            ctx.save_for_backward(value)
            ctx.factor = factor
            return value.sin() * factor * scale

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (value,) = ctx.saved_tensors
            return grad * value.cos() * 10, None

    return Scaled.apply(x) + Scaled.apply(x * 2, 5), Scaled.__name__, issubclass(Scaled, torch.autograd.Function)


def with_a_setup(x: Any) -> Any:
    def slope(value: Any) -> Any:
        return value * 7

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(value: Any) -> Any:
            return value * value

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * slope(*ctx.saved_tensors)

    return Square.apply(x).sum()


def two_of_one_name(x: Any) -> Any:
    results = []
    for power in (1, 2):

        class Same(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, value: Any, times: int = power) -> Any:
                ctx.times = times
                return value * times

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                return grad * 100**ctx.times

        results.append(Same.apply(x))
    return results


def by_a_base(x: Any) -> Any:
    class Base(torch.autograd.Function):
        @classmethod
        def slope(cls, value: Any) -> Any:
            return value + 5

        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            ctx.save_for_backward(value)
            return value.exp()

    class Derived(Base):
        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * Derived.slope(ctx.saved_tensors[0])

    return Derived.apply(x) * 2


def gradients(function: Any, recorded: bool) -> Any:
    x = torch.tensor(X, requires_grad=recorded)
    result = function(x)
    tensors = [r for r in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(r, torch.Tensor)]
    if recorded:
        sum(
            (n + 1) * (t * torch.arange(1.0, 1 + t.numel()).reshape(t.shape)).sum() for n, t in enumerate(tensors)
        ).backward()
    return result, x.grad


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "firebrick"])
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("function", [scaled, with_a_setup, two_of_one_name, by_a_base])
def test_one_graph(function: Any, recorded: bool, backend: str) -> None:
    compiled = firebrick.compile(function, fullgraph=True, backend=backend)
    for _ in range(3):
        assert_same(gradients(compiled, recorded), gradients(function, recorded))


def of_power(power: int) -> Any:
    def run(x: Any) -> Any:
        class Same(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, value: Any) -> Any:
                return value + 1

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                return grad * power

        return Same.apply(x) * 2

    return run


def test_graphs_with_classes_of_one_name_are_told_apart() -> None:
    for power in (3, 4, 3):
        function = of_power(power)
        got = gradients(firebrick.compile(function, fullgraph=True), True)
        assert_same(got, gradients(function, True))


def class_leaves(x: Any) -> Any:
    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 9

    return Kept, Kept.apply(x) + 1


def test_a_class_that_leaves_is_one_of_autograd() -> None:
    compiled = firebrick.compile(class_leaves, fullgraph=True)
    for recorded in (True, False):
        ((first, one), grad), ((second, _), _) = gradients(compiled, recorded), gradients(compiled, recorded)
        assert first is not second
        assert first._backward_cls is not second._backward_cls
        assert_same((one, grad), (torch.tensor(X) * 2 + 1 if not recorded else one, grad))
        x = torch.tensor(X, requires_grad=True)
        first.apply(x).sum().backward()
        assert_same(x.grad, torch.full((3,), 9.0))


def holds_a_tensor(x: Any) -> Any:
    scale = x * 2

    class Held(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value * scale

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * scale

    return Held.apply(x)


def variable_changes(x: Any) -> Any:
    scale = 2

    class Read(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value * scale

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * scale

    result = Read.apply(x)
    scale = 5
    return result * scale


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (holds_a_tensor, "made inside that reads a value of type Tensor"),
        (variable_changes, "made inside that reads scale, which changes"),
    ],
)
def test_what_gradients_can_not_be_recorded_of_breaks(function: Any, text: str) -> None:
    assert_same(gradients(firebrick.compile(function, fullgraph=True), False), gradients(function, False))
    assert_same(gradients(firebrick.compile(function), True), gradients(function, True))
    with pytest.raises(firebrick.errors.Unsupported, match=text):
        gradients(firebrick.compile(function, fullgraph=True), True)
