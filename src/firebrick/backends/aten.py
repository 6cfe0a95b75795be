"""Runs an AtenGraph on eager kernels: write-backs and aliases as the graph asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from firebrick.extend.graph import Alias, AtenGraph

__all__ = ["run_aten"]


def run_aten(aten: AtenGraph, forward: Callable[..., Any] | None = None) -> Callable[..., tuple[Any, ...]]:
    """Return a callable of the graph's tensor inputs; `forward` computes the flat outputs (default: eager ops)."""
    call = aten.gm.forward if forward is None else forward
    names = [n.name for n in aten.gm.graph.nodes if n.op == "placeholder"]
    written: list[int | str] = [names.index(n) if n in names else n for n in aten.mutated]
    first, last = len(written), len(written) + len(aten.outputs)

    def run(*inputs: torch.Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            flat = call(*inputs)

            def base(alias: Alias) -> torch.Tensor:
                if alias.base == "input":
                    return inputs[int(alias.index)]
                return aten.constants[str(alias.index)] if alias.base == "const" else flat[alias.index]

            for target, value in zip(written, flat, strict=False):
                (inputs[target] if isinstance(target, int) else aten.constants[target]).copy_(value)
            pairs = zip(aten.outputs, flat[first:last], strict=True)
            return tuple(value if alias is None else seen_as(base(alias), alias) for alias, value in pairs)

    return run


def seen_as(base: torch.Tensor, alias: Alias) -> torch.Tensor:
    """Return `base` itself, or the view of it that `alias` describes."""
    if alias.offset == 0 and tuple(base.shape) == alias.shape and base.stride() == alias.strides:
        return base
    return base.as_strided(alias.shape, alias.strides, base.storage_offset() + alias.offset)
