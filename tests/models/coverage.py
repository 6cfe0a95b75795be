"""Capture over small transformers models: graphs, breaks, share of the ops captured, and whether the result is eager's.

python -m tests.models.coverage [MODEL ...] [--markdown docs/models.md] [--classes K/N]

`--classes` takes each class that builds small (part K of N); what is not one graph there is called three times compiled,
since a size that data decide, or what a second call shows, may be part of the graph then.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from tests.models.classes import build_class, class_names
from tests.models.generation import MODELS, MODES, generate
from tests.models.zoo import ZOO, build

import firebrick

__all__ = ["Covered", "cover", "read_table"]


@dataclass(frozen=True)
class Covered:
    """What became of one model."""

    model: str
    kind: str
    graphs: int
    breaks: int
    percent: int
    right: bool
    causes: tuple[str, ...] = ()

    def row(self) -> str:
        """A line of the table."""
        right = "as eager" if self.right else "WRONG"
        return f"| {self.model} | {self.kind} | {self.graphs} | {self.breaks} | {self.percent} | {right} |"


def flatten(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [t for item in value.values() for t in flatten(item)]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in flatten(item)]
    if is_dataclass(value) and not isinstance(value, type):
        return [t for item in vars(value).values() for t in flatten(item)]
    return []


def cover(name: str) -> Covered:
    """Capture one call of a model, and compare its result with plain Python's."""
    model, inputs = (build if name in ZOO else build_class)(name)
    firebrick.reset()
    with torch.no_grad():
        torch.manual_seed(1)
        expected = model(**inputs)
        torch.manual_seed(1)
        seen = firebrick.explain(model)(**inputs)
    pairs = list(zip(flatten(seen.result), flatten(expected), strict=True))
    right = type(seen.result) is type(expected)
    right &= all(a.dtype == b.dtype and torch.allclose(a, b, atol=1e-5, equal_nan=True) for a, b in pairs)
    causes = tuple(dict.fromkeys(f"{event['cause']} at {Path(event['place']).name}" for event in seen.breaks))
    kind = ZOO[name].kind if name in ZOO else "class"
    return Covered(name, kind, len(seen.graphs), len(seen.breaks), round(seen.coverage), right, causes)


def count_breaks() -> int:
    """Return how many breaks the process has met."""
    return int(firebrick.stats()["counts"].get("breaks", 0))


def cover_class(name: str) -> str | None:
    """Return the row of a class that builds small; graphs and breaks are those of all three calls if it is called compiled."""
    try:
        model, inputs = build_class(name)
        with torch.no_grad():
            model(**inputs)
    except Exception:
        return None
    row = cover(name)
    if row.graphs != 1 or row.breaks:
        with torch.no_grad():
            firebrick.reset()
            graphs: list[torch.nn.Module] = []
            compiled = firebrick.compile(model, backend=lambda gm, _: graphs.append(gm) or gm.forward)
            breaks = count_breaks()
            for _ in range(3):
                torch.manual_seed(1)
                result = compiled(**inputs)
            torch.manual_seed(1)
            pairs = list(zip(flatten(result), flatten(model(**inputs)), strict=True))
        right = all(torch.allclose(a, b, atol=1e-5, equal_nan=True) for a, b in pairs)
        breaks = count_breaks() - breaks
        row = replace(row, kind="class, compiled", graphs=len(graphs), breaks=breaks, right=right)
    return row.row() + "".join(f"\n  {cause}" for cause in row.causes)


HEAD = """# Models

Small models of transformers with random weights, captured by one call; `make models` makes this page.
Graphs and breaks are those of capture, before any backend; "captured" is the share of ATen calls inside of graphs.

"""
COLUMNS = "| model | kind | graphs | breaks | captured % | result |\n|---|---|---|---|---|---|\n"


def page(rows: list[Covered]) -> str:
    """The page with the table."""
    one, right = sum(row.graphs == 1 and not row.breaks for row in rows), sum(row.right for row in rows)
    total = f"{len(rows)} models: {right} give eager's result, {one} are one graph ({100 * one / len(rows):.1f} %).\n\n"
    table = "".join(f"{row.row()}\n" for row in rows)
    broken = "".join(f"- {row.model}: {cause}\n" for row in rows for cause in row.causes)
    return f"{HEAD}{total}{COLUMNS}{table}\nWhere the others break:\n\n{broken}"


GENERATION = """
## Generation

`firebrick.compile(model).generate(...)` of 24 tokens, compiled twice in a row. A static cache keeps shapes: one graph
for the prompt and one for a token. The figures with a dynamic cache, which grows with each token, are from before sizes that change became
symbols: a graph for each size, then plain Python.

| model | mode | tokens | graphs | graphs in the second run |
|---|---|---|---|---|
"""


def read_table(text: str) -> dict[str, Covered]:
    """Rows of a page, by model."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[0] in ZOO:
            found[cells[0]] = Covered(cells[0], cells[1], *map(int, cells[2:5]), cells[5] == "as eager")
    return found


def main() -> int:
    """Print a row a model; 1 if a result is not eager's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--classes", metavar="K/N", help="every class that builds small, part K of N from 0 on")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    logging.captureWarnings(capture=True)
    console = Console()
    if options.classes is not None:
        first, parts = map(int, options.classes.split("/"))
        for name in class_names()[first::parts]:
            row = cover_class(name)
            if row is not None:
                console.print(row, markup=False, soft_wrap=True)
        return 0
    rows = []
    for name in options.models or ZOO:
        rows.append(cover(name))
        console.print(rows[-1].row(), markup=False)
    if options.markdown is not None:
        modes = [generate(name, mode).row() for name in MODELS for mode in MODES]
        options.markdown.write_text(page(rows) + GENERATION + "\n".join(modes) + "\n")
    return int(not all(row.right for row in rows))


if __name__ == "__main__":
    sys.exit(main())
