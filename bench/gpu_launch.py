"""What a launch costs on one GPU: a call of one kernel and of a chain of 100, beside Triton's own and torch.compile.

Run: python bench/gpu_launch.py [--contenders ours default reduce-overhead]

"idle": how long a call keeps the host while the GPU is idle, the median; "busy": the time of a call among many, until
the GPU is done. Tensors are small: the work of a kernel is 2 us or less.
"""

import argparse
import statistics
import time
import warnings

import torch
import triton
import triton.language as tl

import firebrick

LENGTH = 100


@triton.jit
def add(x, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.load(x + at, at < n) + 1, at < n)


def chain(x: torch.Tensor) -> torch.Tensor:
    """Kernels that no compiler makes one: each folds what the one before it wrote along the other dimension."""
    for k in range(LENGTH):
        x = x.softmax(k % 2)
    return x


def triton_chain(x: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(count):
        y = torch.empty_like(x)
        add[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), block=1024)
        x = y
    return x


def idle(run, x, calls: int) -> float:
    seen = []
    for _ in range(calls):
        torch.cuda.synchronize()
        start = time.perf_counter()
        kept = run(x)
        seen.append(time.perf_counter() - start)
        del kept
    return statistics.median(seen) * 1e6


def busy(run, x, calls: int) -> float:
    seen = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run(x)
        torch.cuda.synchronize()
        seen.append((time.perf_counter() - start) / calls)
    return statistics.median(seen) * 1e6


def kernels(run, x) -> int:
    """How many a call starts."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        run(x)
        torch.cuda.synchronize()
    events = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not e.name.startswith(("Mem", "Activity")) for e in events)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contenders", nargs="+", default=["eager", "triton", "ours", "default", "reduce-overhead"])
    wanted = parser.parse_args().contenders
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    one, x = (lambda x: x + 1), torch.randn(128, 128, device="cuda")
    plain = {
        "eager": ("eager", one, chain),
        "triton": ("Triton's own launch", lambda x: triton_chain(x, 1), lambda x: triton_chain(x, LENGTH)),
    }
    rows = [row for name, row in plain.items() if name in wanted]
    kinds = (("step by step", False), ("default", None), ("as a graph", True))
    for name, options in kinds if "ours" in wanted else ():
        options = {} if options is None else {"graphs": options}
        rows.append((f"ours, {name}", *(firebrick.compile(f, options=options) for f in (one, chain))))
    for mode in {"default", "reduce-overhead"}.intersection(wanted):
        rows.append((f"torch.compile, {mode}", *(torch.compile(f, mode=mode) for f in (one, chain))))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}; us a call\n")
    print("| | one kernel, idle | busy | chain of 100, kernels | idle | busy |\n|---|---|---|---|---|---|")
    for name, single, many in rows:
        for _ in range(40):
            single(x), many(x)
        torch.cuda.synchronize()
        count = "" if "graph" in name or "reduce" in name else kernels(many, x)
        figures = idle(single, x, 200), busy(single, x, 1000), idle(many, x, 50), busy(many, x, 50)
        print(
            f"| {name} | {figures[0]:.1f} | {figures[1]:.1f} | {count} | {figures[2]:.0f} | {figures[3]:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
