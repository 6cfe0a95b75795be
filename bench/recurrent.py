"""Recurrent layers beside eager PyTorch: how many times as fast, for each cell, size, batch and number of steps.

Both sides run in turns in one process; a row has the medians. A row marked `call` is left to PyTorch's kernel.

Run: python bench/recurrent.py [--cell lstm] [--size 256] [--batch 1] [--steps 32] [--seconds 0.3] [--json]
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

import firebrick

CELLS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *sizes, **more: nn.RNN(*sizes, nonlinearity="relu", **more),
}


def measure(cell, size, batch, steps, seconds, directions, middle):
    """Medians of one layer whose input is as wide as its states."""
    torch.manual_seed(0)
    model = CELLS[cell](size, size, bidirectional=directions == 2).eval()
    x = torch.randn(steps, batch, size)
    compiled = firebrick.compile(model, options={"cache": False})
    before = firebrick.stats()["counts"].get("recurrent layers", 0)
    sides = {"eager": model, "firebrick": compiled}
    times = {name: [] for name in sides}
    with torch.no_grad():
        for run in sides.values():
            run(x)
            run(x)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times["eager"]) < 5:
            for name, run in sides.items():
                start = time.perf_counter()
                run(x)
                times[name].append(time.perf_counter() - start)
    own = firebrick.stats()["counts"].get("recurrent layers", 0) > before
    firebrick.reset()
    row = {"cell": cell, "size": size, "batch": batch, "steps": steps, "directions": directions, "own": own}
    row |= {f"{name}_us": round(1e6 * middle(t), 1) for name, t in times.items()}
    row["ratio"] = round(row["eager_us"] / row["firebrick_us"], 2)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", nargs="*", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--size", nargs="*", type=int, default=[32, 64, 128, 256, 512, 1024])
    parser.add_argument("--batch", nargs="*", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--steps", nargs="*", type=int, default=[1, 10, 50, 200])
    parser.add_argument("--directions", nargs="*", type=int, default=[1], choices=[1, 2])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--best", action="store_true", help="take least times, not medians: for a busy machine")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    for cell in a.cell:
        for size in a.size:
            for batch in a.batch:
                for steps in a.steps:
                    for directions in a.directions:
                        row = measure(
                            cell, size, batch, steps, a.seconds, directions, min if a.best else statistics.median
                        )
                        if a.json:
                            print(json.dumps(row), flush=True)
                            continue
                        shape = f"{cell:9} size {size:4}, batch {batch:2}, steps {steps:3}, directions {directions}"
                        times = f"eager {row['eager_us']:9} us, firebrick {row['firebrick_us']:9} us"
                        print(f"{shape}: {times}, {row['ratio']:5} times{'' if row['own'] else ', call'}", flush=True)


if __name__ == "__main__":
    main()
