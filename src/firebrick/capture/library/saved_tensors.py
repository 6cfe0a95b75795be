"""Hooks on saved tensors that captured code sets (`torch.autograd.graph.saved_tensors_hooks`).

Eager mode calls them with each tensor that a call saves for its backward. What they do with it is captured in graphs of
their own, and a node before the call sets hooks that run these: traces have them in forward and backward then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.guards.torch_state import Packing, Switch
from firebrick.capture.library.known_callables import TRANSPARENT_MODULES, handles
from firebrick.capture.library.transforms import Sub, value_like
from firebrick.capture.values.base import NotConstant
from firebrick.capture.values.constant import NONE
from firebrick.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from torch import fx

    from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value
    from firebrick.ir.graph.nested import Body

TRANSPARENT_MODULES.add("torch.autograd.graph")
_END = Switch("leave_saved_tensors_hooks", None, "")


class _Sub(Sub):
    """Captures a hook, which is given the very tensors that the graph has, or others."""

    def argument(self, tensor: torch.Tensor) -> TensorValue:
        """One that stands for what is handed in, unless the graph has that already."""
        with self.graph.mode, torch.enable_grad():
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            value = self.graph.argument(fake.requires_grad_().view_as(fake) if tensor.requires_grad else fake)
        known = self.outer.known(tensor)
        return known if known is not None and known.node.graph is self.outer.graph else value


class Hooks:
    """A pair of them. saved: what the call that was run last saves; last: what was packed last, and how it unpacks."""

    def __init__(self, pack: Value, unpack: Value) -> None:
        self.pack, self.unpack = pack, unpack
        self.saved: list[torch.Tensor] = []
        self.last: tuple[Any, str, list[fx.Node]] | None = None

    def noting(self) -> saved_tensors_hooks:
        """Note what a call saves."""
        self.saved = []
        return saved_tensors_hooks(lambda tensor: (self.saved.append(tensor), tensor)[1], lambda tensor: tensor)

    def begin(self, interp: Interpreter) -> bool:
        """Set them for the call that the graph gets next, if it saves tensors; raises Break: no graph does the same."""
        packs, unpacks = [], []
        for tensor in self.saved:
            if type(tensor) is not FakeTensor or interp.tracer.graph.inference.seen:
                raise Break(
                    "unsupported-call", "hooks on saved tensors meet inference mode or tensors of other classes"
                )
            packs.append(_captured(interp, self.pack, tensor, alone=interp.tracer.graph.outer is not None))
            unpacks.append(self._unpacking(interp, packs[-1][2]))
        if packs:
            bodies, nodes, _ = zip(*packs, *unpacks, strict=True)
            target = Packing(bodies, [(tensor.dtype, tensor.ndim) for tensor in self.saved])
            interp.tracer.graph.statement(interp, target, ([*nodes],))
        return bool(packs)

    def end(self, interp: Interpreter) -> None:
        """Take them away behind the call."""
        interp.tracer.graph.statement(interp, _END, ())

    def _unpacking(self, interp: Interpreter, packed: Any) -> tuple[Body, list[fx.Node], Any]:
        body, nodes, result = _captured(interp, self.unpack, packed, alone=True)
        if not isinstance(result, torch.Tensor):
            raise Break("unsupported-call", f"a hook that unpacks saved tensors returns a {type(result).__name__}")
        self.last = packed, f"{body.graph.graph}", nodes
        return body, nodes, result

    def check(self, interp: Interpreter) -> None:
        """Look at the graph's end whether unpacking is what it was; raises Break: it reads what has changed."""
        if (last := self.last) and self._unpacking(interp, last[0]) and self.last[1:] != last[1:]:
            raise Break("unsupported-call", "what a hook that unpacks saved tensors reads changes before the backward")


def _captured(interp: Interpreter, hook: Value, given: Any, *, alone: bool) -> tuple[Body, list[fx.Node], Any]:
    """What a hook does: its body, what this reads from outside, and what is like the result; `alone`: and no more."""
    sub, effects = _Sub(interp), interp.tracer.effects.count
    try:
        body, results = sub.capture(hook, [value_like(interp, sub, given)], {}, grad=False)
    except NotConstant as error:
        raise Break("unsupported-call", f"a hook on saved tensors returns a {error}") from error
    if sub.graph.changes_arguments() or (alone and interp.tracer.effects.count != effects):
        raise Break("unsupported-call", "a hook on saved tensors that does more than to return what it makes")
    leaves = [results[leaf].fake if isinstance(leaf, int) else leaf[0] for leaf in body.leaves]
    return body, [*sub.graph.lifted], pytree.tree_unflatten(leaves, body.spec)


@handles(torch._C._autograd._push_saved_tensors_default_hooks)  # type: ignore[attr-defined]
def _push(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    tracer = interp.tracer
    with interp.raising(RuntimeError), Hooks(*args).noting():  # raises where hooks are disabled
        tracer.hooks.append(Hooks(*args))
    tracer.saving = [*tracer.saving, tracer.hooks[-1]]
    tracer.effects.outside += 1  # a call of a module that does so is not replayed
    return NONE


@handles(torch._C._autograd._pop_saved_tensors_default_hooks)  # type: ignore[attr-defined]
def _pop(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not interp.tracer.saving:
        raise Break("unsupported-call", "hooks on saved tensors that were set elsewhere are taken away")
    interp.tracer.saving = interp.tracer.saving[:-1]
    return NONE
