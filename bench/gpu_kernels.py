"""Kernels that memory limits, on one GPU: the share of a copy's bandwidth that each reaches, beside torch.compile.

Run: python bench/gpu_kernels.py [--cases softmax adam] [--mib 1 8 64 512] [--contenders ours default eager]

Each case is a process; all warm up at once and are measured one after another. A call is timed by events, with the
cache of the GPU flushed before it; the rate is that of the bytes that have to be read and written, and of a copy that
moves as many.
"""

import argparse
import statistics
import subprocess
import sys
import warnings

import torch
import torch.nn.functional as F

import firebrick

WIDTH = 4096


def tensors(nbytes: int, *dtypes: torch.dtype, width: int = WIDTH) -> list[torch.Tensor]:
    """Matrices that together have so many bytes."""
    rows = max(1, nbytes // (width * sum(d.itemsize for d in dtypes)))
    return [torch.randn(rows, width, device="cuda").to(d) for d in dtypes]


def _adam(nbytes: int):
    (p,) = tensors(nbytes, torch.float32)
    p = torch.nn.Parameter(p)
    p.grad = torch.randn_like(p)
    return torch.optim.AdamW([p], lr=1e-4, foreach=True).step, (), 7 * p.nbytes


def _rows(fn, *dtypes: torch.dtype, moved: int = 2, width: int = WIDTH):
    """A function of matrices: `moved` is how often the bytes of one go to and fro."""

    def make(nbytes: int):
        given = tensors(nbytes, *dtypes, width=width)
        return fn, tuple(given), moved * given[0].nbytes

    return make


def _cross_entropy(nbytes: int):
    (x,) = tensors(nbytes, torch.bfloat16, width=32000)
    return lambda x, y: F.cross_entropy(x, y), (x, torch.randint(0, 32000, x.shape[:1], device="cuda")), x.nbytes


B = torch.bfloat16
CASES = {
    "copy": _rows(lambda x: x.clone(), B),
    "softmax": _rows(lambda x: x.softmax(-1), B),
    "layer norm": _rows(lambda x: F.layer_norm(x, (WIDTH,)), B),
    "rms norm": _rows(lambda x: F.rms_norm(x, (WIDTH,)), B),
    "gelu": _rows(F.gelu, B),
    "dropout + residual": _rows(lambda x, y: F.dropout(x, 0.1, True) + y, B, B, moved=3),
    "cross entropy": _cross_entropy,
    "transpose": _rows(lambda x: x.t().contiguous(), B),
    "cat": _rows(lambda x, y: torch.cat([x, y], 1), B, B, moved=4),
    "column sums": _rows(lambda x: x.sum(0), B, moved=1),
    "adam": _adam,
}
"""Name -> what makes a function, its arguments and the bytes that a call moves, for arguments of so many bytes."""


def milliseconds(run, flush: torch.Tensor, calls: int = 15) -> float:
    """Median time of a call on the GPU, whose cache holds nothing of it."""
    seen = []
    for _ in range(calls):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        torch.cuda._sleep(200_000)  # the host is ahead when the call's kernels start
        begin.record()
        run()
        end.record()
        end.synchronize()
        seen.append(begin.elapsed_time(end))
    return statistics.median(seen)


def compiled(fn, contender: str):
    """A function as a contender runs it."""
    if contender == "ours":
        return firebrick.compile(fn)
    return fn if contender == "eager" else torch.compile(fn, mode=contender, dynamic=False)


@torch.no_grad()
def measure(name: str, sizes: list[int], contenders: list[str]) -> None:
    """Print the rows of one case."""
    warnings.filterwarnings("ignore")
    runs = []
    for mib in sizes:
        for contender in contenders:
            # Each has arguments of its own: torch.compile changes an optimizer that it is given, and its wrappers.
            fn, args, moved = CASES[name](mib << 20)
            torch.compiler.reset()
            run = compiled(fn, contender)
            for _ in range(12):
                run(*args)
            runs.append((mib, contender, run, args, moved))
    torch.cuda.synchronize()
    print("warm", flush=True)
    sys.stdin.readline()
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    rates: dict[tuple[int, str], float] = {}
    for mib, contender, run, args, moved in runs:
        rates[mib, contender] = moved / milliseconds(lambda run=run, args=args: run(*args), flush) / 1e9
        if (mib, "copy") not in rates:
            a = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
            b = torch.empty_like(a)
            rates[mib, "copy"] = moved / milliseconds(lambda a=a, b=b: b.copy_(a), flush) / 1e9
            del a, b
    for mib in sizes:
        copy = rates[mib, "copy"]
        cells = " | ".join(f"{rates[mib, c]:.2f} | {100 * rates[mib, c] / copy:.0f} %" for c in contenders)
        print(f"| {name} | {mib} | {copy:.2f} | {cells} |", flush=True)


def main() -> None:
    """Measure, each case in a process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--mib", nargs="+", type=int, default=(1, 8, 64, 512))
    parser.add_argument("--contenders", nargs="+", default=("ours", "default"))
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    if options.here:
        measure(options.cases[0], options.mib, options.contenders)
        return
    titles = ["kernel", "MiB", "copy TB/s", *(t for c in options.contenders for t in (f"{c} TB/s", "of a copy"))]
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|", flush=True)
    words = ["--mib", *map(str, options.mib), "--contenders", *options.contenders, "--here"]
    waiting = [
        subprocess.Popen(
            [sys.executable, __file__, "--cases", name, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in options.cases
    ]
    for process in waiting:
        process.stdout.readline()
    for name, process in zip(options.cases, waiting, strict=True):
        rows, errors = process.communicate("go\n")
        print(rows or f"| {name} | failed: {errors.strip().splitlines()[-1:]} |", end="\n" * (not rows), flush=True)


if __name__ == "__main__":
    main()
