"""Guards that objects are apart: what captured code writes to, and keys that it looked for in vain."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from firebrick import _native
from firebrick.capture.breaks.catalogue import SkipFrame
from firebrick.capture.values.function import CellValue
from firebrick.capture.values.module import ModuleValue

if TYPE_CHECKING:
    from firebrick.capture.interpreter.frame_tracer import Tracer
    from firebrick.capture.values.base import Value


def guard_aliases(tracer: Tracer) -> None:
    """What captured code changes must not be something else that it reads.

    Raises:
        SkipFrame: in this call it is.
    """
    if tracer.graph.changes_inputs():
        written = [value for value in tracer.graph.changed() if value in tracer.graph.inputs]
        apart = tracer.graph.inputs[:] if tracer.graph.changed_blindly or not written else written[:]
        if _overlap([value.obj for value in apart]):
            raise SkipFrame("a tensor that shares memory with another is changed")
        for value in tracer.graph.inputs:
            if value in apart:
                continue
            if _overlap([*(one.obj for one in written), value.obj]):
                raise SkipFrame("a tensor that shares memory with another is changed")
            if _overlap([*(one.obj for one in apart), value.obj]):  # two that are only read may
                tracer.guards.no_overlap([one.source for one in (*written, value) if one.source is not None])
            else:
                apart.append(value)
        tracer.guards.no_overlap([value.source for value in apart if value.source is not None])
    for kind in {key.python_type() for key, missed in tracer.keys.items() if missed}:
        keys = [key.source for key in tracer.keys if key.source is not None and key.python_type() is kind]
        tracer.guards.distinct(keys)
    for changed in tracer.effects.roots():
        kind = changed.python_type()
        others = [value.source for value in tracer.objects.values() if value.source and _is_kind(value, kind)]
        tracer.guards.distinct(others)


def _is_kind(value: Value, kind: type) -> bool:
    return value.python_type() is kind and not isinstance(value, (CellValue, ModuleValue))


def _overlap(tensors: list[Any]) -> bool:
    spans = sorted(
        _native.tensor_span(tensor) for tensor in tensors if tensor.layout is torch.strided and tensor.numel()
    )
    return any(one[2] > two[0] for one, two in itertools.pairwise(spans))
