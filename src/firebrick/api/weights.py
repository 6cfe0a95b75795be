"""Tensors in the safetensors format: a size, a JSON header, and the bytes. No code is in such a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from firebrick.errors import CacheError, ConfigError

_NAMES: Mapping[torch.dtype, str] = {
    **{getattr(torch, f"float{bits}"): f"F{bits}" for bits in (64, 32, 16)},
    **{getattr(torch, f"int{bits}"): f"I{bits}" for bits in (64, 32, 16, 8)}, torch.complex64: "C64",
    torch.uint8: "U8", torch.bool: "BOOL", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def write_tensors(tensors: Mapping[str, torch.Tensor], write: Callable[[bytes | memoryview], Any]) -> None:
    """Write contiguous tensors; wide types come first, which keeps all of them aligned.

    Raises:
        ConfigError: the format has no name for a dtype.
    """
    header: dict[str, Any] = {}
    place = 0
    rows = sorted(tensors.items(), key=lambda row: -row[1].element_size())
    for name, tensor in rows:
        if tensor.dtype not in _NAMES:
            raise ConfigError(f"{name} is {tensor.dtype}, which can't be saved")
        offsets = [place, place := place + tensor.nbytes]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write(len(text).to_bytes(8, "little") + text)
    for _, tensor in rows:
        if tensor.nbytes:
            write(_bytes_of(tensor))


def read_tensors(read: Callable[[memoryview], Any]) -> dict[str, torch.Tensor]:
    """Read tensors, each into memory of its own; `read` fills a buffer.

    Raises:
        CacheError: the file is truncated or not of this format.
    """
    try:
        header: dict[str, Any] = json.loads(_filled(int.from_bytes(_filled(8, read), "little"), read))
        rows = sorted(header.items(), key=lambda row: row[1]["data_offsets"])
        tensors, place = {}, 0
        for name, row in rows:
            tensor = torch.empty(row["shape"], dtype=_DTYPES[row["dtype"]])
            if row["data_offsets"] != [place, place := place + tensor.nbytes]:
                raise CacheError(f"the weights are corrupt: {name} has another size than its place")
            if tensor.nbytes:
                _fill(_bytes_of(tensor), read)
            tensors[name] = tensor
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError) as error:
        if isinstance(error, CacheError):
            raise
        raise CacheError(f"the weights are corrupt: {error}") from error
    return tensors


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat: Any = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def _filled(size: int, read: Callable[[memoryview], Any]) -> bytes:
    if size > 1 << 30:
        raise CacheError("the weights are corrupt: their header has no end")
    data = bytearray(size)
    _fill(memoryview(data), read)
    return bytes(data)


def _fill(buffer: memoryview, read: Callable[[memoryview], Any]) -> None:
    while buffer:
        count = read(buffer)
        if not count:
            raise CacheError("the weights are truncated")
        buffer = buffer[count:]
