"""Memory-efficient attention with dropout whose gradients are wanted.

torch's forward has the seed and the offset of what it draws on the CPU, or on the GPU while a stream is captured, and
its backward looks where a forward of its own time would have them. Here one may run step by step while the other is a
recorded graph. So these operators, of torch's schemas, have both on the GPU; what the host knows of a number goes with
its tensor, so that a backward that runs step by step need not wait for the GPU.
"""

from __future__ import annotations

from typing import Any

import torch

_forward = torch.ops.aten._scaled_dot_product_efficient_attention.default
_backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
_NUMBERS = [i for i, a in enumerate(_backward._schema.arguments) if a.name in ("philox_seed", "philox_offset")]


def _attend(query: torch.Tensor, *args: Any, **named: Any) -> tuple[torch.Tensor, ...]:
    out, sums, *numbers = _forward(query, *args, **named)
    return out, sums, *[n if n.device == query.device else moved(n, query.device) for n in numbers]


def moved(number: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The number on a GPU, without a copy that waits."""
    on_device: Any = torch.full((), int(number), dtype=number.dtype, device=device)
    on_device.on_host = number
    return on_device


def _derive(*args: Any, **named: Any) -> tuple[torch.Tensor, ...]:
    with torch.cuda.device_of(args[1]):
        steps = not torch.cuda.is_current_stream_capturing()
        seeds = {i: getattr(args[i], "on_host", None) for i in _NUMBERS if steps}
        inputs = [args[i].cpu() if i in seeds and seeds[i] is None else seeds.get(i, a) for i, a in enumerate(args)]
        return _backward(*inputs, **named)  # type: ignore[no-any-return]


def _ours(op: Any, function: Any, *tags: torch.Tag) -> Any:
    name, _, rest = str(op._schema).replace("aten", "firebrick", 1).partition("(")
    torch.library.define(name, f"({rest}", tags=tags)
    for key, kernel in (("CompositeExplicitAutograd", function), ("Meta", op)):
        torch.library.impl(name, key, kernel)
    return getattr(torch.ops.firebrick, op._opname).default


SEEDED = {
    _forward: _ours(_forward, _attend, torch.Tag.nondeterministic_seeded),
    _backward: _ours(_backward, _derive),
}
"""torch's operator -> ours, for calls with dropout."""
