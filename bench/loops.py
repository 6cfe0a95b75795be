"""Loops with a graph break inside: time a round, plain and compiled.

python bench/loops.py [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

import firebrick

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 50


def one_operation(x: Any) -> Any:
    for _ in range(ROUNDS):
        x = x.sin()
        if x.isnan().any():
            break
    return x


def eight_operations(x: Any) -> Any:
    for _ in range(ROUNDS):
        y = x.sin() + x.cos() * 2
        x = (y / (1 + y.abs())).tanh() * 0.5 + x * 0.5
        if x.isnan().any():
            break
    return x


def number_of_the_round(x: Any) -> Any:
    for i in range(ROUNDS):
        t = 1 - i / ROUNDS
        x = x * t + (x.sin() + x.cos()).tanh() * (1 - t)
        if x.isnan().any():
            break
    return x


def training(x: Any) -> Any:
    weight = torch.zeros(x.shape[-1], requires_grad=True)
    losses = []
    for _ in range(ROUNDS):
        loss = ((weight * x).tanh() - 0.5).square().mean()
        (grad,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight -= 0.1 * grad
        losses.append(loss.item())
    return losses


def seconds(call: Callable[[], Any], budget: float = 0.3) -> float:
    """Median seconds of calls for `budget` seconds."""
    times, end = [], time.perf_counter() + budget
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(function: Callable[[Any], Any], size: int, turns: int = 5) -> dict[str, float]:
    """Microseconds a round, medians of interleaved turns."""
    x = torch.linspace(-1, 1, size)
    compiled = firebrick.compile(function)
    start = time.perf_counter()
    compiled(x)
    compiled(x)
    cold = time.perf_counter() - start
    rows = [(seconds(lambda: function(x)), seconds(lambda: compiled(x))) for _ in range(turns)]
    plain, fast = (statistics.median(column) * 1e6 / ROUNDS for column in zip(*rows, strict=True))
    return {"plain": plain, "compiled": fast, "ratio": plain / fast, "cold seconds": cold}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {
        f"{function.__name__} {size}": measure(function, size)
        for function in (one_operation, eight_operations, number_of_the_round, training)
        for size in (16, 16384)
    }
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'microseconds a round':34}{'plain':>9}{'compiled':>10}{'ratio':>7}{'cold s':>8}")
    for name, row in found.items():
        print(f"{name:34}{row['plain']:9.1f}{row['compiled']:10.1f}{row['ratio']:7.2f}{row['cold seconds']:8.2f}")


if __name__ == "__main__":
    main()
