"""The calls that something was compiled for: what `save` makes programs of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from firebrick.api import argument_tree
from firebrick.capture.marks import DYNAMIC

if TYPE_CHECKING:
    from firebrick._native import Frame

_MOST = 64


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments by name as a tree, and the [dtype and device, shape, strides] of its tensors, by their numbers there.

    problem: what can't be saved. varying: (tensor, dimension) of sizes that `mark_dynamic` names, or that differed.
    """

    tree: list[Any]
    tensors: list[list[Any]]
    problem: str = ""
    varying: frozenset[tuple[int, int]] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, signature: inspect.Signature, args: Any, kwargs: Any) -> tuple[Call, list[torch.Tensor]]:
        """Describe a call; returns its tensors too, each once."""
        numbers: dict[int, int] = {}
        tensors: list[torch.Tensor] = []

        def number(tensor: torch.Tensor) -> int:
            if id(tensor) not in numbers:
                numbers[id(tensor)] = len(tensors)
                tensors.append(tensor)
            return numbers[id(tensor)]

        try:
            tree = argument_tree.write(argument_tree.arguments(signature, args, kwargs), number)
            rows: dict[str, list[Any]] = {}  # many tensors of a call are alike: theirs is one row
            metas = [_meta(t) for t in tensors]
            marked = frozenset((i, d) for i, t in enumerate(tensors) for d in getattr(t, DYNAMIC, ()))
            return cls(tree, [rows.setdefault(repr(row), row) for row in metas], varying=marked), tensors
        except (argument_tree.NotPlain, TypeError) as error:
            return cls([], [], str(error)), []

    def examples(self) -> list[torch.Tensor]:
        """Tensors like its own."""
        return [_zeros(*row) for row in self.tensors]

    def among(self, others: Sequence[Call]) -> Call:
        """The call with the sizes as varying that differ in others of its kind."""
        varying, own = {*self.varying}, [(kind, len(shape)) for kind, shape, _ in self.tensors]
        kin = [o for o in others if o.tree == self.tree and [(t, len(s)) for t, s, _ in o.tensors] == own]
        for i in range(len(own)):
            sizes = enumerate(zip(*(o.tensors[i][1] for o in (self, *kin)), strict=True))
            varying.update((i, d) for d, each in sizes if len({*each}) > 1)
        return replace(self, varying=frozenset(varying))

    def show(self) -> str:
        """The arguments in short."""
        return ", ".join([f"{name}={self._show(value)}" for name, value in self.tree[1]])

    def _show(self, value: list[Any]) -> str:
        if value[0] == "tensor":
            kind, shape, strides = self.tensors[value[1]]
            dense = list(torch.empty(shape, device="meta").stride()) == strides
            return shown(kind, shape) + ("" if dense else f" with strides {strides}")
        if value[0] in ("list", "tuple"):
            return f"[{', '.join(map(self._show, value[1]))}]"
        if value[0] == "dict":
            return f"{{{', '.join([f'{k}: {self._show(v)}' for k, v in value[1]])}}}"
        return repr(value[-1]) if value[0] == "value" else str(value[2] if value[0] == "object" else value[-1])


def _zeros(kind: str, shape: list[int], strides: list[int]) -> torch.Tensor:
    """A tensor with gaps or repeated elements where the strides say so."""
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    dtype, _, device = kind.partition(" on ")
    return torch.zeros(span, dtype=getattr(torch, dtype), device=device or "cpu").as_strided(shape, strides)


def kind_of(tensor: torch.Tensor) -> str:
    """A tensor's dtype, and its device if that is no CPU."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return dtype if tensor.device.type == "cpu" else f"{dtype} on {tensor.device}"


def shown(kind: str, shape: list[Any]) -> str:
    """A kind of tensor and its shape."""
    return "".join([kind.partition(" ")[0], str(shape), *kind.partition(" ")[1:]])


def _meta(tensor: torch.Tensor) -> list[Any]:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):  # reading it may run the class's code
        raise argument_tree.NotPlain(f"a tensor of class {type(tensor).__name__}")
    odd = tensor.is_conj() or tensor.is_neg() or tensor.is_nested
    if tensor.layout != torch.strided or tensor.device.type not in ("cpu", "cuda") or odd:
        raise argument_tree.NotPlain(f"a tensor on {tensor.device.type} of layout {tensor.layout}")
    if not all(type(n) is int for n in (*tensor.shape, *tensor.stride())):
        raise argument_tree.NotPlain("a tensor of symbolic sizes")
    return [kind_of(tensor), list(tensor.shape), list(tensor.stride())]


def signature_of(original: Any) -> inspect.Signature:
    """The signature of a function, or of a module's forward."""
    return inspect.signature(original.forward if isinstance(original, nn.Module) else original)


class Calls:
    """Notes the calls of one function or module among the frames that are captured."""

    def __init__(self, original: Any) -> None:
        self.is_module = isinstance(original, nn.Module)
        self.owner = original if self.is_module else getattr(original, "__self__", None)
        function = original.forward if self.is_module else original
        self.codes = {getattr(function, "__code__", None)}
        if self.is_module:
            self.codes |= {nn.Module._wrapped_call_impl.__code__, nn.Module._call_impl.__code__}
        self.signature: inspect.Signature | None
        try:
            self.signature = signature_of(original)
        except (TypeError, ValueError):
            self.signature = None
        self.noted: list[Call] = []

    def watched(self, callback: Callable[[Frame], Any]) -> Callable[[Frame], Any]:
        """Return the callback, with calls noted."""

        def noting(frame: Frame) -> Any:
            if frame.code in self.codes and len(self.noted) < _MOST and self.signature is not None:
                with torch._C.DisableTorchFunction():  # modes of the program's see nothing of it
                    self._note(frame, self.signature)
            return callback(frame)

        return noting

    def _note(self, frame: Frame, signature: inspect.Signature) -> None:
        own = inspect.signature(frame.function, follow_wrapped=False)
        bound = inspect.BoundArguments(own, {n: frame.locals[n] for n in own.parameters if n in frame.locals})  # type: ignore[arg-type]
        args = bound.args
        if self.owner is not None:
            if not args or args[0] is not self.owner:
                return
            args = args[1:]
        call, _ = Call.of(signature, args, bound.kwargs)
        if call not in self.noted:
            self.noted.append(call)
