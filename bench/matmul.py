"""GFLOP/s of matmuls and convolutions by constant weights in every form of theirs, beside what the cores can do.

`python -m bench.matmul [ROWSxINNERxOUTER | HEIGHTxWIDTHxCHANNELS-OUT-WINDOW/STRIDE ...]`. Weights come from memory, as
in a model; the best call counts. `chosen` is the fastest; "call" is ATen's, "packed" oneDNN's, "mkl" MKL's packed one.
`peak` is that of multiply-adds on registers alone, by all threads. On a busy machine `--threads 1 --cpu-time` tells
more than the clock on the wall.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import platform
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from firebrick.config import Config
from firebrick.targets.cpu import measured_runs, measuring, processor
from firebrick.targets.cpu.cpu_target import detect

if TYPE_CHECKING:
    from collections.abc import Callable

    from firebrick.targets.cpu.cpu_target import CpuTarget

MATMULS = (
    *("128x768x768", "128x768x3072", "128x3072x768", "197x768x768", "197x768x3072", "197x3072x768", "128x768x50257"),
    *("128x384x384", "128x384x1536", "128x1536x384", "128x512x1376", "128x1376x512", "128x768x2304", "512x768x768"),
    *(
        "1x768x768",
        "1x768x3072",
        "1x3072x768",
        "1x4096x4096",
        "4x768x3072",
        "8x2048x2048",
        "16x768x3072",
        "16x3072x768",
    ),
    *("32x1024x1024", "64x1024x4096", "256x1024x4096", "256x4096x1024", "256x256x256", "512x512x512"),
    *("1024x1024x1024", "2048x512x512", "4096x256x256", "1x2048x1000", "1x1280x1000", "64x384x1536"),
    *("49x512x2048", "49x2048x512", "196x1024x256", "784x128x512", "3136x64x256", "3136x256x64"),
)
"""BERT's, ViT's, GPT-2's, MiniLM's and a small Llama's; decoding; squares; classifiers; single pixels."""
CONVOLUTIONS = (
    *("224x224x3-64-7/2", "56x56x64-64-3/1", "56x56x64-256-1/1", "56x56x256-64-1/1", "56x56x128-128-3/2"),
    *("28x28x128-128-3/1", "28x28x512-128-1/1", "28x28x256-256-3/2", "14x14x256-256-3/1", "14x14x256-1024-1/1"),
    *("14x14x1024-2048-1/2", "14x14x512-512-3/2", "7x7x512-512-3/1", "7x7x2048-512-1/1", "224x224x3-32-3/2"),
    *("224x224x3-768-16/16", "512x512x3-32-7/4", "128x128x32-32-8/8", "128x128x32-64-3/1", "64x64x128-64-3/1"),
)
"""ResNet-50's, MobileNet's first, ViT's and SegFormer's patches, a U-Net's."""
_COLUMNS = ("own", "dots", "panels", "ahead", "dense", "matmul", "packed", "mkl", "call")
_PEAK = """
typedef float V __attribute__((vector_size({nbytes})));
float peak(long n) {{
  V {sums}, x = {{1.0f}}, y = {{0.5f}};
  for (long i = 0; i < n; i++) {{
    __asm__ volatile("" : "+{register}"(x), "+{register}"(y));
    {products}
  }}
  return {total};
}}
"""
"""The sums begin with different numbers, or a compiler would make one of them."""
_CHAINS = 12
"""Sums that go on at once: more than units of multiply-adds times their latency, fewer than registers."""


