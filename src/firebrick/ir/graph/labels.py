"""What the steps of a compiled graph are called where a person sees them: in a profiler's trace, in reports."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from firebrick.errors import UserLocation
from firebrick.ir.graph.calls import VIEWS

_TORCH = str(Path(torch.__file__).parent)
_MOST_NAMES = 4
_SILENT = VIEWS | {"getitem", "getattr", "size", "to", "float", "reshape", "slice", "dropout", "split", "chunk"}
"""Ops that give a kernel no name while it does others."""


def op_name(node: fx.Node) -> str:
    """Short name of a node's call: `add` for `operator.add`, `torch.add` and `x.add`; a leaf's own name."""
    if not node.op.startswith("call"):
        return node.name
    target: Any = node.target
    if isinstance(target, str):
        return target.rpartition(".")[2].strip("_")
    name = getattr(target, "_opname", None) or getattr(target, "__name__", None) or str(target)
    return "getitem" if target is operator.getitem else str(name).strip("_")


def is_silent(node: fx.Node) -> bool:
    """Whether a node looks at, picks or passes on values rather than computing some."""
    return op_name(node) in _SILENT


def user_place(node: fx.Node) -> UserLocation | None:
    """The innermost place of a node outside of torch's own files."""
    stack = node.meta.get("stack") or ()
    return next((place for place in reversed(stack) if not place.file.startswith(_TORCH)), stack[-1] if stack else None)


def step_label(nodes: Sequence[fx.Node], library: str = "") -> str:
    """Name of a step that computes these nodes of the captured graph, and the place of the last one.

    `fused_add_layer_norm model.py:12`, or `linear_gelu mkldnn::_linear_pointwise model.py:20` for a library call.
    """
    loud = [n for n in nodes if not is_silent(n)] or nodes
    names = list(dict.fromkeys(map(op_name, loud)))
    if len(names) > _MOST_NAMES:
        names = [*names[: _MOST_NAMES - 1], f"{len(names) - _MOST_NAMES + 1}_more"]
    text = "_".join(names) or "copy"
    parts = [text if library or len(names) < 2 else f"fused_{text}", *([library] if library else [])]
    place = user_place(nodes[-1]) if nodes else None
    if place is not None:
        parts.append(f"{'/'.join(Path(place.file).parts[-2:])}:{place.line}")
    return " ".join(parts)


def library_of(step: Any) -> str:
    """The library op of a step of a schedule; "" if a generated kernel does it."""
    return getattr(step, "op", "")


def step_labels(graph: fx.Graph, origins: Iterable[tuple[Sequence[int], str]]) -> list[str]:
    """A label for each (numbers of nodes, library op or "")."""
    nodes = list(graph.nodes)
    return [step_label([nodes[i] for i in sorted(numbers)], library) for numbers, library in origins]
