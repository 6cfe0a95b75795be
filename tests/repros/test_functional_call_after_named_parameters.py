"""`functional_call` on a module whose parameters were listed before used the module's own, without a word."""

import torch
from torch import nn

import firebrick

LINEAR = nn.Linear(3, 3)
X = torch.arange(6.0).reshape(2, 3)


def test_the_tensors_that_are_handed_in_are_used() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        twice = {name: parameter.detach() * 2 for name, parameter in LINEAR.named_parameters()}
        return torch.func.functional_call(LINEAR, twice, (x,))

    result = firebrick.compile(f, backend="eager", fullgraph=True)(X)
    assert torch.allclose(result, f(X))
    assert not result.requires_grad


def test_gradients_of_all_parameters() -> None:
    def f(x: torch.Tensor) -> dict[str, torch.Tensor]:
        parameters = dict(LINEAR.named_parameters())
        return torch.func.grad(lambda p: torch.func.functional_call(LINEAR, p, (x,)).sum())(parameters)

    result = firebrick.compile(f, backend="eager", fullgraph=True)(X)
    for name, gradient in f(X).items():
        assert torch.allclose(result[name], gradient)


def test_tables_of_the_module_hold_them_inside() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self._parameters["weight"] + sum(p.sum() for p in self.parameters())

    module = Looks()
    f = lambda x: torch.func.functional_call(module, {"weight": x[0]}, (x,)) + module(x)  # noqa: E731
    assert torch.allclose(firebrick.compile(f, backend="eager", fullgraph=True)(X), f(X))
