"""The operators of convolutions with packed constant weights, `firebrick::convolution` and its packing.

Compiled graphs have generated kernels instead of the call (`codegen/cpp_convolution.py`, `codegen/cpp_depthwise.py`);
the functions here say what they compute, for prints, the interpreter and eager kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from firebrick.extend.linear import ACTIVATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["convolution_op", "pack_convolution_op"]


def _pack(weight: torch.Tensor, columns: int) -> torch.Tensor:
    """[outer, inner, height, width] -> [panels, height, width, inner, columns], zeros beyond the last column.

    columns 0: the weight of a depthwise convolution, [channels, 1, height, width] -> [height, width, channels].
    """
    if not columns:
        return weight[:, 0].permute(1, 2, 0).contiguous()
    outer, inner, height, width = weight.shape
    panels = -(-outer // columns)
    padded = F.pad(weight.reshape(outer, -1), (0, 0, 0, panels * columns - outer))
    return padded.reshape(panels, columns, inner, height, width).permute(0, 3, 4, 2, 1).contiguous()


def _convolution(
    x: torch.Tensor,
    packed: torch.Tensor,
    bias: torch.Tensor | None,
    other: torch.Tensor | None,
    outer: int,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    attr: str,
    scalars: Sequence[float],
) -> torch.Tensor:
    """act(x * weight + bias + other), channels last; padding: zeros at the left, right, top and bottom."""
    groups = 1
    if packed.dim() == 3:
        groups, weight = outer, packed.permute(2, 0, 1).unsqueeze(1)
    else:
        weight = packed.permute(0, 4, 3, 1, 2).flatten(0, 1)[:outer]
    made = F.conv2d(F.pad(x, list(padding)), weight, bias, stride, 0, dilation, groups)
    made = made if other is None else made + other
    return ACTIVATIONS[attr](made, *scalars).contiguous(memory_format=torch.channels_last)


def _convolution_out(*args: Any, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(_convolution(*args))


_arguments = (
    "Tensor x, Tensor packed, Tensor? bias, Tensor? other, int outer, int[] stride, int[] padding, int[] dilation, "
    "str attr, float[] scalars"
)
_library = torch.library.Library("firebrick", "FRAGMENT")
_library.define(f"convolution({_arguments}) -> Tensor")
_library.define(f"convolution.out({_arguments}, *, Tensor(a!) out) -> Tensor(a!)")
_library.define("pack_convolution(Tensor weight, int columns) -> Tensor")
_library.impl("convolution", _convolution, "CompositeExplicitAutograd")
_library.impl("convolution.out", _convolution_out, "CompositeExplicitAutograd")
_library.impl("pack_convolution", _pack, "CompositeExplicitAutograd")

convolution_op: Any = torch.ops.firebrick.convolution.default
pack_convolution_op: Any = torch.ops.firebrick.pack_convolution.default
