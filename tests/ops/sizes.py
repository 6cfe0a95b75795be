"""How many operators are one graph with symbols for all sizes, and why the others are not; nothing is built or run.

    python -m tests.ops.sizes [--run] [NAME ...]

With `--run` each is compiled and called at three sizes of the same ranks, and its results are compared with eager's.
One sample of each operator goes through all stages up to code. An operator counts unless something needs a size as a
number, or the graph was captured with numbers.
"""

from __future__ import annotations

import argparse
import sys
import traceback
import types
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tests.ops.cases import Case, cases, operators
from tests.ops.compare import Expected, difference, expect, is_unwritten, nearer_than_eager, right_by_values, run_seeded

import firebrick
from firebrick import host, pipeline
from firebrick.ir.index.expr import as_expr
from firebrick.ir.index.sizes import Sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_OURS = ("firebrick", "_decomp", "_refs", "_prims")


class Looker:
    """Stands for the pipeline: runs its stages, and notes what keeps sizes from being symbols."""

    def __init__(self) -> None:
        self.graphs, self.why = 0, list[str]()

    def compile_graph(
        self, gm: Any, inputs: Sequence[Any], config: Any, passes: Sequence[Any] = ()
    ) -> Callable[..., Any]:
        """See `pipeline.compile_graph`."""

        def run() -> None:
            one = pipeline._Inference(gm, inputs, config, passes)
            schedule = one.stages().schedule
            host.generate(schedule, one.targets, config)

        self.graphs += 1
        sizes = pipeline._sizes_of(gm)
        if sizes is None:
            return gm.forward  # type: ignore[no-any-return]
        pipeline._with_symbols(gm, run)
        return gm.forward


def look(case: Case) -> list[str]:
    """What keeps a case from being one graph of symbols."""
    looker, ask = Looker(), Sizes.number
    before = dict(firebrick.stats()["reasons"].get("size as a number", {}))

    def number(sizes: Sizes, size: Any) -> int:
        if sizes.settled(as_expr(size)).terms:
            stack = [f for f in traceback.extract_stack()[:-1] if any(part in f.filename for part in _OURS)]
            at = next((f for f in reversed(stack) if not f.filename.endswith("sizes.py")), stack[-1])
            looker.why.append(f"{Path(at.filename).name}:{at.lineno} {at.line} asks for {size}")
        return ask(sizes, size)

    original, pipeline.compile_graph, Sizes.number = pipeline.compile_graph, looker.compile_graph, number
    try:
        with torch.no_grad():
            firebrick.compile(lambda *tensors: case.call(list(tensors)), dynamic=True, fullgraph=False)(*case.tensors())
    except Exception as error:
        looker.why.append(f"{type(error).__name__}: {str(error)[:150]}")
    finally:
        pipeline.compile_graph, Sizes.number = original, ask
        firebrick.reset()
    after = firebrick.stats()["reasons"].get("size as a number", {})
    looker.why += [f"refused: {text[:200]}" for text, n in after.items() if n > before.get(text, 0)]
    if looker.graphs > 1:
        looker.why.append(f"{looker.graphs} graphs")
    return looker.why


def varies(case: Case) -> bool:
    """Whether a case has a size that may be a symbol."""
    return any(n > 1 for leaf in case.leaves if isinstance(leaf, torch.Tensor) for n in leaf.shape)


NOTHING = "nothing to capture"
SCALES = ((5, 10, 20), (6, 11, 21), (8, 13, 24))
"""What the database's own lengths S, M and L are, one after the other."""


def _scaled(op: Any, scale: tuple[int, ...]) -> list[Case]:
    """An operator's plain cases with other lengths."""
    modules = [m for name, m in sys.modules.items() if name.startswith("torch.testing._internal")]
    names = [(m, n, v) for m in modules for n, v in zip("SML", scale, strict=True) if type(vars(m).get(n)) is int]
    before = [(m, n, vars(m)[n]) for m, n, _ in names]
    try:
        for module, name, value in names:
            setattr(module, name, value)
        return [c for c in cases(op, torch.float32, 0, 12) if c.name.startswith("plain")]
    except Exception:  # a sample that is made for one length
        return []
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _form(case: Case) -> Any:
    """What cases have in common that differ in sizes only."""
    kinds = [(x.dtype, x.dim(), x.layout) if isinstance(x, torch.Tensor) else type(x) for x in case.leaves]
    return case.name, case.spec, kinds


