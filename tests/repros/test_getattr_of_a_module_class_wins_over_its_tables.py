"""A module class's own `__getattr__` is asked for parameters and submodules too: they are no attributes to Python."""

from typing import Any

import pytest
import torch
from torch import nn

import firebrick

X = torch.randn(3, 4)


class Winning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weight = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def __getattr__(self, name: str) -> Any:
        if name == "layer":
            return lambda x: x * 9
        if name == "weight":
            return super().__getattr__(name) * 2
        return 7.0 if name == "extra" else super().__getattr__(name)

    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.extra + self.weight


class Forwarding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.scale + self.bias * self.in_features


@pytest.mark.parametrize("cls", [Winning, Forwarding])
def test_as_plain_python(cls: Any) -> None:
    module = cls()
    compiled = firebrick.compile(module, fullgraph=True)
    torch.testing.assert_close(compiled(X), module(X))
    module.load_state_dict({name: value + 1 for name, value in module.state_dict().items()})
    torch.testing.assert_close(compiled(X), module(X))
