"""Guards that objects are apart: what captured code writes to, and keys that it looked for in vain."""

from __future__ import annotations

import bisect
import itertools
from typing import Any

import torch

from firebrick import _native
from firebrick.capture.breaks.catalogue import SkipFrame
from firebrick.capture.graph import GraphBuilder
from firebrick.capture.inference_mode import storage_of
from firebrick.capture.interpreter.frame_tracer import Tracer
from firebrick.capture.values.function import CellValue
from firebrick.capture.values.module import ModuleValue


def guard_aliases(tracer: Tracer) -> None:
    """What captured code changes must not be something else that it reads; raises SkipFrame: in this call it is."""
    if _choices_differ(tracer.graph):
        raise SkipFrame("a tensor that min() or max() gave is written to, or a view of it leaves", always=True)
    if tracer.graph.changes_inputs():
        written = [value for value in tracer.graph.changed() if value in tracer.graph.inputs]
        apart = tracer.graph.inputs[:] if tracer.graph.changed_blindly or not written else written[:]
        targets = _spans([value.obj for value in written])
        spans = _spans([value.obj for value in apart])
        if any(one[2] > two[0] for one, two in itertools.pairwise(spans)):
            raise SkipFrame("a tensor that shares memory with another is changed")
        for value in tracer.graph.inputs:
            if value in apart:
                continue
            if _meets(value.obj, targets):
                raise SkipFrame("a tensor that shares memory with another is changed")
            if _meets(value.obj, spans):  # two that are only read may
                tracer.guards.no_overlap([one.source for one in (*written, value) if one.source is not None])
            else:
                apart.append(value)
                for span in _spans([value.obj]):
                    bisect.insort(spans, span)
        tracer.guards.no_overlap([value.source for value in apart if value.source is not None])
    for kind in {key.python_type() for key, missed in tracer.keys.items() if missed}:
        keys = [key.source for key in tracer.keys if key.source is not None and key.python_type() is kind]
        tracer.guards.distinct(keys)
    for changed in tracer.effects.roots():
        kind = changed.python_type()
        others = [value for value in tracer.objects.values() if value.source and value.python_type() is kind]
        tracer.guards.distinct([v.source for v in others if v.source and not isinstance(v, (CellValue, ModuleValue))])


def _choices_differ(graph: GraphBuilder) -> bool:
    """Whether it would be seen that a chosen tensor has memory of its own: by a write, or a view that leaves."""
    for value in graph.chosen:
        written = {storage_of(fake) for fake in graph.written[value.writes :]}
        for one in (value, *value.sides):
            if storage_of(one.fake) in written or one.data_version is not None:
                return True
        if any(storage_of(one.fake) == storage_of(value.fake) for one in graph.outputs):
            return True
    return False


def _spans(tensors: list[Any]) -> list[tuple[int, int, int]]:
    """The memory of tensors in order: first and last address, and the storage's last."""
    return sorted(_native.tensor_span(t) for t in tensors if t.layout is torch.strided and t.numel())


def _meets(tensor: Any, spans: list[tuple[int, int, int]]) -> bool:
    """Whether a tensor's memory is some of these, none of which overlap."""
    for span in _spans([tensor]):
        place = bisect.bisect(spans, span)
        return any(
            one[2] > two[0] for one, two in itertools.pairwise([*spans[:place][-1:], span, *spans[place : place + 1]])
        )
    return False
