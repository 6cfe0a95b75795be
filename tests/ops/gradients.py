"""Gradients and second gradients of torch's operator database, compiled and eager, in float64 and float32.

    python -m tests.ops.gradients [--dtypes float64 float32] [--samples 1] [--kernels own|eager] [--part 3/14]

Each sample is a graph: its results, its gradients for random tangents, and gradients of these for arguments and
tangents. `--kernels eager` runs the traced graphs on eager kernels: traces, partitions and nodes without C++ compiles.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tests.ops.cases import Case, copies, operators
from tests.ops.compare import CONFIG, flat, float_difference, module_of
from torch.utils import _pytree as pytree

import firebrick
from firebrick import pipeline
from firebrick.backends.aten import run_joint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DTYPES = {"float64": torch.float64, "float32": torch.float32}
KERNELS = {"own": lambda gm, inputs: pipeline.compile_graph(gm, inputs, CONFIG), "eager": run_joint}
UNSTABLE = {
    "linalg.svd", "svd", "linalg.eig", "linalg.eigvals", "linalg.eigh", "linalg.qr", "qr", "svd_lowrank", "pca_lowrank",
}  # fmt: skip
"""Decompositions whose factors are only determined up to signs or order; a trace may ask LAPACK another way."""
EAGER = {
    "nn.functional.hardsigmoid": "eager's backward has 1/6 in float32, in float64 too",
    "ormqr": "eager's second gradients of a transposed matrix are not those of its contiguous copy",
}
"""Operators -> why eager mode is no reference."""


@dataclass
class Sums:
    """What became of cases: operators met, stages that are right, and name and reason of the others.

    left: no graph, and right by the whole of Firebrick, which leaves what is no graph to eager mode.
    """

    operators: set[str] = field(default_factory=set)
    first: int = 0
    second: int = 0
    left: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def show(self) -> str:
        """One line, and one for each failure."""
        line = (
            f"operators {len(self.operators)}  gradients {self.first}  second gradients {self.second}"
            f"  left to eager {len(self.left)}  failed {len(self.failed)}  wrong {len(self.wrong)}"
        )
        return "\n".join([line, *(f"  wrong {w}" for w in self.wrong), *(f"  failed {f}" for f in self.failed)])


def cases(op: Any, dtype: torch.dtype, count: int) -> Iterator[Case]:
    """The first samples that want gradients."""
    torch.manual_seed(0)
    for k, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=True)):
        if k == count:
            return
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        yield Case(f"sample {k}", op.op, tuple(leaves), spec)


def derivatives(case: Case, call: Callable[[list[torch.Tensor]], Any], twice: bool) -> list[list[Any]]:
    """Results, gradients, and gradients of gradients as far as there are any."""
    leaves = [leaf for leaf in case.leaves if isinstance(leaf, torch.Tensor)]
    pairs = zip(copies([leaf.detach() for leaf in leaves]), leaves, strict=True)
    tensors = [t.requires_grad_(leaf.requires_grad) for t, leaf in pairs]
    torch.manual_seed(0)
    results = flat(call(tensors))
    sloped = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    wrt = list({id(t): t for t in tensors if t.requires_grad}.values())
    torch.manual_seed(1)
    tangents = [torch.randn_like(r).requires_grad_() for r in sloped]
    first = torch.autograd.grad(sloped, wrt, [t.detach() for t in tangents], allow_unused=True, retain_graph=True)
    rows: list[list[Any]] = [results, list(first)]
    if not twice:
        return rows
    again = torch.autograd.grad(sloped, wrt, tangents, allow_unused=True, create_graph=True)
    sloped = [g for g in again if g is not None and g.requires_grad]
    torch.manual_seed(2)
    steps = [torch.randn(g.shape, dtype=g.dtype) for g in sloped]  # of a like one the strides would order the numbers
    second = torch.autograd.grad(sloped, [*wrt, *tangents], steps, allow_unused=True) if sloped else []
    return [*rows, [*again, *second]]


def in_float64(case: Case) -> Case:
    """The case in twice as many bits."""
    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}
    leaves = []
    for leaf in case.leaves:
        if isinstance(leaf, torch.Tensor) and leaf.dtype in wide:
            leaf = leaf.detach().to(wide[leaf.dtype]).requires_grad_(leaf.requires_grad)
        leaves.append(wide.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf)
    return Case(case.name, case.function, tuple(leaves), case.spec)


def difference(want: Any, got: Any, exact: Any) -> str:
    """How two gradients differ; empty if they don't."""
    if want is None and isinstance(got, torch.Tensor) and not got.requires_grad and not got.any():
        return ""  # behind a backward function of ours zeros come where eager's has none
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        return "" if want is got or not isinstance(want, torch.Tensor) and want == got else f"{got!r}, not {want!r}"
    if (want.dtype, want.shape, want.requires_grad) != (got.dtype, got.shape, got.requires_grad):
        return f"{got.dtype} {tuple(got.shape)} {got.requires_grad}, not {want.dtype} {tuple(want.shape)}"
    if want.layout != torch.strided or got.layout != torch.strided or not want.numel():
        return ""
    rows = [t.detach().resolve_conj().resolve_neg() if isinstance(t, torch.Tensor) else t for t in (want, got, exact)]
    if want.is_complex():
        rows = [torch.view_as_real(t) if isinstance(t, torch.Tensor) and t.is_complex() else None for t in rows]
    if not rows[0].is_floating_point():
        return "" if torch.equal(rows[0], rows[1]) else "other numbers"
    finite = rows[0][rows[0].isfinite()]
    scale = 8 * finite.abs().max().item() + 1e-3 if finite.numel() else 0.0
    return float_difference(*rows, scale, 0.0)


