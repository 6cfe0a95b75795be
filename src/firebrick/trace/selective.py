"""Selective checkpoints in a trace: policies say which results of the forward the second run of a function takes.

The second run is traced in the backward. A result that a policy saves stands in it for the first run's, so that the
partition finds it among what the backward needs; the others are computed again there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import SAC_IGNORED_OPS, CheckpointPolicy, SelectiveCheckpointContext

from firebrick.errors import LoweringError, RefusedBackward
from firebrick.trace.tape import Draws
from firebrick.trace.tracer import Tracer

MUST_SAVE = "must save"
"""In the metadata of a node: no partition computes it again."""


@dataclass(frozen=True, slots=True)
class _Result:
    """A tensor that is saved, and how often its memory had been written to."""

    tensor: torch.Tensor
    version: int


class _Run(TorchDispatchMode):
    """The first run of a checkpoint's function, which notes of each call what is saved, and how many random numbers
    were drawn by then; or the second, which takes that in the same order."""

    def __init__(self, selection: Selection, again: bool) -> None:
        super().__init__()
        self.selection, self.again, self.at = selection, again, 0

    _should_skip_dynamo = classmethod(lambda cls: False)  # True would import torch._dynamo at the first call

    def __enter__(self) -> Any:
        """The second run may be one of several."""
        self.at = 0
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """One call below autograd."""
        if func in SAC_IGNORED_OPS:
            return func(*args, **(kwargs or {}))
        if not self.again:
            result = func(*args, **(kwargs or {}))
            self.selection.note(func, args, kwargs or {}, result)
            return result
        self.at += 1
        return self.selection.take(self.at - 1, func, args, kwargs or {})


class Selection:
    """What a checkpoint's policy saves in one trace; `must_save` collects the records that it insists on."""

    def __init__(self, policy: Callable[..., Any], tracer: Tracer, draws: Draws | None, must_save: list[Any]) -> None:
        self.policy, self.tracer, self.draws, self.must_save = policy, tracer, draws, must_save
        self._calls: list[tuple[Any, Any, int]] = []

    def note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """A call of the first run."""
        context = SelectiveCheckpointContext(is_recompute=False)
        context.op_output = result
        policy = self.policy(context, func, *args, **kwargs)
        must = policy is True or policy is CheckpointPolicy.MUST_SAVE
        entry: Any = _AGAIN
        if (must or policy is CheckpointPolicy.PREFER_SAVE) and not func._schema.is_mutable:  # writes are needed twice
            entry = tree_map_only(torch.Tensor, partial(self._saved, must), result)
        self._calls.append((func, entry, 0 if self.draws is None else self.draws.at))

    def _saved(self, must: bool, tensor: torch.Tensor) -> _Result:
        storage = self.tracer.value_of(tensor).storage
        if must:
            self.must_save.append(storage.record)
        return _Result(tensor, storage.version)

    def take(self, at: int, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call of the second run: what is saved, or the call itself."""
        if at == len(self._calls) or self._calls[at][0] is not func:
            raise LoweringError(f"a checkpoint calls {func} only when it is computed again")
        _, entry, drawn = self._calls[at]
        if entry is _AGAIN:
            return func(*args, **kwargs)
        if self.draws is not None:
            self.draws.at = drawn
        return tree_map_only(_Result, self._loaded, entry)

    def _loaded(self, saved: _Result) -> torch.Tensor:
        if self.tracer.value_of(saved.tensor).storage.version != saved.version:
            raise RefusedBackward("what a checkpoint's policy saves is written to")
        return torch.ops.aten.detach.default(saved.tensor)


_AGAIN = object()
"""In the place of a result: it is computed again."""


def selective_contexts(
    context_fn: Callable[[], Any], tracer: Tracer, draws: Draws | None, must_save: list[Any]
) -> tuple[_Run, _Run]:
    """The contexts of both runs, with the policy of those of `context_fn`; raises LoweringError: there is none."""
    policy = getattr(context_fn()[0], "policy_fn", None)
    if policy is None:
        raise LoweringError("the contexts of a checkpoint are not those of create_selective_checkpoint_contexts")
    selection = Selection(policy, tracer, draws, must_save)
    return _Run(selection, again=False), _Run(selection, again=True)
