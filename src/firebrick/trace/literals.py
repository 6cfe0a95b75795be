"""Constants that a trace made from Python literals, as JSON-able data: they travel with the compiled graph."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def write(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return name -> [dtype, shape, bytes in base64, device]."""
    return {name: _encode(tensor) for name, tensor in tensors.items()}


def _encode(tensor: torch.Tensor) -> list[Any]:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    text = base64.b64encode(data).decode()
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), text, str(tensor.device)]


def read(data: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Inverse of `write`."""
    tensors = {}
    for name, (dtype, shape, text, device) in data.items():
        raw, kind = np.frombuffer(base64.b64decode(text), dtype=np.uint8).copy(), getattr(torch, dtype)
        flat = torch.from_numpy(raw).view(kind) if raw.size else torch.empty(0, dtype=kind)
        tensors[name] = flat.reshape(shape).to(device)
    return tensors