def _series(op: Any) -> list[tuple[Case, Expected]]:
    """Three calls of an operator that differ in sizes, each with what eager gives."""
    scaled = [{str(_form(c)): c for c in _scaled(op, scale)} for scale in SCALES]
    for form, first in scaled[0].items():
        series = [one[form] for one in scaled if form in one]
        shapes = [[x.shape for x in c.leaves if isinstance(x, torch.Tensor)] for c in series]
        if len(series) < len(SCALES) or not varies(first) or any(s == shapes[0] for s in shapes[1:]):
            continue
        expected = [expect(c) for c in series]
        if all(e is not None for e in expected):
            return list(zip(series, expected, strict=True))  # type: ignore[arg-type]
    return []


def _own(function: Any) -> Any:
    """A function of the database as one that is no library's."""
    if not isinstance(function, types.FunctionType):
        return function
    own = types.FunctionType(
        function.__code__,
        {**function.__globals__, "__name__": __name__},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    own.__kwdefaults__ = function.__kwdefaults__
    return own


def run(name: str, op: Any) -> tuple[str, str]:
    """Run an operator at three sizes: what kept it from one graph for the second and third, and what was wrong."""
    series = _series(op)
    if not series:
        return "no other sizes", ""
    function = _own(series[0][0].function)

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    compiled, why, wrong, reasons = firebrick.compile(call), "", "", firebrick.stats()["reasons"]
    for step, (case, expected) in enumerate(series):
        before, tensors = firebrick.stats()["counts"].get("graphs", 0), case.tensors()
        pairs = zip(series[0][0].leaves, case.leaves, strict=True)
        leaves = [one if isinstance(one, torch.nn.Module) else leaf for one, leaf in pairs]  # a module stays what it is
        try:
            outputs = run_seeded(Case(case.name, compiled, leaves, case.spec), tensors, 0)
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:200]}", ""
        found = difference(expected, outputs, tensors, is_unwritten(name, case))
        if found and not (right_by_values(case, outputs, tensors) or nearer_than_eager(case, expected, outputs)):
            wrong = f"{case.describe()}: {found}"
        graphs = firebrick.stats()["counts"].get("graphs", 0) - before
        if step == 0 and not graphs and firebrick.stats()["reasons"].get("break") == reasons.get("break"):
            return NOTHING, wrong
        if graphs > (step < 2) or (step == 0 and not graphs):
            why = f"{graphs} graphs at call {step}"
    if why:
        more = [
            text
            for kind in ("break", "size as a number", "recompile", "skip", "size that data decide")
            for text, n in firebrick.stats()["reasons"].get(kind, {}).items()
            if n > reasons.get(kind, {}).get(text, 0)
        ]
        why += ": " + " | ".join(text.partition("\n")[0][:160] for text in more)
    return why, wrong


def run_all(names: list[str]) -> None:
    """Run the operators, and tell what was not one graph, and what was wrong."""
    whys, wrongs, skipped, empty, done = Counter[str](), 0, 0, 0, 0
    for name, op in sorted(operators().items()):
        if name.startswith("jiterator") or (names and op.name not in names):
            continue  # made for GPUs
        why, wrong = run(name, op)
        firebrick.reset()
        skipped, done, wrongs = skipped + (why == "no other sizes"), done + 1, wrongs + bool(wrong)
        empty += why == NOTHING
        if why and why not in ("no other sizes", NOTHING):
            whys[why] += 1
            print(f"{name}: {why}", flush=True)
        if wrong:
            print(f"{name} WRONG: {wrong}", flush=True)
    ran = done - skipped - empty
    print(f"{done} operators, {skipped} without samples of other sizes, {empty} that give an argument back or a number: "
          f"no graph; {ran - whys.total()} of {ran} with one graph for all other sizes, {wrongs} wrong")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--run", action="store_true", help="compile and call each at three sizes")
    options = parser.parse_args()
    if options.run:
        warnings.simplefilter("ignore")
        run_all(options.names)
        return
    warnings.simplefilter("ignore")
    done, bad, whys = 0, 0, Counter[str]()
    for name, op in sorted(operators().items()):
        if options.names and op.name not in options.names:
            continue
        try:
            case = next((c for c in cases(op, torch.float32, 0, 8) if c.name.startswith("plain") and varies(c)), None)
        except Exception:
            continue
        if case is None:
            continue
        why = look(case)
        done, bad = done + 1, bad + bool(why)
        if why:
            whys[why[0][:100]] += 1
            print(f"{name}: {' | '.join(why)}", flush=True)
    print(f"{done} operators, {done - bad} with one graph")
    for text, count in whys.most_common(12):
        print(f"{count:4} {text}")


if __name__ == "__main__":
    main()
