"""Work of the compiler's own, apart from what a program has switched on for its own calls of torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_C: Any = torch._C
_functorch = _C._functorch


def has_watchers() -> bool:
    """Whether a mode or a transform sees this thread's calls of torch; legacy batches are told by their tensors."""
    return bool(
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or _functorch.peek_interpreter_stack() is not None
    )


@contextmanager
def unwatched() -> Iterator[None]:
    """Have no modes and no transforms in the block: nothing sees, changes or forbids what a compile or a kernel calls.

    A backward is compiled, measured and run wherever the program asks for gradients: under a default device, within
    `torch.vmap`, where random numbers and leaves are refused, in a trace. Autocast, and whether gradients are recorded,
    are facts of a graph, and stay.
    """
    functions = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    layers, batches, traced = [], torch._C._vmapmode_increment_nesting(), torch._C._get_tracing_state()
    for _ in range(batches):
        torch._C._vmapmode_decrement_nesting()
    while _functorch.peek_interpreter_stack() is not None:
        layers.append(_functorch.pop_dynamic_layer_stack())
    if traced is not None:
        _C._set_tracing_state(None)
    try:
        with _disable_current_modes():
            yield
    finally:
        if traced is not None:
            _C._set_tracing_state(traced)
        for layer in reversed(layers):
            _functorch.push_dynamic_layer_stack(layer)
        for _ in range(batches - 1):
            torch._C._vmapmode_increment_nesting()
        for mode in reversed(functions):
            torch._C._push_on_torch_function_stack(mode)


@contextmanager
def as_written() -> Iterator[None]:
    """Have no autocast in the block either, and record nothing: calls on constants, and those that are timed, do what
    they say. Where a graph runs under autocast, its casts are calls of their own."""
    with ExitStack() as stack:
        stack.enter_context(unwatched())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                torch.set_autocast_enabled(device, False)
                stack.callback(torch.set_autocast_enabled, device, True)
        yield
