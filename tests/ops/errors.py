"""Calls that eager PyTorch refuses: the error inputs of torch's operator database, and what they raise when compiled.

    python -m tests.ops --errors [--spoiled N] [--only NAME...] [--json FILE] [--markdown bench/OPS.md]

With `--spoiled`, also the first N samples of each operator with one argument replaced by another: of another dtype,
rank or size, a number beyond the rank, values that an op may not take.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tests.ops.cases import Case, copies, operators
from torch.utils import _pytree as pytree

import firebrick

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

KINDS = ("same", "other", "silent", "accepted")
NOTHING = "nothing"
TITLE = "## Errors"
CRASHES = frozenset(
    {
        *("lu_unpack", "lu_solve", "linalg.lu_solve", "_segment_reduce.offsets", "_segment_reduce.lengths"),
        *("_batch_norm_with_update", "_native_batch_norm_legit", "native_batch_norm"),
    }
)
"""Operators whose eager kernels read beyond their arguments where these don't fit each other: they are not spoiled."""


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

    def sums(self) -> str:
        """Its numbers in a line."""
        counts = {kind: len(getattr(self, kind)) for kind in KINDS}
        return "  ".join(f"{kind} {n}" for kind, n in {"run": sum(counts.values()), **counts}.items())

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
        if name in CRASHES or dtype not in op.supported_dtypes("cpu"):
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


def raised_by(function: Any, case: Case) -> tuple[str, str]:
    """The type of the error that a call of a case raises, and its text."""
    given = [leaf for leaf in case.leaves if isinstance(leaf, torch.Tensor)]
    tensors = iter(copies(given) if all(t.device.type == "cpu" for t in given) else given)
    leaves = [next(tensors) if isinstance(leaf, torch.Tensor) else leaf for leaf in case.leaves]
    args, kwargs = pytree.tree_unflatten(leaves, case.spec)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error)
    return NOTHING, ""


def check_errors(cases: Iterable[Case], only_refused: bool = False) -> Errors:
    """Call each case eagerly and compiled; `only_refused`: leave out those that eager takes."""
    outcome = Errors()
    for case in cases:
        wanted, text = raised_by(case.function, case)
        if wanted == NOTHING and only_refused:
            continue
        # A function of the user's around the call: what is refused is met while a graph is captured.
        options = {"strict": False, "cache": False}
        compiled = firebrick.compile(lambda *a, call=case.function, **k: call(*a, **k), options=options)
        found, ours = raised_by(compiled, case)
        firebrick.reset()
        row = (case.describe(), f"{wanted}: {text}"[:300], f"{found}: {ours}"[:300])
        if wanted == found:
            (outcome.accepted if wanted == NOTHING else outcome.same).append(row)
        else:
            (outcome.silent if found == NOTHING else outcome.other).append(row)
    return outcome


# ---------------------------------------------------------------- everything


def run(only: list[str] | None, spoiled: int, json_file: Path | None, markdown: Path | None) -> int:
    """Check all operators, print what differs and the sums, and write them to files."""
    logging.disable(logging.CRITICAL)  # torch's fake mode logs what it is refused
    torch.set_num_threads(1)
    parts = {"error inputs": Errors()} | ({"spoiled samples": Errors()} if spoiled else {})
    operators_with = 0
    for name, op in sorted(operators().items()):
        if only and name not in only:
            continue
        operators_with += op.error_inputs_func is not None
        found = [check_errors(error_cases(name, op))]
        found += [check_errors(spoiled_cases(name, op, spoiled), only_refused=True)] if spoiled else []
        for total, part in zip(parts.values(), found, strict=True):
            total.add(part)
            for kind in ("other", "silent"):
                for row in getattr(part, kind):
                    print(kind, *[text.replace("\n", " ") for text in row], sep=" | ", flush=True)
    for title, total in parts.items():
        print(f"{title}: {total.sums()}")
    if json_file is not None:
        json_file.write_text(json.dumps({t: dataclasses.asdict(e) for t, e in parts.items()}, indent=1) + "\n")
    if markdown is not None:
        write_section(markdown, section(parts, operators_with))
    return int(any(total.other or total.silent for total in parts.values()))


def section(parts: dict[str, Errors], count: int) -> str:
    """What bench/OPS.md says of errors."""
    lines = [
        TITLE,
        "",
        f"Calls that eager PyTorch refuses, compiled, from `python -m tests.ops --errors`: the error inputs of {count} operators",
        "of the database; with `--spoiled N` also N samples of each operator with one argument spoiled (another dtype, rank or",
        "size, a dimension beyond the rank, values that an op may not take). **Same**: the type of error that eager raises.",
        "**Accepted**: an error input that eager takes on this device, as we do.",
        "",
        "| calls | run | same type | other type | silent | accepted |",
        "|---|---|---|---|---|---|",
    ]
    for title, total in parts.items():
        counts = [len(getattr(total, kind)) for kind in KINDS]
        lines.append(f"| {title} | {sum(counts)} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines) + "\n"


def write_section(path: Path, text: str) -> None:
    """Put the section in its place in a file, or at its end."""
    content = path.read_text() if path.exists() else ""
    before, found, rest = content.partition(TITLE)
    if not found:  # before the layouts, which end the file
        before, found, rest = content.partition("## Layouts")
        rest = f"\n{found}{rest}"
    _, mark, after = rest.partition("\n## ")
    path.write_text(f"{before.rstrip()}\n\n{text}{mark}{after}")


def section_of(path: Path) -> str:
    """The section that a file has, or nothing."""
    _, mark, rest = path.read_text().partition(TITLE) if path.exists() else ("", "", "")
    return mark + rest.partition("\n## ")[0].rstrip() + "\n" if mark else ""