def peak(target: CpuTarget, seconds: float) -> float:
    """GFLOP/s of float32 multiply-adds on registers, by as many threads as kernels have."""
    nbytes = target.vector_bytes or 16
    with tempfile.TemporaryDirectory() as folder:
        text, library = os.path.join(folder, "peak.c"), os.path.join(folder, "peak.so")
        with open(text, "w") as file:
            texts = {"sums": ", ".join(f"a{k} = {{{k + 1}.0f}}" for k in range(_CHAINS))}
            texts |= {"products": " ".join(f"a{k} = a{k} * x + y;" for k in range(_CHAINS))}
            texts |= {"total": " + ".join(f"a{k}[0]" for k in range(_CHAINS))}
            file.write(_PEAK.format(nbytes=nbytes, register="w" if target.simd == "neon" else "v", **texts))
        flags = ["-O3", "-shared", "-fPIC", *target.flags]
        subprocess.run([os.environ.get("CC", "gcc"), *flags, text, "-o", library], check=True)
        run = ctypes.CDLL(library).peak
        count, best = 1 << 22, 0.0
        with ThreadPoolExecutor(target.threads) as pool:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                start = time.perf_counter()
                list(pool.map(run, [ctypes.c_long(count)] * target.threads))
                work = 2 * _CHAINS * count * nbytes / 4 * target.threads
                best = max(best, 1e-9 * work / (time.perf_counter() - start))
    return best


def matmul(target: CpuTarget, config: Config, shape: str) -> tuple[dict[str, Callable[[], Any]], float]:
    """What runs each form of a matmul, and multiplications of a call."""
    rows, inner, outer = map(int, shape.split("x"))
    args = torch.empty(rows, inner), torch.empty(outer, inner).t()
    forms = {c.name: int(c.name in ("mkl", "call")) for c in target.choices("aten::mm", args)}
    most = max(measured_runs._PRODUCTS * target.threads // inner, 1)
    part = min(rows, max(most // outer, measured_runs._ROWS))
    products = part * inner * min(outer, max(most // part, measured_runs._COLUMNS))
    return dict(measured_runs.matmuls(target, config, forms, *args)), products


def convolution(target: CpuTarget, config: Config, shape: str) -> tuple[dict[str, Callable[[], Any]], float]:
    """What runs each form of a convolution, channels last and padded by half its window, and its multiplications."""
    image, outer, how = shape.split("-")
    height, width, inner = map(int, image.split("x"))
    window, stride = map(int, how.split("/"))
    border = window // 2 if window % 2 else 0
    last = torch.channels_last
    x, weight = torch.ones(1, inner, height, width), torch.ones(int(outer), inner, window, window)
    x, placed, bias = x.contiguous(memory_format=last), weight.contiguous(memory_format=last), torch.ones(int(outer))
    out = F.conv2d(x, placed, bias, stride, border)
    args = x, weight, [stride] * 2, [border] * 2, [1, 1], 1, out
    forms = {c.name: int(c.name == "call") for c in target.choices("aten::convolution", args)}
    runs = dict(measured_runs.convolutions(target, config, forms, *args))
    runs["call"] = lambda: F.conv2d(x, placed, bias, stride, border)
    return runs, out.numel() * math.prod(weight.shape[1:])


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", default=[*MATMULS, *CONVOLUTIONS])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="most that is spent on a shape")
    parser.add_argument("--cpu-time", action="store_true", help="count the process's own time")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    measuring._SECONDS, measuring._AGREE, measuring._BEHIND = given.seconds, float("inf"), float("inf")
    measuring._ROUNDS = 9, 99
    clock = time.process_time if given.cpu_time else time.perf_counter
    config = Config.from_env().with_options({"threads": given.threads})
    target = detect(config)
    print(f"{processor.processor()}; {target.simd}, {given.threads} threads, peak {peak(target, 0.5):.0f} GFLOP/s, "
          f"torch {torch.__version__}, Python {platform.python_version()}\n")  # fmt: skip
    print(f"| shape | {' | '.join(_COLUMNS)} | chosen |\n|{'---|' * (len(_COLUMNS) + 2)}")
    for shape in given.shapes:
        runs, products = (convolution if "-" in shape else matmul)(target, config, shape)
        for run in runs.values():
            run()
        times = measuring.race(runs, torch.zeros(min(processor.caches()[3], measuring._EVICTED) // 4).sum, clock)
        cells = [f"{2e-9 * products / times[n]:.0f}" if n in times else "" for n in _COLUMNS]
        print(f"| {shape} | {' | '.join(cells)} | {min(times, key=times.__getitem__)} |", flush=True)


if __name__ == "__main__":
    main()
