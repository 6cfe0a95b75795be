"""Whether operators refuse what eager refuses where a size that varies comes to be 0 or 1.

    python -m tests.ops.emptied [--cases N] [NAME ...]

Each of an operator's plain cases is captured once for each length in the shapes of its tensors, with a symbol for that
length in all of them, and is then called where it is 0, 1 and longer: a graph must raise where eager raises.
"""

from __future__ import annotations

import argparse
import warnings
from typing import TYPE_CHECKING, Any

import torch
from tests.ops.cases import Case, cases, operators
from tests.ops.compare import flat
from tests.ops.sizes import _own

import firebrick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CUT = 2
"""What tensors are longer outside of the graph than within: no symbol of an input is less than 1."""


def lengths_of(case: Case) -> list[int]:
    """The lengths in its tensors' shapes."""
    plain = [x for x in case.leaves if isinstance(x, torch.Tensor) and x.layout == torch.strided]
    return sorted({n for t in plain for n in t.shape if n > 1})


def of_length(t: torch.Tensor, old: int, new: int) -> torch.Tensor:
    """A tensor with dimensions of another length where they have the old one, and what it holds repeated."""
    for d, n in enumerate(t.shape):
        if n == old:
            t = t.index_select(d, torch.arange(new) % n)
    return t


def run(case: Case, length: int) -> Iterator[str]:
    """What differs from eager at other lengths."""
    function = _own(case.function)
    places = [
        tuple(d for d, n in enumerate(x.shape) if n == length)
        if isinstance(x, torch.Tensor) and x.layout == torch.strided
        else ()
        for x in case.leaves
    ]

    def call(*leaves: Any) -> Any:
        cut = []
        for leaf, dims in zip(leaves, places):
            for d in dims:
                leaf = leaf.narrow(d, 0, leaf.shape[d] - CUT)
            cut.append(leaf)
        args, kwargs = torch.utils._pytree.tree_unflatten(cut, case.spec)
        return function(*args, **kwargs)

    compiled = firebrick.compile(call)
    for n in (length, 0, 1, length + 3):
        leaves = []
        for leaf, dims in zip(case.leaves, places, strict=True):
            if dims:
                leaf = of_length(leaf, length, n + CUT).contiguous()
                leaf._dynamo_weak_dynamic_indices = set(dims)
            leaves.append(leaf)
        plain, found = told(call, leaves), told(compiled, leaves)
        if isinstance(plain, Exception) != isinstance(found, Exception):
            yield f"{case.describe()} with {n} for {length}: {short(plain)} | {short(found)}"
        elif not isinstance(plain, Exception):
            pairs = [(a, b) for a, b in zip(flat(plain), flat(found), strict=True) if isinstance(a, torch.Tensor)]
            bad = [
                (a, b) for a, b in pairs if a.shape != b.shape or not torch.allclose(a, b, 1e-3, 1e-3, equal_nan=True)
            ]
            if bad:
                yield f"{case.describe()} with {n} for {length}: {bad[0][0].flatten()[:5]} | {bad[0][1].flatten()[:5]}"
        elif n == length:
            return


def told(function: Callable[..., Any], leaves: list[Any]) -> Any:
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            return function(
                *[
                    x.clone() if isinstance(x, torch.Tensor) and not hasattr(x, "_dynamo_weak_dynamic_indices") else x
                    for x in leaves
                ]
            )
    except Exception as error:
        return error


def short(value: Any) -> str:
    return f"{type(value).__name__}: {str(value)[:150]}" if isinstance(value, Exception) else "runs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--cases", type=int, default=3, help="of each operator")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    done = 0
    for name, op in sorted(operators().items()):
        if options.names and op.name not in options.names or name.startswith("jiterator"):
            continue
        try:
            some = [c for c in cases(op, torch.float32, 0, 40) if c.name.startswith("plain")]
        except Exception:
            continue
        some = [c for c in some if lengths_of(c)]
        step = max(len(some) // options.cases, 1)
        for case in some[::step][: options.cases]:
            for length in lengths_of(case)[:3]:
                done += 1
                for line in run(case, length):
                    print(f"{name}: {line}", flush=True)
                firebrick.reset()
    print(f"{done} tried")


if __name__ == "__main__":
    main()
