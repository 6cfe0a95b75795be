"""Gradients in batches, as `is_grads_batched` and `torch.vmap` give them: one backward for each of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_functorch: Any = torch._C._functorch


class Batch:
    """The outermost batch that some tensors are in; `legacy`: one of `torch.autograd.grad`, not of `torch.vmap`."""

    def __init__(self, legacy: bool, level: int) -> None:
        self.legacy, self.level = legacy, level

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor | None]) -> Batch | None:
        """The batch that was opened last, None if there is none."""
        present = [t for t in tensors if t is not None]
        levels = [_functorch.maybe_get_level(t) for t in present if _functorch.is_batchedtensor(t)]
        if levels:
            return cls(False, max(levels))
        if not any(_functorch.is_legacy_batchedtensor(t) for t in present):
            return None
        level = torch._C._vmapmode_increment_nesting()
        torch._C._vmapmode_decrement_nesting()
        while level > 1 and not any(cls(True, level)._holds(t) for t in present):
            level -= 1
        return cls(True, level)

    def _holds(self, tensor: torch.Tensor) -> bool:
        if not self.legacy:
            return bool(_functorch.is_batchedtensor(tensor)) and _functorch.maybe_get_level(tensor) == self.level
        one, two = (torch._remove_batch_dim(tensor, self.level, size, 0) for size in (1, 2))
        return one.shape == two.shape  # a tensor that is not in the batch is repeated as often as it is asked to be

    def _rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with the batch as its first dimension."""
        if self.legacy:
            return torch._remove_batch_dim(tensor, self.level, 1, 0)
        value, dim = _functorch._unwrap_batched(tensor, self.level)
        return value.movedim(dim, 0)  # type: ignore[no-any-return]

    def map(
        self, function: Callable[..., tuple[torch.Tensor | None, ...]], tensors: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """What a function gives for each of the batch, as a batch."""
        rows = {i: self._rows(t) for i, t in enumerate(tensors) if t is not None and self._holds(t)}
        size = len(next(iter(rows.values())))
        rows = rows if size else {i: row.new_zeros(1, *row.shape[1:]) for i, row in rows.items()}
        calls = [function(*[rows[k][i] if k in rows else t for k, t in enumerate(tensors)]) for i in range(size or 1)]
        add = torch._add_batch_dim if self.legacy else _functorch._add_batch_dim
        results = [None if column[0] is None else torch.stack(column)[:size] for column in zip(*calls, strict=True)]
        return tuple([None if r is None else add(r, 0, self.level) for r in results])
