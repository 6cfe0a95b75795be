"""What programs do with `.data`, `.grad`, leaves, hooks and parameters: results, gradients and arguments as in eager."""

from __future__ import annotations

import warnings
from typing import Any

import compiling
import pytest
import torch
from torch import nn

import firebrick

X = torch.tensor([1.0, -2.0, 0.5])


def leaf() -> torch.Tensor:
    return X.clone().requires_grad_()


def plain() -> torch.Tensor:
    return X.clone()


def facts(value: Any) -> Any:
    """All that a program can see of a tensor."""
    if isinstance(value, torch.Tensor):
        known = value.is_leaf or value.retains_grad
        grad = value.grad.tolist() if known and value.grad is not None else None
        state = value.requires_grad, value.is_leaf, value.retains_grad
        return (
            type(value),
            value.tolist(),
            grad,
            state,
            value._version if type(value) is torch.Tensor and value.is_leaf else 0,
        )
    return [facts(item) for item in value] if isinstance(value, (list, tuple)) else value


def data_is_read(x: Any) -> Any:
    y = x * 2
    return x.data * 2, y.data.requires_grad, y, x.data.is_leaf


def data_is_written_to(x: Any) -> Any:
    before = x * 2
    x.data.mul_(2)
    x.data[0] = 7
    return before, x + 1


def data_is_set(x: Any) -> Any:
    x.data = x.data * 2
    return x + 1


def data_of_another_form_is_set(x: Any) -> Any:
    x.data = torch.ones(5)
    return x + 1, x.shape


def data_is_set_and_written_to(x: Any) -> Any:
    other = x.detach() * 2
    x.data = other
    x.data.add_(1)
    with torch.no_grad():
        x.mul_(2)
        x[0] = 5
        x.data = x.data + x
    return other, x.data, x.data is x, x.requires_grad, x.is_leaf


def data_is_exchanged(x: Any) -> Any:
    other = x.detach().clone() + 1
    before = x.data
    x.data, other.data = other.data, before
    return other, before


def data_and_gradient_are_set(x: Any) -> Any:
    x.data = x.data[:2].clone()
    x.grad = torch.ones(2)
    return x.shape[0]


def data_is_set_before_an_exception(x: Any) -> Any:
    try:
        x.data = x.data * 3
        raise ValueError("after")
    except ValueError:
        x.data = x.data + 1
    return x.data * 2


def data_is_set_in_a_loop(x: Any) -> Any:
    for factor in range(1, 4):
        x.data = x.data * factor
    return x.data + 1


def history_after_data(x: Any) -> Any:
    y = x.detach() + 1
    y.data = torch.ones(3)
    y.mul_(x)
    return y * 2


def memory_of_an_argument(x: Any) -> Any:
    flat, same = x.view(-1), x.detach()
    return x + 1, flat is x, same is x, flat, same


def gradient_is_read(x: Any) -> Any:
    empty = x.grad is None
    x.grad = torch.ones_like(x)
    return empty, x.grad * 2


def gradient_is_accumulated(x: Any) -> Any:
    (x * 3).sum().backward()
    first = x.grad.clone()
    (x * x).sum().backward()
    x.grad.add_(1)
    return first, x.grad + 0


def gradient_of_a_result(x: Any) -> Any:
    y = x * 2
    return y.grad, y


def leaves(x: Any) -> Any:
    y = x * 2
    return x.is_leaf, y.is_leaf, y.detach().is_leaf, (y.detach() + 1).is_leaf, y


def asked_for_inside(x: Any) -> Any:
    y = x.detach() * 2
    y.requires_grad_()
    z = x.detach().clone()
    z.requires_grad = True
    (y * y + z).sum().backward()
    return y, z, y.is_leaf


def asked_for_an_argument(x: Any) -> Any:
    x.requires_grad_()
    return x * 2


def detached(x: Any) -> Any:
    y = x * 2
    y.detach_()
    return y + x, y, y.is_leaf


def retained(x: Any) -> Any:
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    return y.grad + 0, y.retains_grad, x.grad


def hooked(x: Any) -> Any:
    y = x * 2
    y.register_hook(lambda gradient: gradient * 3)
    return (y * y).sum()


def parameter_inside(x: Any) -> Any:
    weight = nn.Parameter(torch.ones(3))
    frozen = nn.Parameter(x.detach() * 2, requires_grad=False)
    (x * weight * frozen).sum().backward()
    return weight, frozen, x.grad


def parameters_made(x: Any) -> Any:
    made = [nn.Parameter(x.detach() * factor) for factor in (1, 2)]
    try:
        raise ValueError
    except ValueError:
        made.append(nn.Parameter(x.data, requires_grad=False))
    return x * 2, made, made[0].is_leaf, made[1].requires_grad, made[0].grad, type(made[0]) is nn.Parameter


