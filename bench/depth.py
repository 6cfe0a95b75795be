"""How compile time and kernels grow with depth: transformer encoders of 12, 24 and 48 layers, each in a fresh process.

Seconds are of a cold compile and of a second process that finds the first one's cache (warm): `compile` is all that
Firebrick did, capture and, in training, the backward that the first step compiles; `first` is the first call or step.
Depths and trees take turns, so that all see the same machine.

Run: python bench/depth.py [--json] [--train] [--runs 5] [--layers 12 24 48] [--width 256] [--src TREE/src ...]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

HERE = str(Path(__file__).parent.parent / "src")


def child(layers, width, train):
    """Compile and run once; print seconds and counts."""
    import firebrick
    from firebrick.tools.models import build_model

    heads = max(1, width // 64)
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": heads, "vocab_size": 1000}
    model, inputs = build_model("bert", layers=layers, length=64, **sizes)
    model.train(train)
    with torch.set_grad_enabled(train):
        model(**inputs)
        compiled = firebrick.compile(model)
        start = time.perf_counter()
        result = compiled(**inputs)[0]
        if train:
            result.sum().backward()
        seconds = time.perf_counter() - start
    print(json.dumps({"first": seconds, **firebrick.stats()}))


def answer_of(source, folder, layers, width, train):
    """What a fresh process says of its first call."""
    command = [sys.executable, __file__, "--child", str(layers), "--width", str(width), *(["--train"] if train else [])]
    environment = {**os.environ, "PYTHONPATH": source, "FIREBRICK_CACHE_DIR": folder}
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    data = json.loads(answer.stdout.splitlines()[-1])
    seconds = data["seconds"]
    data["compile"] = seconds["capture"] + seconds.get("backward", 0.0)
    return data


def summary(cold, warm):
    """Medians over the runs of one depth; counts are the same in all."""
    middle = statistics.median
    stages = {k: middle(a["seconds"].get(k, 0.0) for a in cold) for k in cold[-1]["seconds"]}
    counts = cold[-1]["counts"]
    return {
        "first": round(middle(a["first"] for a in cold), 3),
        "compile": round(middle(a["compile"] for a in cold), 3),
        "warm": round(middle(a["compile"] for a in warm), 3),
        "kernels": counts.get("kernels"),
        "launches": counts.get("launches"),
        "stages": {k: round(v, 3) for k, v in stages.items() if v >= 0.001 and not k.startswith("pass ")},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--layers", type=int, nargs="+", default=[12, 24, 48])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--src", nargs="+", default=[HERE], help="source folders of Firebrick to compare")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    width, train = arguments.width, arguments.train
    if arguments.child:
        child(arguments.child, width, train)
        return
    cold, warm = {}, {}
    rows = [(source, layers) for source in arguments.src for layers in arguments.layers]
    for _ in range(arguments.runs):
        for row in rows:
            with tempfile.TemporaryDirectory() as folder:
                cold.setdefault(row, []).append(answer_of(row[0], folder, row[1], width, train))
                warm.setdefault(row, []).append(answer_of(row[0], folder, row[1], width, train))
    results = {row: summary(cold[row], warm[row]) for row in rows}
    if arguments.json:
        print(json.dumps({f"{source} {layers}": r for (source, layers), r in results.items()}, indent=2))
        return
    for source, layers in rows:
        row = results[source, layers]
        ratio = row["compile"] / results[source, arguments.layers[0]]["compile"]
        print(f"{source}, {layers} layers: compile {row['compile']} s ({ratio:.2f}), first {row['first']} s, ", end="")
        print(f"warm {row['warm']} s, {row['kernels']} kernels, {row['launches']} launches; {row['stages']}")


if __name__ == "__main__":
    main()
