"""What a first compile on a machine needs to choose kernels by, begun while the module is captured."""

from typing import Any

import torch
from torch import nn

from firebrick.config import Config
from firebrick.runtime.cache import DiskCache
from firebrick.targets.by_device import find_targets, measures

_WINDOWS, _MATRICES = 0.05, 0.2
"""Shares of a CPU module's parameters that they have where the first compile likely measures them."""


def prepare(module: nn.Module, config: Config) -> None:
    """Begin to build what the first compile on a machine chooses kernels by, while its module is captured."""
    needless = torch.is_grad_enabled() or config.autotune or config.stages != "all" or not measures(config)
    if needless or (config.cache and DiskCache(config).root.exists()):
        return
    weights = [w for w in module.parameters() if w.device.type == "cpu" and w.dim() > 1]
    calls, whole = list[Any](), sum(w.numel() for w in weights)
    if sum(w.numel() for w in weights if w.dim() == 2) > _MATRICES * whole:
        calls += [("aten::mm", (w, w)) for w in weights if w.dim() == 2]
    if sum(w.numel() for w in weights if w.dim() > 2) > _WINDOWS * whole:
        for w in (w for w in weights if w.dim() > 2 and w.shape[1] > 1):  # else of channels by themselves
            ones, x = [1] * (w.dim() - 2), w.new_empty((1, w.shape[1], *[n + 15 for n in w.shape[2:]]), device="meta")
            out = x.new_empty((1, w.shape[0], *[16 for _ in ones]))
            calls.append(("aten::convolution", (x, w, ones, [0] * len(ones), ones, 1, out)))
    find_targets((), config)["cpu"].prepare(calls, config)
