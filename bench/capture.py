"""What capture costs: seconds beside TorchDynamo's, and run time beside eager, with a compiler that does nothing.

Seconds of capture are the first call less a later one, of full-size models; both sides run graphs eagerly, take turns,
and start anew in each round. Run time is that of the small models of `make models`, whose kernels take so little that
the Python around them shows; eager and compiled calls take turns, and medians are compared.

Run: python bench/capture.py [--models bert gpt2] [--small BertModel] [--layers N] [--rounds 5] [--json] [--markdown F]
"""

import argparse
import json
import logging
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.models.zoo import ZOO, build

import firebrick
from firebrick.tools.models import build_model

MODELS = ("bert", "minilm", "gpt2", "vit", "resnet50")
CAPTURE = """| model | firebrick, s | TorchDynamo, s | ratio |
|---|---|---|---|
"""
CALLS = """| model | eager, ms | compiled, ms | ratio |
|---|---|---|---|
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


def capture_row(name, layers, rounds):
    """Seconds of capture, ours and TorchDynamo's."""
    fixed = layers is None or name in ("minilm", "resnet50")
    model, inputs = build_model(name, **({} if fixed else {"layers": layers}))
    with torch.no_grad():
        model(**inputs)
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(captured(firebrick.compile, firebrick.reset, model, inputs))
            theirs.append(captured(torch.compile, torch.compiler.reset, model, inputs))
    return {"model": name, "firebrick": statistics.median(ours), "dynamo": statistics.median(theirs)}


def call_row(name, rounds):
    """Milliseconds of a call of a small model, eager and compiled."""
    model, inputs = build(name)
    with torch.no_grad():
        firebrick.reset()
        compiled = firebrick.compile(model, backend="eager")
        for call in (model, compiled, compiled):
            call(**inputs)
        eager, ours = [], []
        for _ in range(rounds * 8):
            eager.append(seconds(model, inputs))
            ours.append(seconds(compiled, inputs))
    row = {"model": name, "eager_ms": 1000 * statistics.median(eager), "compiled_ms": 1000 * statistics.median(ours)}
    return {**row, "ratio": row["compiled_ms"] / row["eager_ms"]}


def text(result):
    """Both tables as Markdown, each with its mean."""
    parts = []
    if rows := result["capture"]:
        lines = [
            f"| {r['model']} | {r['firebrick']:.3f} | {r['dynamo']:.3f} | {r['firebrick'] / r['dynamo']:.2f} |"
            for r in rows
        ]
        parts += [CAPTURE + "\n".join(lines), f"Ratio, geometric mean: {result['capture_mean']:.3f}."]
    if rows := result["calls"]:
        lines = [f"| {r['model']} | {r['eager_ms']:.2f} | {r['compiled_ms']:.2f} | {r['ratio']:.2f} |" for r in rows]
        parts += [
            CALLS + "\n".join(lines),
            f"{len(rows)} models. Compiled over eager, geometric mean: {result['calls_mean']:.3f}; "
            f"above 1.01: {', '.join(r['model'] for r in rows if r['ratio'] > 1.01) or 'none'}.",
        ]
    return "\n\n".join(parts) + "\n"


def measure(options, progress):
    """All rows of both tables, and their means."""
    result = {"capture": [], "calls": []}
    todo = progress.add_task("seconds of capture", total=len(options.models))
    for name in options.models:
        result["capture"].append(capture_row(name, options.layers, options.rounds))
        progress.advance(todo)
    todo = progress.add_task("time of calls", total=len(options.small))
    for name in options.small:
        result["calls"].append(call_row(name, options.rounds))
        progress.advance(todo)
    if result["capture"]:
        ratios = [row["firebrick"] / row["dynamo"] for row in result["capture"]]
        result["capture_mean"] = statistics.geometric_mean(ratios)
    if result["calls"]:
        result["calls_mean"] = statistics.geometric_mean(row["ratio"] for row in result["calls"])
    return result


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--small", nargs="*", default=list(ZOO), metavar="MODEL")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    logging.captureWarnings(capture=True)
    with Progress(console=Console(stderr=True)) as progress:
        result = measure(options, progress)
    sys.stdout.write((json.dumps(result) if options.json else text(result)) + "\n")
    if options.markdown is not None:
        machine = f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores"
        head = f"# Capture\n\n`python bench/capture.py`; {machine}, load {os.getloadavg()[0]:.0f}.\n\n"
        options.markdown.write_text(head + text(result))


if __name__ == "__main__":
    main()
