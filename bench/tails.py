"""What kernels for many sizes lose to kernels for one, and how much of it is code for tails.

    python bench/tails.py

Each kernel is called at sizes that are multiples of 16: compiled for that size, for many, and for many without the code
for the rest of a vector, which a guard `x.shape[1] % 16 == 0` would save.
"""

from __future__ import annotations

import inspect
import textwrap
import time
from typing import TYPE_CHECKING, Any

import torch

import firebrick
from firebrick.targets.cpu import body

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROUNDS = 80


def sizes(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape) for shape in shapes]


ROWS = sizes((64, 16), (64, 32), (64, 48), (64, 128), (64, 512))
CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "pointwise": (lambda x: torch.tanh(x) * 2 + x.exp(), sizes((2, 16), (3, 32), (5, 64), (64, 96), (64, 256))),
    "softmax": (lambda x: x.softmax(-1), ROWS),
    "sum of rows": (lambda x: (x * x).sum(-1), ROWS),
    "layer norm": (lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]).relu(), ROWS),
    "sum of columns": (lambda x: (x * x).sum(1), sizes((4, 16, 32), (5, 32, 48), (8, 64, 64))),
    "transposed": (lambda x: (x.transpose(1, 2) + 1).contiguous(), sizes((2, 16, 32), (3, 32, 48), (4, 64, 64))),
    "scores": (
        lambda q: (q @ q.transpose(-1, -2)).softmax(-1),
        sizes((4, 16, 32), (5, 32, 32), (8, 64, 32), (8, 128, 32)),
    ),
}


def without_tails() -> Callable[..., Any]:
    """The writer of vector loops for sizes that are multiples of a vector."""
    text = textwrap.dedent(inspect.getsource(body.Body._vectors))
    names: dict[str, Any] = {}
    exec(text.replace("trips % width if trips is not None else None", "0"), vars(body), names)
    return names["_vectors"]  # type: ignore[no-any-return]


def least(functions: Sequence[Callable[..., Any]], x: torch.Tensor) -> list[float]:
    """Microseconds of each function, taken in turns."""
    times = [float("inf")] * len(functions)
    for function in functions:
        function(x), function(x)
    for _ in range(ROUNDS):
        for k, function in enumerate(functions):
            count = 1 if times[k] > 1 else max(1, int(2e-4 / times[k]))
            start = time.perf_counter()
            for _ in range(count):
                function(x)
            times[k] = min(times[k], (time.perf_counter() - start) / count)
    return [t * 1e6 for t in times]


def main() -> None:
    plain, ratios = body.Body._vectors, []
    for name, (function, inputs) in CASES.items():
        many = []
        for method in (plain, without_tails()):
            body.Body._vectors = method  # type: ignore[method-assign]
            many.append(firebrick.compile(function, options={"cache": False}))
            for x in inputs[:2]:
                many[-1](x)
        body.Body._vectors = plain  # type: ignore[method-assign]
        for x in inputs[1:]:
            alone = firebrick.compile(function, dynamic=False, options={"cache": False})
            one, tails, none = least([alone, *many], x)
            ratios.append((tails / none, tails / one))
            print(
                f"{name} {tuple(x.shape)}: us {one:.2f}, many sizes {tails:.2f}, without tails {none:.2f}", flush=True
            )
    for k, what in enumerate(("many sizes / without tails", "many sizes / one size")):
        column = sorted(ratio[k] for ratio in ratios)
        print(f"{what}: median {column[len(column) // 2]:.3f}, at most {column[-1]:.3f}")


if __name__ == "__main__":
    with torch.no_grad():
        main()