def parameter_of_integers(x: Any) -> Any:
    try:
        return nn.Parameter(torch.ones(3, dtype=torch.int64))
    except RuntimeError as error:
        return x * 2, str(error)


def module_made_and_used(x: Any) -> Any:
    layer = nn.PReLU()
    y = layer(x * 2)
    y.sum().backward()
    return y.detach(), layer.weight.grad, x.grad


def module_made(x: Any) -> Any:
    layer = nn.LayerNorm(3)
    layer.extra = nn.Parameter(torch.zeros(2))
    return x * 2, [name for name, _ in layer.named_parameters()], list(layer.parameters())


def parameter_used_after_no_grad(x: Any) -> Any:
    with torch.no_grad():
        weight = nn.Parameter(x * 2)
        plain = weight * 3
    return weight * x, plain, weight


def leaves_by_option(x: Any) -> Any:
    zeros, given = torch.zeros(3, requires_grad=True), torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    with torch.no_grad():
        third = torch.ones(3, requires_grad=True)
        plain = third * 2
    (x * (zeros + 1) * given * third * plain).sum().backward()
    return zeros, given, third, plain, x.grad


def data_of_a_parameter(x: Any) -> Any:
    data = torch.ones(3) * 2
    weight = nn.Parameter(data)
    with torch.no_grad():
        data.mul_(3)
    y = weight * x
    return y.sum(), weight * 1, data, weight, weight.grad, weight.is_leaf


def parameter_of_a_view(x: Any) -> Any:
    base = torch.ones(2, 3)
    weight = nn.Parameter(base[0])
    return (weight * x).sum(), base, weight


def parameter_of_an_argument(x: Any) -> Any:
    weight = nn.Parameter(x)
    return (weight * x).sum(), weight


def parameter_of_a_parameter(x: Any) -> Any:
    first = nn.Parameter(torch.arange(3.0))
    second = nn.Parameter(first)
    return (first * x + second).sum(), first, second


def network_made(x: Any) -> Any:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1, bias=False))
    for index, weight in enumerate(net.parameters()):
        nn.init.constant_(weight, 0.25 * (index + 1))
    net(x).sum().backward()
    return [(name, weight.grad) for name, weight in net.named_parameters()], x.grad


def leaf_detached(x: Any) -> Any:
    weight = nn.Parameter(torch.ones(3))
    y = (weight * x).sum()
    weight.detach_()
    return y * 2, weight, weight * 3


def unused_leaf(x: Any) -> Any:
    nn.Parameter(torch.ones(2))
    return x * 2, [nn.Parameter(torch.ones(1)) for _ in range(2)]


def leaf_before_a_break(x: Any) -> Any:
    weight = nn.Parameter(x.detach() + 1)
    y = (weight * x).sum()
    if y > 100:
        return y, weight
    return y + weight.sum(), weight


def leaf_in_a_checkpoint(x: Any) -> Any:
    def body(y: Any) -> Any:
        return y * nn.Parameter(torch.ones(3))

    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False).sum()


def written_then_used(x: Any) -> Any:
    weight = nn.Parameter(torch.ones(3))
    with torch.no_grad():
        weight.copy_(x)
        weight[0] = 5.0
    return (weight.sin() * x).sum(), weight


def gradients_inside(x: Any) -> Any:
    y = x.detach().clone().requires_grad_()
    return torch.autograd.grad((y**2).sum(), y)


_ROWS = [
    (data_is_read, 1, 0),
    (data_is_written_to, 1, 0),
    (data_is_set, 1, 1),
    (data_of_another_form_is_set, 1, 1),
    (data_is_set_and_written_to, 1, 0),
    (data_is_exchanged, 1, 0),
    (data_and_gradient_are_set, 1, 0),
    (data_is_set_before_an_exception, 1, 0),
    (data_is_set_in_a_loop, 1, 0),
    (history_after_data, 2, 1),
    (memory_of_an_argument, 1, 0),
    (gradient_is_read, 1, 0),
    (gradient_is_accumulated, 3, 2),
    (gradient_of_a_result, 1, 1),
    (leaves, 1, 0),
    (asked_for_inside, 1, 1),
    (asked_for_an_argument, 1, 0),
    (detached, 1, 0),
    (retained, 3, 2),
    (hooked, 1, 0),
    (parameter_inside, 1, 1),
    (parameters_made, 1, 0),
    (parameter_of_integers, 1, 0),
    (module_made_and_used, 3, 1),
    (module_made, 1, 0),
    (parameter_used_after_no_grad, 1, 0),
    (leaves_by_option, 1, 1),
    (data_of_a_parameter, 1, 0),
    (parameter_of_a_view, 2, 1),
    (parameter_of_an_argument, 1, 0),
    (parameter_of_a_parameter, 2, 1),
    (network_made, 1, 1),
    (leaf_detached, 1, 0),
    (unused_leaf, 1, 0),
    (leaf_before_a_break, 2, 1),
    (leaf_in_a_checkpoint, 1, 1),
    (written_then_used, 1, 0),
    (gradients_inside, 1, 0),
]
"""Program, graphs, breaks; the arguments want gradients."""


