"""Functions of torch that are taken apart before PyTorch does: it would write in place what formulas give, or take
another kernel for a trace than in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from firebrick.errors import LoweringError
from firebrick.fakes.function_forms import FORMS
from firebrick.trace.attention_recipes import with_rows
from firebrick.trace.decompositions import asserted


def _pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Circular padding: rows are counted around, ends of the last dimension are joined to it."""
    dims = len(pad) // 2
    if mode != "circular" or x.dim() != dims + 2:
        return NotImplemented
    ends = [(pad[2 * k], pad[2 * k + 1]) for k in range(dims)]
    left = [n + min(a, 0) + min(b, 0) for n, (a, b) in zip(reversed(x.shape), ends, strict=False)]
    if 0 in x.shape or any(n <= 0 or max(a, b) > n for n, (a, b) in zip(left, ends, strict=True)):
        return NotImplemented
    # What negative padding cuts away is not there to be repeated.
    for k, (n, (before, behind)) in enumerate(zip(left, ends, strict=True)):
        if min(before, behind) < 0:
            x = x.narrow(-1 - k, max(-before, 0), n)
        before, behind = max(before, 0), max(behind, 0)
        if k and before + behind:
            turns = [1] * x.dim()
            turns[-1 - k] = 3
            x = x.repeat(turns).narrow(-1 - k, n - before, n + before + behind)
        ends[k] = before, behind
    before, behind = ends[0]
    parts = [x[..., left[0] - before :]] if before else []
    parts += [x, x[..., :behind]] if behind else [x]
    return torch.cat(parts, -1)


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Any:
    """Eager's is written into zeros, whatever the layout of places is; a trace's compares them, and looks at none."""
    if num_classes == 0:
        raise LoweringError("one_hot into 0 classes, which eager kernels refuse")
    if num_classes > 0:
        inside = (tensor >= 0) & (tensor < num_classes)
        tensor = asserted(tensor, inside, "Class values must be smaller than num_classes.")
    return F.one_hot(tensor, num_classes).contiguous()


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((F.pad, torch._C._nn.pad), _pad),
    F.one_hot: _one_hot,
    F.scaled_dot_product_attention: with_rows,
    **dict.fromkeys(  # whose second derivative asks for sizes that data decide
        (torch.trace, torch.Tensor.trace), lambda x: x.diagonal().sum() if x.requires_grad else NotImplemented
    ),
    **FORMS,
}
"""Function -> the same, or NotImplemented for arguments that PyTorch's own way is better for."""
