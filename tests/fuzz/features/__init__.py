"""The table of features that random programs are put together from.

A feature is a row `Feature(name, weight, writer)`. The writer is given a `frame.Writer` and adds statements to the
program: to captured code, to the plain Python before and behind the call, to the top level. Rows are kept in one file
an area, each with its own `ROWS`; a new file is added to `AREAS`. `python -m tests.fuzz --only NAME` runs programs
that all hold that row, `--features` lists the table.
"""

from __future__ import annotations

import random

from tests.fuzz import programs, training, varying
from tests.fuzz.features import gradients, layouts, modules, objects, statements
from tests.fuzz.features.frame import Feature, Writer

__all__ = ["FEATURES", "WRITERS", "generate"]

AREAS = (gradients, statements, layouts, modules, objects)

FEATURES: dict[str, Feature] = {row.name: row for area in AREAS for row in area.ROWS}

WHOLE = "python"
"""The name of programs of statements alone, which `tests/fuzz/programs.py` writes; they are compared bit by bit."""

WRITERS = {"training": training.generate, "varying": varying.generate}
"""Programs that are not put together from the table."""


def generate(seed: int, only: str | None = None) -> str:
    """The program of a seed; the same text each time.

    Args:
        seed: any whole number.
        only: the name of a feature that each program has.
    """
    if only in WRITERS:
        return WRITERS[only](seed)
    draw = random.Random(f"{seed} {only or ''}")
    if only == WHOLE or (only is None and draw.random() < 0.25):
        return programs.generate(seed)
    rows = list(FEATURES.values())
    count = draw.choice([1, 2, 3, 3, 4, 5])
    chosen = draw.choices(rows, [row.weight for row in rows], k=count)
    if only is not None:
        chosen[draw.randrange(count)] = FEATURES[only]
    writer = Writer(draw)
    for row in chosen:
        row.writer(writer)
    if not writer.parts["body"]:
        writer.bind(f"{writer.tensor().name} + 1", writer.tensors[-1])
    backend = "eager" if all(row.backend == "eager" for row in chosen) else "firebrick"
    return writer.text(backend)
