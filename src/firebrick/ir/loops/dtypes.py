"""The table of element types: short names, their torch and C names, sizes and compute types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    kind: float, int, uint, bool, complex or other. ctype: C's name of the stored type; bf16 and f16 are stored as
    16-bit words and computed in `compute`. accumulate: the type in which eager PyTorch sums it.
    lo, hi: least and greatest finite value, for int, uint and bool. loops: whether loop nests can compute with it.
    """

    name: str
    torch: torch.dtype
    nbytes: int
    kind: str
    ctype: str
    compute: str
    accumulate: str
    lo: int = 0
    hi: int = 0
    loops: bool = True

    @property
    def is_float(self) -> bool:
        """Whether it is a real floating-point type."""
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """Whether it is an integer type, bool not counted."""
        return self.kind in ("int", "uint")


def _rows() -> tuple[DType, ...]:
    def integer(name: str, dtype: torch.dtype, nbytes: int, kind: str, ctype: str, loops: bool = True) -> DType:
        bits = 8 * nbytes
        lo, hi = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind == "int" else (0, (1 << bits) - 1)
        return DType(name, dtype, nbytes, kind, ctype, name, "i64", lo, hi, loops)

    return (
        DType("f32", torch.float32, 4, "float", "float", "f32", "f32"),
        DType("f64", torch.float64, 8, "float", "double", "f64", "f64"),
        DType("bf16", torch.bfloat16, 2, "float", "uint16_t", "f32", "f32"),
        DType("f16", torch.float16, 2, "float", "uint16_t", "f32", "f32"),
        integer("i64", torch.int64, 8, "int", "int64_t"),
        integer("i32", torch.int32, 4, "int", "int32_t"),
        integer("i16", torch.int16, 2, "int", "int16_t"),
        integer("i8", torch.int8, 1, "int", "int8_t"),
        integer("u8", torch.uint8, 1, "uint", "uint8_t"),
        DType("b8", torch.bool, 1, "bool", "uint8_t", "b8", "i64", 0, 1),
        # Only library calls compute with the types below.
        integer("u16", torch.uint16, 2, "uint", "uint16_t", loops=False),
        integer("u32", torch.uint32, 4, "uint", "uint32_t", loops=False),
        integer("u64", torch.uint64, 8, "uint", "uint64_t", loops=False),
        DType("c32", torch.complex32, 4, "complex", "uint32_t", "c64", "c64", loops=False),
        DType("c64", torch.complex64, 8, "complex", "uint64_t", "c64", "c64", loops=False),
        DType("c128", torch.complex128, 16, "complex", "__int128", "c128", "c128", loops=False),
        DType("f8e4m3", torch.float8_e4m3fn, 1, "other", "uint8_t", "f32", "f32", loops=False),
        DType("f8e5m2", torch.float8_e5m2, 1, "other", "uint8_t", "f32", "f32", loops=False),
        DType("f8e4m3z", torch.float8_e4m3fnuz, 1, "other", "uint8_t", "f32", "f32", loops=False),
        DType("f8e5m2z", torch.float8_e5m2fnuz, 1, "other", "uint8_t", "f32", "f32", loops=False),
        DType("f8e8m0", torch.float8_e8m0fnu, 1, "other", "uint8_t", "f32", "f32", loops=False),
        DType("q8", torch.qint8, 1, "other", "uint8_t", "q8", "q8", loops=False),
        DType("qu8", torch.quint8, 1, "other", "uint8_t", "qu8", "qu8", loops=False),
        DType("q32", torch.qint32, 4, "other", "uint32_t", "q32", "q32", loops=False),
    )


DTYPES: dict[str, DType] = {row.name: row for row in _rows()}
"""Short name -> row."""

BY_TORCH: dict[torch.dtype, DType] = {row.torch: row for row in DTYPES.values()}
"""torch.dtype -> row."""


def enum_value(kind: str, value: str) -> Any:
    """Torch's object for an `Enum` argument of a library call: a dtype, device, layout or memory format."""
    if kind == "dtype":
        return DTYPES[value].torch
    return torch.device(value) if kind == "device" else getattr(torch, value)
