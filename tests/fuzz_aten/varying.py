"""Random programs of tensor operations, each called with three sizes of its arguments and compared with eager.

    python -m tests.fuzz_aten --varying [--count 100] [--seed 0]

A dimension of two and more grows by 1, then by 5, wherever it is; in every second program one of size 1 is 1, 2 and
1 again at the least, so that what was broadcast is not. Calls that eager refuses, since a line has a size in it, are left
out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from tests.fuzz_aten.check import difference, eager
from tests.ops.cases import copies

import firebrick
from firebrick.errors import LoweringError

if TYPE_CHECKING:
    from tests.fuzz_aten.programs import Program

GROWTH = (0, 1, 5)


def grown(tensor: torch.Tensor, by: int) -> torch.Tensor:
    """A tensor whose dimensions of two and more are larger, with its elements again and again, in the same order."""
    if not by:
        return tensor
    order = sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))
    for d, n in enumerate(tensor.shape):
        if n > 1:
            tensor = tensor.index_select(d, torch.arange(n + by) % n)
    turned = tensor.resolve_neg().permute(order).contiguous()
    return turned.permute([order.index(d) for d in range(len(order))])


def arguments_at(program: Program, step: int) -> list[torch.Tensor]:
    """The arguments of one call. Those of every second seed have other numbers of dimensions of 1 too."""
    by, order = GROWTH[step], (1, 2, 1)
    found = [grown(a, by) for a in program.arguments]
    if program.seed % 2 == 0:
        return found
    ones = [[d for d, n in enumerate(a.shape) if n == 1] for a in program.arguments]
    for k, dims in enumerate(ones):
        for d in dims[: order[step] - 1]:
            found[k] = found[k].index_select(d, torch.zeros(2, dtype=torch.int64))
    return found


def check(program: Program) -> str:
    """What differs, or what was raised."""
    compiled = firebrick.compile(program.function(), options={"cache": False})
    for step, by in enumerate(GROWTH):
        one = replace(program, arguments=arguments_at(program, step))
        try:
            eager(one)
        except (RuntimeError, NameError, KeyError, IndexError, ValueError):
            continue
        arguments = copies(one.arguments)
        try:
            with torch.no_grad():
                results = list(compiled(*arguments))
        except Exception as error:
            if isinstance(error.__cause__ or error, LoweringError):
                return f"left: {error.__cause__ or error}"[:300]
            return f"failed: {type(error).__name__}: {error}"[:400]
        what = difference(one, (results, arguments))
        if what:
            return f"wrong: grown by {by}: {what}"
    return ""


def check_all(programs: list[Program]) -> list[tuple[Program, str, str]]:
    """(program, kind, what) for each that is not the same, as `check.check` has it."""
    found = []
    for program in programs:
        kind, _, what = check(program).partition(": ")
        firebrick.reset()
        if kind:
            found.append((program, kind, what))
    return found


def shrink(program: Program, kind: str) -> Program:
    """The program without lines and results that it doesn't need to differ."""
    candidates = [replace(program, results=program.results[k:]) for k in reversed(range(1, len(program.results)))]
    for fewer in candidates:
        if check_all([fewer])[:1] and check_all([fewer])[0][1] == kind:
            program = fewer
            break
    for k in reversed(range(len(program.lines))):
        fewer = replace(program, lines=[*program.lines[:k], *program.lines[k + 1 :]])
        found = check_all([fewer])
        if found and found[0][1] == kind:
            program = fewer
    return program