@pytest.mark.parametrize(("function", "graphs", "breaks"), _ROWS, ids=[row[0].__name__ for row in _ROWS])
@pytest.mark.parametrize("kernels", [False, True], ids=["eager", "kernels"])
def test_programs(function: Any, graphs: int, breaks: int, kernels: bool) -> None:
    compiled: Any = firebrick.compile(function) if kernels else compiling.Compiled(function)
    for _ in range(2):
        mine, other = leaf(), leaf()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want, got = function(other), compiled(mine)
            assert facts(got) == facts(want)
            assert facts(mine) == facts(other)
            for one in (got, want):  # and what backward does from here
                first = one[0] if isinstance(one, tuple) else one
                if isinstance(first, torch.Tensor) and first.grad_fn is not None:
                    first.sum().backward()
        assert facts(mine) == facts(other)
    if not kernels:
        assert (len(compiled.graphs), len(compiled.breaks)) == (graphs, breaks), compiled.frames


@pytest.mark.parametrize(
    "function",
    [
        data_is_set,
        data_is_set_and_written_to,
        data_is_exchanged,
        data_is_set_before_an_exception,
        asked_for_an_argument,
        data_is_written_to,
        memory_of_an_argument,
        leaves,
    ],
)
def test_programs_without_gradients(function: Any) -> None:
    compiled = firebrick.compile(function)
    for _ in range(2):
        mine, other = plain(), plain()
        assert facts(compiled(mine)) == facts(function(other))
        assert facts(mine) == facts(other)


def share_data(x: Any, y: Any) -> Any:
    x.data = y
    y.add_(1)
    return x.detach() * 2, y


def test_data_of_arguments_that_are_the_same_or_share_memory() -> None:
    def state(function: Any, make: Any) -> Any:
        x, y = make()
        result = function(x, y)
        return facts([result, x, y]), x.data_ptr() == y.data_ptr()

    def same() -> Any:
        x = plain()
        return x, x

    def views() -> Any:
        x = plain()
        return x, x[:]

    compiled, kernels = compiling.Compiled(share_data), firebrick.compile(share_data)
    for make in (lambda: (plain(), plain() * 2), same, views, lambda: (leaf(), plain() * 3)):
        want = state(share_data, make)
        assert state(compiled, make) == want
        assert state(kernels, make) == want


def test_writes_through_data_do_not_count() -> None:
    def scale(x: Any) -> Any:
        x.data.mul_(2)
        return x.data + 1

    compiled = firebrick.compile(scale)
    for _ in range(2):
        x = leaf()
        squared = (x * x).sum()
        compiled(x)
        squared.backward()  # an error if the write were counted
        assert x.grad.tolist() == (4 * X).tolist()


def test_what_is_made_of_a_result_is_not_the_arguments() -> None:
    compiled = firebrick.compile(lambda x: (x.detach(), x.view(3, 1), x * 2))
    for grad in (False, True):
        x = X.clone().requires_grad_(grad)
        with torch.no_grad():
            detached, column, _ = compiled(x)
        detached.requires_grad_(not grad)
        with torch.no_grad():  # elsewhere torch refuses it of a view that was made there
            column.t_()
        assert (x.requires_grad, x.shape, column.shape) == (grad, (3,), (1, 3))
        detached.data[0] = 9
        assert x[0] == 9


def test_leaves_among_arguments() -> None:
    compiled = compiling.Compiled(lambda x: (x * 1, x.is_leaf, x.retains_grad))
    kept = leaf() * 2
    kept.retain_grad()
    for x in (leaf(), leaf() * 2, kept, plain(), leaf() * 2, kept):
        assert compiled(x)[1:] == (x.is_leaf, x.retains_grad)


def test_an_optimizer_by_hand() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.average = torch.zeros(3)

        def forward(self, x: Any) -> Any:
            return (x * self.weight).sum()

        def update(self) -> None:
            for parameter in self.parameters():
                parameter.data.sub_(parameter.grad, alpha=0.1)
                self.average.data.mul_(0.9).add_(parameter.data, alpha=0.1)
                parameter.grad = None

    nets = Net(), Net()
    steps = nets[0].update, firebrick.compile(nets[1].update)
    for _ in range(3):
        for net, step in zip(nets, steps, strict=True):
            net(X).backward()
            step()
            assert net.weight.grad is None
    assert torch.equal(nets[0].weight, nets[1].weight)
    torch.testing.assert_close(nets[0].average, nets[1].average)
