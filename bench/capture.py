"""Seconds of capture beside TorchDynamo's, and what a captured call costs beyond eager, with a do-nothing compiler.

Capture is the first call less a later one; both sides run graphs eagerly, alternate, and start anew in each round.

Run: python bench/capture.py [MODEL ...] [--layers N] [--rounds 5] [--json] [--markdown FILE]
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

import firebrick
from firebrick.tools.models import build_model

MODELS = ("bert", "minilm", "gpt2", "vit", "resnet50")
HEAD = """| model | firebrick, s | TorchDynamo, s | ratio | call beyond eager, % |
|---|---|---|---|---|
"""


def seconds(call, inputs):
    """How long one call takes."""
    start = time.perf_counter()
    call(**inputs)
    return time.perf_counter() - start


def captured(compile_, reset, model, inputs):
    """Seconds of the first call beyond those of a later one."""
    reset()
    compiled = compile_(model, backend="eager")
    first = seconds(compiled, inputs)
    return first - min(seconds(compiled, inputs) for _ in range(3))


def overhead(model, inputs, rounds):
    """Median of compiled over eager, call by call, in % beyond 1."""
    firebrick.reset()
    compiled = firebrick.compile(model, backend="eager")
    compiled(**inputs)
    ratios = [seconds(compiled, inputs) / seconds(model, inputs) for _ in range(rounds * 4)]
    return 100 * (statistics.median(ratios) - 1)


def measure(name, layers, rounds):
    """One row."""
    model, inputs = build_model(
        name, **({} if layers is None or name in ("minilm", "resnet50") else {"layers": layers})
    )
    with torch.no_grad():
        model(**inputs)
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(captured(firebrick.compile, firebrick.reset, model, inputs))
            theirs.append(captured(torch.compile, torch.compiler.reset, model, inputs))
        row = {"model": name, "firebrick": statistics.median(ours), "dynamo": statistics.median(theirs)}
        row["overhead"] = overhead(model, inputs, rounds)
    return row


def table(rows):
    """The rows as Markdown, and the geometric mean of the overheads."""
    lines = [
        f"| {r['model']} | {r['firebrick']:.3f} | {r['dynamo']:.3f} | {r['firebrick'] / r['dynamo']:.2f} "
        f"| {r['overhead']:+.1f} |"
        for r in rows
    ]
    mean = statistics.geometric_mean(1 + r["overhead"] / 100 for r in rows)
    return HEAD + "\n".join(lines) + f"\n\nCalls beyond eager, geometric mean: {100 * (mean - 1):+.1f} %.\n"


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    rows = [measure(name, options.layers, options.rounds) for name in options.models or MODELS]
    sys.stdout.write((json.dumps(rows) if options.json else table(rows)) + "\n")
    if options.markdown is not None:
        options.markdown.write_text(f"# Capture\n\n`python bench/capture.py`.\n\n{table(rows)}")


if __name__ == "__main__":
    main()
