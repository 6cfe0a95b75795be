"""All models beside every engine for CPUs: `python -m bench.cpu [MODEL ...]`, or `make bench-cpu`."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from bench import contender, programs, turns
from firebrick.errors import FirebrickError
from firebrick.tools import bench as measuring

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from firebrick.tools.bench import Figures, Process

CONTENDERS = (*measuring.CONTENDERS, "torch.compile(freezing)", "onnxruntime", "openvino", "torchscript")
"""All that a CPU's owner may choose from; "zentorch", for AMD's alone, is measured where it is asked for."""
SEVEN = ("bert", "vit", "gpt2", "resnet50", "mobilenet", "convnext", "segformer")
"""The models that peers publish figures of."""
_COMPILING = {name for name in contender.CONTENDERS if name not in ("eager", "torchscript", "onnxruntime", "openvino")}
_COPIES = "memory copies"
"""Key in a row's `stats` of what copies of as many bytes take."""


class Measure(measuring.Measure):
    """Sets memory-bound programs beside copies of as much memory, in the same rounds."""

    def rounds(self, sides: Mapping[str, Process], seconds: float, **_: Any) -> dict[str, list[list[float]]]:
        turns.wait()
        if self.model not in programs.MEMORY_BOUND or "firebrick" not in sides:
            return super().rounds(sides, seconds)
        row = next(row for row in self.rows if row.contender == "firebrick")
        with measuring.Process(self.kind, None, self.model, "eager", self.sizes) as copying:
            copying.ask("first")
            copies: list[dict[str, Any]] = []
            share = seconds / measuring.ROUNDS / 2
            times = super().rounds(sides, seconds, lambda: copies.append(copying.ask("copy", share)))
        there, fresh = (statistics.median([t for c in copies for t in c[kind]]) for kind in ("there", "fresh"))
        row.stats[_COPIES] = {"there": there, "fresh": fresh, "bytes": copies[0]["bytes"]}
        return times


def bench(
    models: Sequence[str],
    contenders: Sequence[str] = CONTENDERS,
    *,
    seconds: float = 6.0,
    warm: Sequence[str] = ("firebrick",),
    cold: bool = True,
    sizes: dict[str, Any] | None = None,
    console: Console | None = None,
) -> list[Figures]:
    """Measure each model under each contender, and print a line as each is compiled and as each is measured.

    seconds: measuring time of one contender on one model, spent in interleaved rounds.
    warm: of which contenders to measure the warm start too.
    cold: whether each begins with empty caches; False takes those of former runs.

    Interrupted (Ctrl-C), it returns what was measured before the model at hand.

    Raises:
        FirebrickError: an unknown contender or model.
        KeyboardInterrupt: interrupted in the first model.
    """
    unknown = [name for name in contenders if name not in contender.CONTENDERS]
    if unknown:
        fix = f"contenders are {', '.join(contender.CONTENDERS)}"
        raise FirebrickError(f"unknown contender {unknown[0]!r}", fix=fix)
    for model in models:
        programs.check_name(model)
    make = partial(Measure, warm=warm, cold=cold, sizes=sizes or {}, kind=contender.Contender)
    console = console or Console(stderr=True)
    return measuring.measure_all(models, contenders, make, seconds=seconds, console=console)


def geomean(values: Sequence[float]) -> float:
    """Geometric mean; NaN for none."""
    return statistics.geometric_mean(values) if values else float("nan")


def geomeans(rows: Sequence[Figures]) -> list[tuple[str, float]]:
    """Each contender's geometric mean of its speed-ups."""
    names = dict.fromkeys(row.contender for row in rows)
    return [(n, geomean([r.speedup for r in rows if r.contender == n and not r.failed])) for n in names]


