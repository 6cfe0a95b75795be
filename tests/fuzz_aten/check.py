"""Runs programs eagerly, compiled and by the loop interpreter, and compares the three."""

from __future__ import annotations

import operator
import re
import traceback
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tests.fuzz_aten.programs import whole
from tests.ir import interp
from tests.ops.cases import copies
from tests.ops.compare import CONFIG, build, shares, whole_numbers_become
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from firebrick import pipeline
from firebrick.errors import LoweringError
from firebrick.runtime.bits import bits_of, toggled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.fuzz_aten.programs import Program

Run = tuple[list[Any], list[torch.Tensor]]
"""Results of a program, and its arguments afterwards."""

RELATIVE = {torch.float64: 1e-10, torch.bfloat16: 2e-2, torch.float16: 4e-3}


class _Wide(TorchDispatchMode):
    """What a program converts to a narrower dtype has that dtype's numbers, and what follows is float64 all the same."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_narrow = func is torch.ops.aten._to_copy.default and result.dtype.is_floating_point
        return result.double() if is_narrow else result


def eager(program: Program, wide: bool = False) -> Run:
    """Results, and the arguments afterwards."""
    arguments = copies(program.arguments)
    if wide:
        arguments = [a.double() if a.dtype.is_floating_point else a for a in arguments]
    with torch.no_grad(), whole_numbers_become(torch.float64 if wide else torch.float32):
        with _Wide() if wide else nullcontext():
            return list(program.function()(*arguments)), arguments


def graph_of(programs: list[Program], counts: list[int]) -> fx.GraphModule:
    """A graph that runs all programs."""
    graph = fx.Graph()
    places = [[graph.placeholder(f"p{k}_{j}") for j in range(len(p.arguments))] for k, p in enumerate(programs)]
    results: list[fx.Node] = []
    for program, nodes, count in zip(programs, places, counts, strict=True):
        node = graph.call_function(program.function(), tuple(nodes))
        results += [graph.call_function(operator.getitem, (node, k)) for k in range(count)]
    graph.output(tuple(results))
    return fx.GraphModule({}, graph)


def ours(programs: list[Program], counts: list[int]) -> dict[str, list[Run]]:
    """What the loop interpreter and our kernels make of programs that are compiled together."""
    gm = graph_of(programs, counts)
    with torch.no_grad():
        stages = pipeline.inspect_graph(gm, [t for p in programs for t in copies(p.arguments)], CONFIG)
        executable, _ = build(stages)
    bits = stages.aten.bits

    def interpret(inputs: list[torch.Tensor]) -> list[Any]:
        plain = [toggled(t, bits_of(t)) for t in inputs]
        results = interp.run(stages.program, plain, stages.aten.constants)
        return [toggled(r, bits[k]) if k in bits else r for k, r in enumerate(results)]

    ways: dict[str, Callable[[list[torch.Tensor]], Any]] = {"compiled": lambda inputs: executable(*inputs)}
    if torch.get_default_device().type == "cpu":
        ways = {"interpreted": interpret, **ways}
    return {name: _each(programs, counts, run) for name, run in ways.items()}


def _each(programs: list[Program], counts: list[int], run: Callable[[list[torch.Tensor]], Any]) -> list[Run]:
    given = [copies(p.arguments) for p in programs]
    with torch.no_grad():
        results = list(run([t for row in given for t in row]))
    found = []
    for row, count in zip(given, counts, strict=True):
        found.append((results[:count], row))
        results = results[count:]
    return found


def difference(program: Program, got: Run, aliases: bool = True) -> str:
    """How results differ from eager's; empty if they don't."""
    wanted, after = eager(program)
    outputs, mine = got
    if len(outputs) != len(wanted):
        return f"{len(outputs)} results, not {len(wanted)}"
    if aliases and shares(outputs, mine) != shares(wanted, after):
        return f"results share memory with {shares(outputs, mine)}, not {shares(wanted, after)}"
    # Most are within a rounding of eager's: only the others ask how far float64 says that they may be.
    if not any(differs(w, h, w, ()) for w, h in zip([*wanted, *after], [*outputs, *mine], strict=True)):
        return ""
    try:
        wide, wide_after = eager(program, wide=True)
    except Exception:
        wide, wide_after = wanted, after
    # The sign of a sum that cancels falls one way in each half of them: with four, it was the same in all too often.
    near = [_near(program, (wide, wide_after), seed) for seed in range(16)]
    moved, moved_after = (list(zip(*rows, strict=True)) for rows in zip(*near, strict=True))
    rows = [(f"result {k}", *r) for k, r in enumerate(zip(wanted, outputs, wide, moved, strict=True))]
    rows += [(f"argument {k}", *r) for k, r in enumerate(zip(after, mine, wide_after, moved_after, strict=True))]
    for name, want, have, ref, others in rows:
        found = differs(want, have, ref, others)
        if found and not off_on_cards(program, have, ref):
            return f"{name}: {found}"
    return ""


_RACE = re.compile(r"_foreach_mul_\(\[(\w+), \1\]")


def off_on_cards(program: Program, have: Any, ref: Any) -> bool:
    """Whether eager's own kernels for GPUs explain a difference: the entries of a list that are one tensor are written
    at once, hard functions of float64 have constants of float32, and one infinity makes a row of `rms_norm` NaN."""
    if torch.get_default_device().type == "cpu":
        return False
    text = program.describe()
    near = isinstance(have, torch.Tensor) and have.shape == ref.shape and have.is_floating_point()
    hard = "F.hard" in text and near and torch.allclose(have.double(), ref.double(), 1e-6, 1e-6, equal_nan=True)
    rows = (
        "F.rms_norm" in text and near and bool((ref.isnan() | torch.isclose(have.double(), ref.double(), 1e-4)).all())
    )
    return hard or rows or _RACE.search(text) is not None


_NORMS = frozenset({torch.ops.aten.native_layer_norm.default, torch.ops.aten.native_group_norm.default})


class _Rounding(TorchDispatchMode):
    """Each op sees its arguments moved by a rounding of a narrower dtype, up or down at random; whole numbers stay."""

    def __init__(self, eps: float, seed: int) -> None:
        super().__init__()
        self.eps = eps
        self.generator = torch.Generator("cpu").manual_seed(seed)

    def signs(self, t: torch.Tensor) -> torch.Tensor:
        """1 or -1 for each element. In here the CPU is the default device, whatever it is outside."""
        return (torch.randint(0, 2, t.shape, generator=self.generator) * 2 - 1).to(t.device)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(a.alias_info is not None for a in func._schema.arguments):  # a view, or it writes
            return func(*args, **kwargs)
        moved: dict[int, torch.Tensor] = {}

        def move(t: Any) -> Any:
            if not isinstance(t, torch.Tensor) or t.dtype != torch.float64 or whole(t):
                return t
            if id(t) not in moved:
                moved[id(t)] = torch.where(t.isfinite(), t * (1 + self.eps * self.signs(t)), t)
            return moved[id(t)]

        result = func(*pytree.tree_map(move, args), **pytree.tree_map(move, kwargs))
        if func not in _NORMS:
            return result
        # What a mean leaves of an equal number is rounding of the others, or of itself where there are none.
        sizes = [t.abs().nan_to_num(0, 0, 0).amax() for t in (result[0], result[1] * result[2]) if t.numel()]
        return result[0] + self.eps * self.signs(result[0]) * max(sizes), *result[1:]


def _near(program: Program, exact: Run, seed: int) -> Run:
    """What float64 makes of the program if each step rounds to the narrowest of its dtypes: how far results may move."""
    text = program.text()
    dtypes = {a.dtype for a in program.arguments} | {getattr(torch, n) for n in ("bfloat16", "float16") if n in text}
    eps = next((torch.finfo(d).eps for d in (torch.bfloat16, torch.float16) if d in dtypes), 2.0**-23)
    arguments = [a.double() if a.dtype.is_floating_point else a for a in copies(program.arguments)]
    try:
        with torch.no_grad(), whole_numbers_become(torch.float64), _Wide(), _Rounding(eps, seed):
            found = list(program.function()(*arguments)), arguments
    except Exception:
        return exact
    same = [a.shape for row in found for a in row] == [a.shape for row in exact for a in row]
    return found if same else exact


def differs(want: torch.Tensor, have: torch.Tensor, ref: torch.Tensor, moved: Sequence[torch.Tensor]) -> str:
    """Wrong type, shape or numbers; rounding in another order is allowed for.

    moved: what the reference `ref` becomes for arguments that differ by rounding.
    """
    if (want.dtype, want.shape) != (have.dtype, have.shape):
        return f"{have.dtype} {tuple(have.shape)}, not {want.dtype} {tuple(want.shape)}"
    if want.numel() == 0:
        return ""
    if not want.dtype.is_floating_point:
        bad = want != have
        if ref.shape == want.shape:  # of a number that rounding moves over a whole one, float64 knows the side
            bad &= ref != have
    else:
        w, h = want.double(), have.double()
        r = ref.double() if ref.shape == want.shape else w
        fine = w.isfinite() & r.isfinite()
        scale = r[fine].abs().max() if bool(fine.any()) else 0.0
        error = (w - r)[fine].abs().max() if bool(fine.any()) else 0.0
        shaky = torch.zeros_like(r)
        for m in moved:
            distance = (m.double() - r).abs() if m.shape == r.shape else shaky
            shaky = torch.where(distance.isfinite(), torch.maximum(shaky, distance), shaky)
        largest = shaky[fine].max() if bool(fine.any()) else 0.0
        rounding = RELATIVE.get(want.dtype, 2e-5) * (r.abs() + 0.1 * scale) + 1e-11
        # Roundings of one direction add up where those of both cancel.
        allowed = 4 * shaky + 8 * largest + 4 * error + rounding
        bad = fine & ~((h - r).abs() <= allowed) & ~((h - w).abs() <= allowed)
        # An element of which eager has little but rounding may be a zero that something is divided by.
        noise = torch.maximum(shaky, (w - r).abs()) > 0.5 * torch.maximum(w.abs(), r.abs())
        bad &= h.isfinite() | ~noise
        special = (w.isnan() & r.isnan() & ~h.isnan()) | (w.isinf() & (w == r) & (h != w))
        # The logarithm of a sum that is zero as long as nobody rounds otherwise is no infinity to insist on.
        for m in moved:
            special &= (m == r) | (m.isnan() & r.isnan()) if m.shape == r.shape else special
        bad |= special
    if not bool(bad.any()):
        return ""
    at = tuple(int(i) for i in bad.nonzero()[0])
    return f"{have[at].item()} at {at}, not {want[at].item()}; {int(bad.sum())} of {want.numel()}"


def check(programs: list[Program]) -> list[tuple[Program, str, str]]:
    """(program, kind, what) for each that is not the same: kind is "wrong", "failed" or "left"."""
    ready, counts = [], []
    for p in programs:
        try:
            outputs, _ = eager(p)
        except (RuntimeError, NameError):
            continue  # a line that eager refused had changed something before
        ready.append(p)
        counts.append(len(outputs))
    found: list[tuple[Program, str, str]] = []
    if ready:
        _check(ready, counts, found)
    return found


def refused_by_torch(error: BaseException) -> bool:
    """Whether one of torch's fake kernels refused what eager takes: the program is eager's to run then."""
    cause = error.__cause__
    frames = traceback.extract_tb(cause.__traceback__) if cause is not None else []
    return bool(frames) and str(Path(torch.__file__).parent) in frames[-1].filename


def shrink(program: Program, kind: str) -> Program:
    """The program without lines and results that it doesn't need to differ."""

    def differs_still(candidate: Program) -> bool:
        try:
            return any(found == kind for _, found, _ in check([candidate]))
        except Exception:
            return False

    for name in program.results[:-1]:
        fewer = replace(program, results=[r for r in program.results if r != name])
        if fewer.results and differs_still(fewer):
            program = fewer
    for k in reversed(range(len(program.lines))):
        fewer = replace(program, lines=[*program.lines[:k], *program.lines[k + 1 :]])
        if differs_still(fewer):
            program = fewer
    return program


def _check(programs: list[Program], counts: list[int], found: list[tuple[Program, str, str]]) -> None:
    try:
        ways = ours(programs, counts)
    except Exception as error:
        if len(programs) > 1:
            half = len(programs) // 2
            _check(programs[:half], counts[:half], found)
            _check(programs[half:], counts[half:], found)
            return
        kind = "left" if isinstance(error, LoweringError) or refused_by_torch(error) else "failed"
        found.append((programs[0], kind, f"{type(error).__name__}: {error}"[:400]))
        return
    for k, p in enumerate(programs):
        for name, results in ways.items():
            what = difference(p, results[k], aliases=name == "compiled")
            if what:
                if len(programs) > 1:
                    before = len(found)
                    _check([p], [counts[k]], found)
                    if len(found) > before:
                        break
                    name += f", only beside seeds {[q.seed for q in programs]}"
                found.append((p, "wrong", f"{name}: {what}"))
                break
