"""Many threads compile and call at once, some of them in forked children; every result is compared with plain Python.

python -m tests.threads.storm [--threads 32] [--calls 10000] [--forks 4]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
import traceback
import warnings

import torch

import firebrick

__all__ = ["fork_and_storm", "storm"]


class Net(torch.nn.Module):
    """Layers, a buffer, an attribute that changes, a branch on data."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(width, width) for _ in range(2)])
        self.register_buffer("shift", torch.ones(width))
        self.scale = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu() * self.scale
        if x.sum() > 0:
            return x + self.shift
        return x - self.shift


def _function(number: int):
    def function(x, items, flag=False):
        y = x * number
        for item in items:
            y = y + item
        if flag:
            raise ValueError(number)
        return y, [number, *items]

    return function


def _work(shared, seed: int, calls: int, errors: list[str], start: threading.Event) -> None:
    rng = random.Random(seed)  # noqa: S311  choices of a test
    start.wait()
    try:
        for i in range(calls):
            kind = rng.randrange(8)
            x = torch.full((2, 4), float(rng.randrange(-3, 4)))
            with torch.set_grad_enabled(rng.random() < 0.2):
                if kind == 0:  # compile something new, call it, let it die
                    plain = _function(rng.randrange(5))
                    _compare(firebrick.compile(plain, backend="eager"), plain, (x, [1, rng.randrange(3)]))
                elif kind == 1:
                    net = Net(4)
                    _compare(firebrick.compile(net, backend="eager"), net, (x,))
                elif kind == 2:
                    compiled, plain = shared["function"]
                    _compare(compiled, plain, (x, [rng.randrange(3)], rng.random() < 0.1))
                elif kind == 3:
                    compiled, plain = shared["function"]
                    with firebrick.run():
                        _compare(compiled, plain, (x, [i % 3]))
                else:
                    compiled, plain = shared["net"]
                    _compare(compiled, plain, (x,))
    except BaseException:  # noqa: BLE001  whatever it is, the test reports it
        errors.append(traceback.format_exc())


def _compare(compiled, plain, args) -> None:
    got, wanted = _outcome(compiled, args), _outcome(plain, args)
    if repr(got) != repr(wanted):
        raise AssertionError(f"{got} is not {wanted}")


def _outcome(function, args):
    try:
        result = function(*args)
    except ValueError as error:
        return error.args
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach(), result)


def storm(threads: int, calls: int, seed: int = 0) -> list[str]:
    """Run `calls` calls and compiles in all; tracebacks of what went wrong."""
    net, function = Net(4), _function(7)
    shared = {
        "net": (firebrick.compile(net, backend="eager"), net),
        "function": (firebrick.compile(function, backend="eager"), function),
    }
    errors: list[str] = []
    start = threading.Event()
    workers = [
        threading.Thread(target=_work, args=(shared, seed * 1000 + i, max(calls // threads, 1), errors, start))
        for i in range(threads)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for worker in workers:
            worker.start()
        start.set()
        for worker in workers:
            worker.join()
    return errors


def fork_and_storm(threads: int, calls: int, seed: int) -> int:
    """Do the same in a child that is forked here; its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            errors = storm(threads, calls, seed)
            sys.stderr.write("".join(errors[:2]))
            status = int(bool(errors))
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    """Storm here, then in children that are forked after it; 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--forks", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.perf_counter()
    errors = storm(options.threads, options.calls)
    statuses = [fork_and_storm(options.threads, options.calls // 4, seed) for seed in range(1, options.forks + 1)]
    sys.stderr.write("".join(errors[:3]))
    counts = firebrick.stats()["counts"]
    sys.stdout.write(
        f"{options.calls} calls in {options.threads} threads: {len(errors)} threads failed, {counts['graphs']} graphs; "
        f"children: {statuses}; {time.perf_counter() - begin:.0f} s\n"
    )
    return int(bool(errors) or any(statuses))


if __name__ == "__main__":
    sys.exit(main())
