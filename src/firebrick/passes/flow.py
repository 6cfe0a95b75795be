"""Which module's output goes where: one run of a model, watched, so that swaps know what they may fold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from firebrick.ir.graph.calls import tensors_in
from firebrick.passes.modules import Sample, call_with


@dataclass(slots=True)
class Flow:
    """What one run did.

    inputs, outputs: module name -> identity of its first input and of its output, one entry a call.
    uses: identity of a tensor -> names of the modules whose own code read it; "" where no watched module did.
    """

    inputs: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    outputs: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    uses: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    _kept: list[Any] = field(default_factory=list)

    def only_users(self, name: str) -> list[str] | None:
        """Names of the modules that read the output of `name`; None if anything else reads it or it runs twice."""
        if len(self.outputs[name]) != 1:
            return None
        users = self.uses[self.outputs[name][0]]
        return None if not users or "" in users else list(dict.fromkeys(users))

    def once(self, name: str) -> bool:
        """Whether the module ran exactly once."""
        return len(self.outputs[name]) == 1


class _Uses(TorchFunctionMode):
    def __init__(self, flow: Flow, inside: list[str]) -> None:
        super().__init__()
        self.flow, self.inside = flow, inside

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in _LOOKS:
            for value in tensors_in((args, kwargs or {})):
                self.flow.uses[id(value)].append(self.inside[-1] if self.inside else "")
        result = func(*args, **(kwargs or {}))
        self.flow._kept.append(result)  # keeps identities from being used again
        return result


_LOOKS = frozenset("__get__ size dim stride numel is_contiguous is_floating_point __len__".split())
"""Calls that read properties of a tensor (shape, dtype), not its elements."""


def watch(model: nn.Module, sample: Sample, watched: Callable[[nn.Module], bool]) -> Flow:
    """Run `model` on `sample` and record where the outputs of the watched modules go."""
    flow = Flow()
    inside: list[str] = []

    def enter(name: str, module: nn.Module, args: Any) -> None:
        flow.inputs[name].append(id(args[0]) if args else 0)
        flow._kept.append(args)
        inside.append(name)

    def leave(name: str, module: nn.Module, args: Any, output: Any) -> None:
        inside.pop()
        flow.outputs[name].append(id(output))
        flow._kept.append(output)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if watched(module):
                hooks.enter_context(module.register_forward_pre_hook(partial(enter, name)))
                hooks.enter_context(module.register_forward_hook(partial(leave, name)))
        with _Uses(flow, inside):
            result = call_with(model, sample)
    for value in tensors_in(dict(result) if hasattr(result, "items") else result):
        flow.uses[id(value)].append("")
    flow._kept.append(result)
    return flow