def check(name: str, op: Any, case: Case, compiler: Callable[..., Any], sums: Sums) -> None:
    """Compare one case."""
    twice = op.supports_gradgrad
    for depth in (twice, False):
        try:
            want = derivatives(case, case.call, depth)
            break
        except Exception:
            want = []
    if len(want) < 2 or not any(g is not None for g in want[1]):
        return
    try:
        wide = in_float64(case)
        exact = derivatives(wide, wide.call, len(want) > 2)
    except Exception:
        exact = want
    sums.operators.add(name)
    inputs = [t for t in case.leaves if isinstance(t, torch.Tensor)]
    try:
        gm, places = module_of([case], [len(want[0])])
        unique = {k: t for k, t in zip(places[0], inputs, strict=True)}
        compiled = compiler(gm, [unique[k] for k in range(len(unique))])

        def call(tensors: list[torch.Tensor]) -> Any:
            by_place = dict(zip(places[0], tensors, strict=True))
            return compiled(*[by_place[k] for k in range(len(by_place))])

        got, whole = derivatives(case, call, len(want) > 2), False
    except Exception as error:
        reason, whole = f"{name} {case.describe()}: {type(error).__name__}: {error}".split("\n")[0][:300], True
        try:
            compiled = firebrick.compile(case.call, options={"strict": False, "cache": False})
            got = derivatives(case, compiled, len(want) > 2)
        except Exception as second:
            sums.failed.append(f"{reason}; then {type(second).__name__}: {second}".split("\n")[0][:400])
            return
        finally:
            firebrick.reset()
    for stage, (w, g) in enumerate(zip(want, got, strict=True)):
        e = exact[stage] if stage < len(exact) and len(exact[stage]) == len(w) else w
        bad = [f"{i}: {d}" for i, (a, b, c) in enumerate(zip(w, g, e, strict=False)) if (d := difference(a, b, c))]
        if len(w) != len(g):
            bad = [f"{len(g)} of {len(w)}"]
        if bad:
            stages = "result", "gradient", "second gradient"
            sums.wrong.append(f"{name} {case.describe()}: {stages[stage]} {bad[0]}"[:400])
            return
    if whole:
        sums.left.append(reason)
        return
    sums.first += 1
    sums.second += len(want) > 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES))
    parser.add_argument("--samples", type=int, default=1, help="of each operator")
    parser.add_argument("--kernels", choices=[*KERNELS], default="own")
    parser.add_argument("--part", default="0/1", help="K/N: one of N parts of the operators, from 0 on")
    parser.add_argument("--only", nargs="*", help="these operators")
    parser.add_argument("--markdown", type=Path, help="append the sums to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    first, parts = map(int, options.part.split("/"))
    rows, bad = [], 0
    for dtype in options.dtypes:
        sums = Sums()
        for name, op in sorted(operators().items())[first::parts]:
            usable = op.supports_autograd and DTYPES[dtype] in op.supported_backward_dtypes("cpu")
            if not usable or name in UNSTABLE or name in EAGER or (options.only and name not in options.only):
                continue
            before = len(sums.wrong), len(sums.failed)
            for case in cases(op, DTYPES[dtype], options.samples):
                check(name, op, case, KERNELS[options.kernels], sums)
            for line in [*sums.wrong[before[0] :], *sums.failed[before[1] :]]:
                print(f"{dtype} {line}", flush=True)
        print(f"{dtype} {sums.show()}", flush=True)
        rows.append(f"| {dtype} | {options.kernels} | {sums.show().splitlines()[0]} |")
        bad += len(sums.wrong) + len(sums.failed)
    if options.markdown:
        with options.markdown.open("a") as out:
            out.write("\n".join(rows) + "\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
