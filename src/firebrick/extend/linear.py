"""The operators of matmuls with packed constant weights, `firebrick::linear` and `firebrick::pack_linear`.

Compiled graphs have a generated kernel instead of the call (`codegen/cpp_linear.py`); the functions here say what it
computes, for prints, the interpreter and eager kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from firebrick.config import Config

__all__ = ["ACTIVATIONS", "linear_op", "pack_op", "packed_shape", "panel_columns"]

_COLUMNS = {"avx512": 32, "avx2": 16, "neon": 16}
"""SIMD level -> columns of a panel, two vectors or more."""
_LEVELS = {"AVX512": "avx512", "AVX2": "avx2", "DEFAULT": "scalar"}
"""What torch says of the CPU -> SIMD level."""

ACTIVATIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "hardtanh": F.hardtanh,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "swish": F.silu,
    "hardswish": F.hardswish,
}
"""Name of what is applied to each result -> the function, called with the result and its numbers."""


def panel_columns(config: Config) -> int:
    """Columns that lie together in a packed weight; 0: this machine has no vectors, the library's kernels are best."""
    level = config.simd
    if level == "auto":
        found = torch.backends.cpu.get_cpu_capability()
        level = "neon" if torch.backends.cpu.get_cpu_capability() not in _LEVELS else _LEVELS[found]
    return _COLUMNS.get(level, 0)


def packed_shape(outer: int, inner: int, columns: int) -> tuple[int, int, int]:
    """Panels, rows of a panel, columns of a panel."""
    return -(-outer // columns), inner, columns


def _pack(weight: torch.Tensor, columns: int, later: bool) -> torch.Tensor:
    """[outer, inner] -> [panels, inner, columns], zeros beyond the last column; later: may be done after the call."""
    del later
    outer, inner = weight.shape
    panels, _, _ = packed_shape(outer, inner, columns)
    padded = F.pad(weight, (0, 0, 0, panels * columns - outer))
    return padded.reshape(panels, columns, inner).transpose(1, 2).contiguous()


def _linear(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    packed: torch.Tensor,
    bias: torch.Tensor | None,
    outer: int,
    attr: str,
    scalars: Sequence[float],
) -> torch.Tensor:
    """x [rows, inner] by weight [inner, outer], plus bias [outer]; weight None: it is there in packed form only."""
    if weight is None:
        weight = packed.transpose(0, 1).reshape(packed.shape[1], -1)[:, :outer]
    made = torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)
    return ACTIVATIONS[attr](made, *scalars)


def _linear_out(*args: Any, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(_linear(*args))


_arguments = "Tensor x, Tensor? weight, Tensor packed, Tensor? bias, int outer, str attr, float[] scalars"
_library = torch.library.Library("firebrick", "FRAGMENT")
_library.define(f"linear({_arguments}) -> Tensor")
_library.define(f"linear.out({_arguments}, *, Tensor(a!) out) -> Tensor(a!)")
_library.define("pack_linear(Tensor weight, int columns, bool later) -> Tensor")
_library.impl("linear", _linear, "CompositeExplicitAutograd")
_library.impl("linear.out", _linear_out, "CompositeExplicitAutograd")
_library.impl("pack_linear", _pack, "CompositeExplicitAutograd")

linear_op: Any = torch.ops.firebrick.linear.default
pack_op: Any = torch.ops.firebrick.pack_linear.default
