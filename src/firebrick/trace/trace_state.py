"""What a trace depends on besides its graph, kept so that a later trace gives the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from firebrick.fakes.mode import new_fake_mode
from firebrick.trace.tracer import fake_like

_DEVICES = ("cpu", "cuda")


class TracingState:
    """The grad and inference mode, autocast and default dtype of the thread that makes it."""

    def __init__(self) -> None:
        self.grad, self.dtype = torch.is_grad_enabled(), torch.get_default_dtype()
        self.inference = torch.is_inference_mode_enabled()
        self.autocast = {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Have this state in the block: a backward is traced when nobody remembers what the forward ran under."""
        now = TracingState()
        with ExitStack() as stack:
            if now.inference != self.inference:
                stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for device, (enabled, dtype) in self.autocast.items():
                if now.autocast[device] != (enabled, dtype):
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            torch.set_default_dtype(self.dtype)
            stack.callback(torch.set_default_dtype, now.dtype)
            yield


def fakes_of(tensors: Sequence[Any]) -> list[Any]:
    """Return fake tensors with the metadata of `tensors`."""
    mode = new_fake_mode()
    return [fake_like(mode, t, grad=True) if isinstance(t, torch.Tensor) else t for t in tensors]
