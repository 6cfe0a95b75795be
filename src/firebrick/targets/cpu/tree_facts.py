"""Questions that code generation asks about loop trees: what varies in a loop, what folds where, how much it does."""

from __future__ import annotations

from collections.abc import Iterable

from firebrick.ir.index.expr import ONE, ZERO, Expr, Var
from firebrick.ir.kernels.tree import Acc, Fold, Let, Loop, Scratch, Stmt, all_statements, computed
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Const, Index, Load, Masked, Op, Value
from firebrick.ir.loops.scalar_ops import SCALAR_OPS
from firebrick.ir.loops.values import children_of, values_of
from firebrick.targets.cpu.plan import is_near


def roots(body: Iterable[Stmt]) -> list[Value]:
    """The values that the statements of a tree compute."""
    return [v for s in all_statements(body) for v in computed(s)]


def folds(body: Iterable[Stmt], acc: str) -> bool:
    """Whether something folds into an accumulator."""
    return any(isinstance(s, Fold) and s.acc == acc for s in all_statements(body))


def folding_loop(loop: Loop, acc: str) -> Loop | None:
    """The vector loop, `loop` itself or one in it, whose lanes are folded into an accumulator."""
    vectors = (s for s in all_statements((loop,)) if isinstance(s, Loop) and s.kind == "vector")
    return next((s for s in vectors if folds(s.body, acc)), None)


def weight(body: Iterable[Stmt]) -> int:
    """How many values a tree computes."""
    return sum(not isinstance(v, Const) for v in values_of(*roots(body)))


def price(body: Iterable[Stmt]) -> int:
    """About how many instructions a tree takes for a vector."""
    total = 0
    for v in values_of(*roots(body)):
        if isinstance(v, Op) and v.name == "to":
            total += 4 if {v.dtype, v.args[0].dtype} & {"bf16", "f16"} else 1
        else:
            total += SCALAR_OPS[v.name].cost if isinstance(v, Op) else not isinstance(v, Const)
    return total


def deepest_loops(body: Iterable[Stmt]) -> list[Expr]:
    """Sizes of the loops on the longest path into a tree."""
    best: list[Expr] = []
    for s in body:
        if isinstance(s, Loop):
            best = max(best, [s.axis.size, *deepest_loops(s.body)], key=len)
    return best


def narrow_place(bound: Value) -> Value:
    """The number of 32 bits that a place in memory is made of, if it is: lanes that read hold that."""
    if isinstance(bound, Op) and bound.name == "to" and bound.args[0].dtype == "i32":
        return bound.args[0]
    return bound


def widest(loop: Loop) -> int:
    """Bytes of the widest lanes in a loop; values that are the same in all lanes don't count."""
    inside = {s.name for s in all_statements(loop.body) if isinstance(s, (Let, Acc, Scratch))}
    lane = loop.axis.var
    memo: dict[Value, bool] = {}

    def varies(v: Value) -> bool:
        if v not in memo:  # lanes of an index are made as wide as they must be, however many there are
            below = not isinstance(v, Index) and any(varies(c) for c in children_of(v))
            memo[v] = below or (isinstance(v, Load) and (lane in v.index.vars() or v.buffer in inside))
        return memo[v]

    if any(isinstance(s, Fold) and lane in s.position.vars() for s in all_statements(loop.body)):
        return 8
    values = values_of(*roots(loop.body))  # arguments first, so that `varies` never goes deep
    return max([4, *(DTYPES[v.dtype].nbytes for v in values if varies(v))])


def transposed(loop: Loop, lane: Var) -> list[Load]:
    """Loads that walk memory along the serial `loop`, but not along the lanes around it nor a loop inside: a block of
    them is better loaded along the loop and turned."""
    out = []
    stack = list(roots(loop.body))
    seen: set[Value] = set()
    inner = [s.axis.var for s in all_statements(loop.body) if isinstance(s, Loop)]
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if isinstance(v, Load) and not v.binds:
            along, across = v.index.coeff(loop.axis.var), v.index.coeff(lane)
            far = across is not None and across is not ZERO and across is not ONE and not is_near(across)
            if along is ONE and far and all(v.index.coeff(var) is ZERO for var in inner):
                out.append(v)
        if not isinstance(v, Masked):
            stack.extend(children_of(v))
    return sorted(out, key=lambda v: (v.buffer, v.index.show()))