def _notes(results: Sequence[Figures]) -> list[str]:
    """What the table has no column for: what was captured, and what memory takes."""
    notes = []
    for r in results:
        if r.contender == "firebrick":
            graphs, breaks = (_count(r, name) for name in ("graphs", "breaks"))
            notes.append(f"{r.model}: {graphs} graph(s), {breaks} break(s)")
        if copied := r.stats.get(_COPIES):
            traffic, there, fresh = copied["bytes"], copied["there"], copied["fresh"]
            notes.append(
                f"{r.model}: moves {traffic / 2**20:.0f} MiB at {traffic / r.run / 1e9:.1f} GB/s; "
                f"copies of as much take {there * 1e3:.3g} ms, into new memory {fresh * 1e3:.3g} ms, so it takes "
                f"{r.run / there:.2f} and {r.run / fresh:.2f} times as long"
            )
    several = len({r.model for r in results}) > 1
    means = [f"geomean {name} {mean:.2f} x eager" for name, mean in geomeans(results)] if several else []
    return notes + means + _summary(results)


def _count(row: Figures, name: str) -> int:
    return row.stats.get("counts", {}).get(name, 0)


def _summary(results: Sequence[Figures]) -> list[str]:
    """Firebrick against each of the others on the models that the other runs, and what its compiles cost."""
    found = {(r.model, r.contender): r for r in results if not r.failed and r.run == r.run}
    mine = {model: r for (model, name), r in found.items() if name == "firebrick"}
    if len(mine) < 2:
        return []
    notes = []
    for name in dict.fromkeys(r.contender for r in results if r.contender not in ("eager", "firebrick")):
        for text, models in (("all", list(mine)), ("the seven", [m for m in SEVEN if m in mine])):
            both = [(mine[m], found[m, name]) for m in models if (m, name) in found]
            if both:
                ours, theirs = (geomean([pair[k].speedup for pair in both]) for k in (0, 1))
                notes.append(f"firebrick {ours:.2f}, {name} {theirs:.2f} on the {len(both)} of {text} that it runs")
        cold = [found[m, name].cold / mine[m].cold for m in mine if (m, name) in found]
        if name in _COMPILING and cold:
            notes.append(f"cold start: 1/{geomean(cold):.1f} of {name}'s")
    slowest = max(mine.values(), key=lambda r: r.cold)
    kernels = sum(_count(r, "kernels built") for r in mine.values())
    build = sum(r.stats.get("seconds", {}).get("build", 0.0) for r in mine.values())
    notes.append(f"longest cold start: {slowest.cold:.2f} s ({slowest.model})")
    if kernels:
        notes.append(f"C++ compiler: {build:.2f} s for {kernels} kernels, {build / kernels * 100:.2f} s per hundred")
    return notes


def markdown(results: Sequence[Figures], command: str) -> str:
    """Return the results as a Markdown section headed by the command that makes them."""
    lines = [
        f"## `{command}`",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, torch {torch.__version__}.",
        "",
    ]
    lines += ["| " + " | ".join(measuring.HEAD) + " |", "|" + "---|" * len(measuring.HEAD)]
    lines += ["| " + " | ".join(row.cells) + " |" for row in results]
    lines += [f"| geomean | {name} | | {mean:.2f} | | | | |" for name, mean in geomeans(results)]
    failed = [f"{r.model}: {r.contender} failed: {r.failed}" for r in results if r.failed]
    lines += ["", *(f"- {note}" for note in [*_notes(results), *failed])]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help=f"{', '.join(programs.MODELS)} or package.module:function")
    parser.add_argument("--contender", action="append", choices=contender.CONTENDERS)
    parser.add_argument("--seconds", type=float, default=6.0, help="measuring time a contender and model")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--warm", action="append", help="whose warm start is measured; default: firebrick")
    parser.add_argument("--no-cold", action="store_true", help="keep caches of former runs")
    parser.add_argument("--markdown", type=Path, help="append the results to this file")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sizes = {name: value for name, value in (("layers", given.layers), ("batch", given.batch)) if value}
    results = bench(
        given.models or programs.MODELS,
        given.contender or CONTENDERS,
        seconds=given.seconds,
        warm=given.warm or ("firebrick",),
        cold=not given.no_cold,
        sizes=sizes,
    )
    if given.markdown:
        with given.markdown.open("a") as file:
            file.write("\n" + markdown(results, "python -m bench.cpu " + " ".join(sys.argv[1:])))
    if given.json:
        print(measuring.as_json(results))
    else:
        Console().print(measuring.table(results, "".join(f"\n{note}" for note in _notes(results))))
    if any(row.failed and row.contender == "firebrick" for row in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
