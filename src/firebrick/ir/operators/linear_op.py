"""The operators of matmuls by constant weights, `firebrick::linear`, and of attention, which is two of them.

Compiled graphs have a generated kernel instead of the call (`targets/cpu/matmul_kernel.py`); the function here says
what it computes, for prints, the interpreter and eager kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from firebrick.ir.operators.definition import define

ACTIVATIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "none": lambda x: x, "relu": F.relu, "hardtanh": F.hardtanh, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "swish": F.silu, "hardswish": F.hardswish,
}  # fmt: skip
"""Name of what is applied to each result -> the function, called with the result and its numbers."""


def _linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    other: torch.Tensor | None,
    attr: str,
    scalars: Sequence[float],
    form: str = "own",
    outer: int = 0,
) -> torch.Tensor:
    """x [rows, inner] by weight [inner, outer], times scale [outer], plus bias [outer], plus other [rows, outer].

    Factors are float32, or bfloat16 without what is added; the result and all else are float32. Without scale, bias and
    other there may be many products: x [batch, rows, inner] by weight [batch, inner, outer].
    form: of the kernel, see `firebrick.targets.cpu.matmul_kernel`. "ahead": weight [panels, 1, 1, inner, columns], the
    first `outer` of whose columns are meant.
    """
    x, weight = x.float(), weight.float()
    weight = weight[:, 0, 0].movedim(0, 1).flatten(1)[:, :outer] if form == "ahead" else weight
    if scale is not None:
        result = torch.mm(x, weight) * scale
        result = result if bias is None else result + bias
    else:
        result = torch.matmul(x, weight) if bias is None else torch.addmm(bias, x, weight)
    result = result if other is None else result + other
    return ACTIVATIONS[attr](result, *scalars)


linear_op: Any = define(
    "linear(Tensor x, Tensor weight, Tensor? scale, Tensor? bias, Tensor? other, str attr, float[] scalars, "
    "str form='own', int outer=0) -> Tensor",
    _linear,
    out=True,
)
attention_op: Any = define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? mask, float scale, bool causal) -> Tensor",
    lambda q, k, v, mask, scale, causal: torch.empty_like(q).copy_(
        F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale)
    ),
    out=True,
)
"""Attention of [batch, heads, length, size] on a CPU (`targets/cpu/attention_kernel.py`), which lies as the queries."""
