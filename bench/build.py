"""How long the C++ compiler takes: kernels of each kind in one graph, then all of them in one, then a single kernel.

Every kernel differs from the others: 7 shapes by 5 dtypes. Seconds are those of the build alone, of compilers that
run side by side; CPU seconds are those of all compilers, assemblers and linkers together, which tell more where other
programs run on the machine.

Run: python bench/build.py [--json] [--runs N]
"""

import argparse
import json
import os
import resource
import tempfile

import torch
import torch.nn.functional as F

RUNS = 3
SHAPES = [(64, 1000), (33, 257), (128, 128), (7, 65, 129), (4, 16, 32, 32), (1000,), (5, 300)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64]

POINTWISE = [
    lambda x: torch.tanh(x) * 2,
    lambda x: F.gelu(x.float()),
    lambda x: torch.exp(-x.abs()) + x,
    lambda x: torch.where(x > 0, x, x * 0.1),
    lambda x: torch.sigmoid(x) * x,
    lambda x: (x * x + 1).sqrt(),
    lambda x: torch.clamp(x, -1, 1),
]
REDUCTIONS = [
    lambda x: x.sum(-1),
    lambda x: x.amax(-1),
    lambda x: x.float().mean(0),
    lambda x: x.float().var(-1),
    lambda x: x.argmax(-1),
    lambda x: x.sum(0),
    lambda x: (x * x).sum(),
]
ROWS = [
    lambda x: torch.softmax(x.float(), -1),
    lambda x: F.layer_norm(x.float(), x.shape[-1:]),
    lambda x: torch.log_softmax(x.float(), -1),
    lambda x: x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5),
]
TRANSPOSES = [lambda x: x.transpose(-1, -2).contiguous() * 2 if x.dim() > 1 else x.flip(0)]
KINDS = {"pointwise": POINTWISE, "reductions": REDUCTIONS, "softmax and norms": ROWS, "transposes": TRANSPOSES}


def tensors():
    """One tensor a shape and dtype."""
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(shape, generator=generator) * 4).to(dtype) for shape in SHAPES for dtype in DTYPES]


def program(kinds):
    """A function of the tensors in which each is used once by each kind, in turns by its functions."""

    def run(inputs):
        # What is added makes equal kernels differ.
        return [f[k % len(f)](x + k) for f in (KINDS[kind] for kind in kinds) for k, x in enumerate(inputs)]

    return run


def measure(function, inputs):
    """Seconds and CPU seconds of one build, the number of kernels, and of units that they are in."""
    import firebrick

    def now():
        used, stats = resource.getrusage(resource.RUSAGE_CHILDREN), firebrick.stats()
        counts = [stats["counts"].get(name, 0) for name in ("kernels built", "units built")]
        return [stats["seconds"].get("build", 0.0), used.ru_utime + used.ru_stime, *counts]

    with tempfile.TemporaryDirectory() as folder:
        os.environ["FIREBRICK_CACHE_DIR"] = folder
        before = now()
        with torch.no_grad():
            firebrick.compile(function)(inputs)
        return [b - a for a, b in zip(before, now(), strict=True)]


def row(function, inputs, runs):
    """The fastest of some builds."""
    found = [measure(function, inputs) for _ in range(runs)]
    seconds, cpu = (min(f[k] for f in found) for k in (0, 1))
    kernels, units = found[0][2:]
    return {
        "kernels": kernels,
        "units": units,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu, 3),
        "per_100": round(100 * seconds / kernels, 3),
        "cpu_per_100": round(100 * cpu / kernels, 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=RUNS, help="builds of each, the fastest of which counts")
    arguments = parser.parse_args()
    inputs = tensors()
    results = {kind: row(program([kind]), inputs, arguments.runs) for kind in KINDS}
    results["all in one graph"] = row(program(list(KINDS)), inputs, arguments.runs)
    results["one kernel"] = row(program(["pointwise"]), inputs[:1], arguments.runs)
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    print("| graph | kernels | units | build s | CPU s | s per 100 kernels | CPU s per 100 |")
    print("|---|---|---|---|---|---|---|")
    for kind, r in results.items():
        numbers = (r[k] for k in ("kernels", "units", "seconds", "cpu_seconds", "per_100", "cpu_per_100"))
        print(f"| {kind} | {' | '.join(f'{n:.2f}' if isinstance(n, float) else str(n) for n in numbers)} |")


if __name__ == "__main__":
    main()
