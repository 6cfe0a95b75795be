"""How compile time and kernels grow with depth: BERT of 12 and of 48 layers, cold, each in a fresh process.

The compile time is all that happens between the call and the first instruction of compiled code; the first call runs
the model besides, on weights that are packed later.

Run: python bench/depth.py [--json]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

import torch

RUNS = 5


def child(layers):
    """Compile and run once; print seconds and kernel count."""
    import firebrick
    from firebrick.tools.models import build_model

    model, inputs = build_model("bert", layers=layers)
    with torch.no_grad():
        model(**inputs)
        compiled = firebrick.compile(model)
        start = time.perf_counter()
        compiled(**inputs)
        seconds = time.perf_counter() - start
    print(json.dumps({"first": seconds, **firebrick.stats()}))


def compile_cold(layers):
    """What a fresh process with an empty cache says of its first call."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["env", f"FIREBRICK_CACHE_DIR={folder}", sys.executable, __file__, "--layers", str(layers)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout.splitlines()[-1])


def summary(answers):
    """Medians over the runs of one depth; counts are the same in all."""
    last = answers[-1]
    stages = {k: statistics.median(a["seconds"].get(k, 0.0) for a in answers) for k in last["seconds"]}
    return {
        "first_call": statistics.median(a["first"] for a in answers),
        "compile": stages["capture"],
        "kernels": last["counts"].get("kernels"),
        "launches": last["counts"].get("launches"),
        "stages": {k: round(v, 3) for k, v in stages.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--layers", type=int)
    arguments = parser.parse_args()
    if arguments.layers:
        child(arguments.layers)
        return
    # In turns, so that both depths see the same machine.
    rounds = [[compile_cold(layers) for layers in (12, 48)] for _ in range(RUNS)]
    results = {layers: summary([r[i] for r in rounds]) for i, layers in enumerate((12, 48))}
    results["ratio"] = statistics.median(b["seconds"]["capture"] / a["seconds"]["capture"] for a, b in rounds)
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    for layers in (12, 48):
        row = results[layers]
        head = f"{layers} layers: compile {row['compile']:.2f} s, first call {row['first_call']:.2f} s"
        print(f"{head}, {row['kernels']} kernels, {row['launches']} launches; {row['stages']}")
    print(f"compile time of 48 layers over 12: {results['ratio']:.2f}")


if __name__ == "__main__":
    main()
