"""C++ text of accumulators: how a reduction starts, folds one value or lanes of values, and ends as one value."""

from __future__ import annotations

from dataclasses import dataclass

from firebrick.ir.index.expr import var
from firebrick.ir.kernels.tree import Acc, Fold
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Index
from firebrick.ir.loops.scalar_ops import reduction_identity
from firebrick.targets.cpu.cpp_types import SCALAR, SIGNED, constant_text, lane_type
from firebrick.targets.cpu.lane_values import Values
from firebrick.targets.cpu.scalar_functions import COMBINE
from firebrick.targets.cpu.unit_writer import Lanes, Local, Text


@dataclass(slots=True)
class AccState:
    """How an accumulator is kept.

    code: its C++ name. lanes: width of its vectors, 0 for one value. copies: vectors side by side, an array.
    """

    acc: Acc
    code: str
    lanes: int
    copies: int = 1

    @property
    def positions(self) -> bool:
        """Whether it keeps a position beside the value."""
        return self.acc.reduction.startswith("arg")

    def at(self, copy: str = "") -> str:
        """C++ name of the position."""
        return f"{self.code}_at{copy}"

    def copied(self) -> list[str]:
        """Subscripts of the copies."""
        return [f"[{k}]" for k in range(self.copies)] if self.copies > 1 else [""]


def sums(state: AccState) -> bool:
    """Whether rounding errors add up in it."""
    return not state.acc.running and state.acc.reduction in ("sum", "prod") and DTYPES[state.acc.dtype].is_float


def declare(out: Values, state: AccState) -> None:
    """Define the accumulator with the value that a reduction starts from."""
    dtype = state.acc.dtype
    kind = out.unit.vector(lane_type(dtype), state.lanes) if state.lanes else SCALAR[dtype]
    _define(out, state, kind, state.code, _identity(out, state))
    if state.positions:
        kind = out.unit.vector("i64", state.lanes) if state.lanes else "int64_t"
        _define(out, state, kind, state.at(), f"{kind}_of(INT64_MAX)" if state.lanes else "INT64_MAX")


def _define(out: Values, state: AccState, kind: str, name: str, start: str) -> None:
    many = f"[{state.copies}] = {{{', '.join([start] * state.copies)}}}"
    out.line(f"{kind} {name}{many if state.copies > 1 else f' = {start}'};")


def _identity(out: Values, state: AccState) -> str:
    dtype = state.acc.dtype
    text = constant_text(reduction_identity(state.acc.reduction, dtype), dtype)
    if not state.lanes:
        return text
    vector = out.unit.vector(lane_type(dtype), state.lanes)
    return f"{vector}_of(-(int){text})" if dtype == "b8" else f"{vector}_of({text})"


def fold(out: Values, s: Fold, state: AccState, text: Text, copy: str) -> None:
    """Fold a value, or the lanes of one; `copy` subscripts the array of copies."""
    dtype = state.acc.dtype
    code = state.code + copy
    if state.lanes == 0:
        combine_one(out, state, code, state.at(copy), text.code, out.index(s.position))
        return
    lanes = out.lanes
    assert lanes is not None
    new = out.spread(text, dtype)
    if lanes.count is not None:
        new = _cut(out, new, state, lanes)
    new = out.named(dtype, new)
    if not state.positions:
        out.line(f"{code} = {out.op_text(COMBINE[state.acc.reduction], dtype, [code, new], True)};")
        return
    place = out.spread(out.value(Index("i64", s.position)), "i64")
    at, mask, wide = state.at(copy), out.fresh("m"), out.unit.vector("i64", lanes.width)
    narrow = out.unit.vector(SIGNED[DTYPES[dtype].nbytes], lanes.width)
    first = f"__builtin_convertvector({_ties(state, new, code)}, {wide}) & ({place} < {at})"
    out.line(f"const {wide} {mask} = __builtin_convertvector({_better(state, new, code)}, {wide}) | ({first});")
    out.line(f"{code} = __builtin_convertvector({mask}, {narrow}) ? {new} : {code};")
    out.line(f"{at} = {mask} ? {place} : {at};")


def combine_one(out: Values, state: AccState, code: str, at: str, new: str, position: str) -> None:
    """Fold one value, at a position, into one value."""
    dtype = state.acc.dtype
    if not state.positions:
        out.line(f"{code} = {out.op_text(COMBINE[state.acc.reduction], dtype, [code, new], False)};")
        return
    better = f"({_better(state, new, code)}) || (({_ties(state, new, code)}) && {position} < {at})"
    out.line(f"if ({better}) {{ {code} = {new}; {at} = {position}; }}")


