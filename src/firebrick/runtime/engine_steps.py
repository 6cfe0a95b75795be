"""The steps of a captured backward: calls that a graph can hold, and what runs as plain Python between graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


class _Call:
    """A step. stable: its name tells what it does in every process."""

    def __init__(self, name: str, fn: Callable[..., Any], stable: bool = True) -> None:
        self.fn, self.stable = fn, stable
        self.__name__, self.__qualname__, self.__module__ = name, name, __name__

    def __call__(self, *args: Any) -> Any:
        """Run it on fake tensors or real ones; hooks among the arguments are the call's own."""
        return self.fn(*args)


class EngineCall(_Call):
    """A step without side effects."""


class PlainCall(_Call):
    """A step that runs as plain Python, in the engine's order: a hook, a function of the user's, an AccumulateGrad."""


class _Context:
    """A node of a custom Function whose saved tensors the engine has taken out."""

    def __init__(self, ctx: Any, saved: Sequence[torch.Tensor]) -> None:
        self.__dict__.update(_ctx=ctx, saved_tensors=tuple(saved), saved_variables=tuple(saved))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ctx, name, value)


def _call_function(ctx: Any, saved: Sequence[torch.Tensor], inputs: Sequence[Any], wanted: int) -> list[Any]:
    """The gradients that a custom Function gives, with eager's error for a wrong number."""
    cls, base = ctx._forward_cls, torch.autograd.Function
    backward = cls.vjp if cls.vjp is not base.vjp else cls.backward
    result = backward(_Context(ctx, saved), *inputs)
    row = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(row) < wanted or any(extra is not None for extra in row[wanted:]):
        counts = f"(expected {wanted}, got {len(row)})"
        raise RuntimeError(f"function {type(ctx).__name__} returned an incorrect number of gradients {counts}")
    return row[:wanted]


def _changed(hook: Any, old: Any, new: Any) -> Any:
    """What a hook makes of a gradient, with eager's errors."""
    if new is None:
        return old
    name = getattr(hook, "__name__", "<unknown>")
    if not isinstance(new, torch.Tensor):
        raise TypeError(f"hook '{name}' has changed the type of value (was {type(old)}, got {type(new)})")
    if old is not None and (old.shape, old.dtype, old.device) != (new.shape, new.dtype, new.device):
        raise RuntimeError(f"hook '{name}' has changed the size, type or device of value")
    return new


def _changed_all(hook: Any, old: Sequence[Any], new: Any) -> list[Any]:
    if new is None:
        return list(old)
    row = [new] if isinstance(new, torch.Tensor) else list(new)
    if len(row) != len(old):
        raise RuntimeError(f"hook '{getattr(hook, '__name__', hook)}' has returned an incorrect number of values")
    return [_changed(hook, *pair) for pair in zip(old, row, strict=True)]


def _after_accumulation(hook: Any, leaf: torch.Tensor) -> None:
    if hook(leaf) is not None:
        raise RuntimeError("Tensor post accumulate grad hooks should return None.")


TENSOR_HOOK = PlainCall("tensor_hook", lambda hook, grad: _changed(hook, grad, hook(grad)))
BEFORE_NODE = PlainCall("before_node", lambda hook, row: _changed_all(hook, row, hook(tuple(row))))
AFTER_NODE = PlainCall("after_node", lambda hook, out, row: _changed_all(hook, out, hook(tuple(out), tuple(row))))
AFTER_ACCUMULATION = PlainCall("after_accumulation", _after_accumulation)
FUNCTION = PlainCall("function", _call_function)
ACCUMULATE = PlainCall("accumulate", lambda leaf, grad: None)  # whoever runs the program knows who else holds `grad`


def layout_key(value: Any) -> Any:
    """What a graph is compiled for."""
    if not isinstance(value, torch.Tensor):
        return None
    return value.dtype, value.shape, value.stride(), value.device, torch._C._dispatch_keys(value).raw_repr()


def accumulate(leaf: torch.Tensor, grad: torch.Tensor | None, holders: Mapping[int, int]) -> None:
    """What an AccumulateGrad does, but its hooks: the gradient itself where nobody else holds it, or added."""
    if grad is None:
        return
    old = leaf.grad
    if old is not None:
        leaf.grad = old.add_(grad) if old.layout == torch.strided and grad.layout == torch.strided else old + grad
        return
    storage, dense = grad.untyped_storage(), torch.empty_like(leaf, device="meta").stride()
    whole = storage.nbytes() == grad.nbytes and holders[storage.data_ptr()] <= 1
    if grad.is_neg() or grad.is_conj() or not whole or grad.stride() != dense:
        grad = torch.empty_like(leaf, requires_grad=False).copy_(grad)
    leaf.grad = grad


def obstacle(create_graph: bool, tensors: Sequence[Any]) -> str:
    """Why a backward can't be compiled, as far as that is seen before it begins."""
    rows = (
        (create_graph, "its gradients have gradients (create_graph=True)"),
        (torch.is_anomaly_enabled(), "anomalies are looked for"),
        (any(torch.is_autocast_enabled(t.device.type) for t in tensors), "it runs inside of autocast"),
        (torch._C._functorch.peek_interpreter_stack() is not None, "a transform of torch.func is active"),
        (not all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors), "a tensor is not plain"),
    )
    return next((cause for holds, cause in rows if holds), "")
