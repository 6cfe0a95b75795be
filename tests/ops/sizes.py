"""How many operators are one graph with symbols for all sizes, and why the others are not; nothing is built or run.

    python -m tests.ops.sizes [NAME ...]

One sample of each operator goes through all stages up to code. An operator counts unless something needs a size as a
number, or the graph was captured with numbers.
"""

from __future__ import annotations

import argparse
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tests.ops.cases import Case, cases, operators

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
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