def _cut(out: Values, new: str, state: AccState, lanes: Lanes) -> str:
    """Lanes beyond the count must not change the result."""
    signed = out.unit.vector(SIGNED[DTYPES[lane_type(state.acc.dtype)].nbytes], lanes.width)
    listed = ", ".join(str(k) for k in range(lanes.width))
    count = f"({SCALAR[signed.split('x')[0]]}){out.unit.hidden(str(lanes.count))}"
    return f"(({signed}{{{listed}}} < {count}) ? {new} : {_identity(out, state)})"


def add_partial(out: Values, total: str, part: str, state: AccState) -> None:
    """total = total + part, for each copy."""
    sign = "+" if state.acc.reduction == "sum" else "*"
    for k in state.copied():
        out.line(f"{total}{k} = {total}{k} {sign} {part}{k};")


def gather(out: Values, state: AccState) -> tuple[str, str]:
    """Make one value of lanes and copies, known from now on by the accumulator's name; returns names of the value and
    of its position."""
    name, dtype = state.acc.name, state.acc.dtype
    if state.positions:
        best = out.fresh("b")
        at = "&" if state.copies == 1 else ""
        out.line(f"int64_t {best}at;")
        call = f"{_best_of(out, state)}({at}{state.code}, {at}{state.at()}, {state.copies}, &{best}at)"
        out.line(f"const {SCALAR[dtype]} {best} = {call};")
        out.locals[name] = Local(f"{best}at", False)
        return best, f"{best}at"
    combine = COMBINE[state.acc.reduction]
    parts = [state.code + k for k in state.copied()]
    # Types of vectors follow the lanes of the moment; here there is no loop around.
    out.lanes = Lanes(var("lane"), state.lanes)
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [out.named(dtype, out.op_text(combine, dtype, [a, b], True)) for a, b in pairs]
    out.lanes = None
    # Lanes of b8 are whole numbers, which & and | combine as they do bools.
    text = out.op_text(combine, dtype, ["a", "b"], False)
    function = out.unit.fold(f"{combine}_{dtype}", text, lane_type(dtype), state.lanes)
    result = out.fresh("r")
    out.line(f"const {SCALAR[dtype]} {result} = {function}({parts[0]});")
    out.locals[name] = Local(result, False)
    return result, ""


_BEST = """\
static __attribute__((noinline)) {s} {name}(const {v}* x, const {i}* places, int n, int64_t* place) {{
  {v} a = x[0];
  {i} p = places[0];
  for (int c = 1; c < n; c++) {{
    const {v} y = x[c], best = a;
    const {i} here = places[c];
    const {i} m = __builtin_convertvector({better}, {i}) | (__builtin_convertvector({ties}, {i}) & (here < p));
    a = __builtin_convertvector(m, {narrow}) ? y : best;
    p = m ? here : p;
  }}
  {s} best = a[0];
  int64_t at = p[0];
  for (int k = 1; k < {w}; k++) {{
    const {s} y = a[k];
    const int64_t here = p[k];
    if (({better}) || (({ties}) && here < at)) {{ best = y; at = here; }}
  }}
  *place = at;
  return best;
}}
"""
"""The best of all lanes of n vectors, and its place."""


def _best_of(out: Values, state: AccState) -> str:
    """Name of the function that finds the best of some vectors' lanes."""
    dtype, lanes = state.acc.dtype, state.lanes
    vector, places = out.unit.vector(lane_type(dtype), lanes), out.unit.vector("i64", lanes)
    narrow = out.unit.vector(SIGNED[DTYPES[dtype].nbytes], lanes)
    name = f"fb_{state.acc.reduction}_{dtype}x{lanes}"
    better, ties = _better(state, "y", "best"), _ties(state, "y", "best")
    out.unit.helpers[name] = _BEST.format(
        name=name, s=SCALAR[dtype], v=vector, i=places, narrow=narrow, w=lanes, better=better, ties=ties
    )
    return name


def _better(state: AccState, new: str, old: str) -> str:
    sign = ">" if state.acc.reduction == "argmax" else "<"
    if DTYPES[state.acc.dtype].is_float:
        return f"({new} {sign} {old}) | (({new} != {new}) & ({old} == {old}))"
    return f"{new} {sign} {old}"


def _ties(state: AccState, new: str, old: str) -> str:
    if DTYPES[state.acc.dtype].is_float:
        return f"({new} == {old}) | (({new} != {new}) & ({old} != {old}))"
    return f"{new} == {old}"
