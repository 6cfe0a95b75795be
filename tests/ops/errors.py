"""Calls that eager PyTorch refuses: the error inputs of torch's operator database, and what they raise when compiled."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tests.ops.cases import Case
from torch.utils import _pytree as pytree

import firebrick

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KINDS = ("same", "other", "silent", "accepted")
NOTHING = "nothing"


@dataclass
class Errors:
    """What became of error inputs, each as [case, eager's error, ours].

    same: the type that eager raises. other: another type. silent: none. accepted: eager raises nothing on this
    device, and neither may we.
    """

    same: list[tuple[str, str, str]] = field(default_factory=list)
    other: list[tuple[str, str, str]] = field(default_factory=list)
    silent: list[tuple[str, str, str]] = field(default_factory=list)
    accepted: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, other: Errors) -> None:
        """Take what another one holds."""
        for kind in KINDS:
            getattr(self, kind).extend(getattr(other, kind))


def error_cases(name: str, op: Any) -> Iterator[Case]:
    """The error inputs of an operator, made afresh."""
    if op.error_inputs_func is None:
        return
    torch.manual_seed(0)
    try:
        inputs = list(op.error_inputs(torch.device("cpu")))
    except AttributeError:  # a few take the device as text
        inputs = list(op.error_inputs_func(op, "cpu"))
    for k, given in enumerate(inputs):
        sample = given.sample_input
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        yield Case(f"{name} {k}", op.op, tuple(leaves), spec)


def spoiled_cases(name: str, op: Any, samples: int) -> Iterator[Case]:
    """The first samples of an operator, each with one argument replaced by one that it may refuse."""
    for dtype in (torch.float32, torch.int64, torch.bool):
        if dtype not in op.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        for k, sample in zip(range(samples), op.sample_inputs("cpu", dtype), strict=False):
            leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
            for place, leaf in enumerate(leaves):
                for how, other in _spoiled(leaf, place):
                    changed = (*leaves[:place], other, *leaves[place + 1 :])
                    yield Case(f"{name} {k} {how}", op.op, changed, spec)
                    if op.inplace_variant is not None and place == 0:
                        yield Case(f"{name}_ {k} {how}", op.inplace_variant, changed, spec)


def _spoiled(leaf: Any, place: int) -> Iterator[tuple[str, Any]]:
    if isinstance(leaf, bool) or leaf is None:
        return
    if isinstance(leaf, int):
        yield from ((f"number {place} {n}", n) for n in (6, -7, leaf + 1, -leaf, (leaf, leaf), leaf + 0.5))
    elif isinstance(leaf, float):
        yield from ((f"number {place} {n}", n) for n in (-leaf, leaf + 10, 1j))
    elif isinstance(leaf, torch.dtype):
        yield from ((f"dtype {place} {t}", t) for t in (torch.int64, torch.bool, torch.complex64) if t != leaf)
    elif isinstance(leaf, str):
        yield f"word {place}", leaf + "x"
    elif isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
        plain = leaf.detach()
        for other in (torch.float64, torch.int64, torch.bool, torch.complex64, torch.int8):
            if other != leaf.dtype:
                yield f"dtype {place} {other}", plain.to(other)
        yield f"zeros {place}", torch.zeros_like(plain)
        yield f"data {place}", plain.new_full((), 100).expand_as(plain).clone()
        yield f"negative {place}", -1 - plain.abs() if plain.dtype != torch.bool else ~plain
        yield f"rank {place} more", plain[None].clone()
        if plain.dim():
            yield f"rank {place} less", plain[0].clone() if len(plain) else plain.sum(0)
            yield f"rows {place} none", plain[:0].clone()
            yield f"columns {place} none", plain[..., :0].clone()
            yield f"columns {place} more", torch.cat((plain, plain[..., :1]), -1)


def raised_by(function: Any, case: Case, strict: bool = False) -> tuple[str, str]:
    """The type of the error that a call of a case raises, and its text."""
    args, kwargs = pytree.tree_unflatten([*case.leaves], case.spec)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error)
    return NOTHING, ""


def check_errors(name: str, cases: Iterator[Case]) -> Errors:
    """Call each case eagerly and compiled."""
    outcome = Errors()
    for case in cases:
        wanted, text = raised_by(case.function, case)
        # A function of the user's around the call: what is refused is met while a graph is captured.
        compiled = firebrick.compile(lambda *args, call=case.function, **kwargs: call(*args, **kwargs), options={"strict": False, "cache": False})
        found, ours = raised_by(compiled, case)
        firebrick.reset()
        row = (case.describe(), f"{wanted}: {text}"[:300], f"{found}: {ours}"[:300])
        if wanted == found:
            (outcome.accepted if wanted == NOTHING else outcome.same).append(row)
        else:
            (outcome.silent if found == NOTHING else outcome.other).append(row)
    return outcome


