"""A kernel that is a loop tree, made of a group's work: loops ordered, arranged by the target, named canonically."""

from __future__ import annotations

from firebrick.ir.index.expr import Expr, Var, var
from firebrick.ir.kernels.groups import PlannedLaunch, Work
from firebrick.ir.kernels.schedule import Param
from firebrick.ir.kernels.tree import Fold, Loop, Stmt, all_statements, computed, loops_of
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Load, Store
from firebrick.ir.loops.values import Table, walk
from firebrick.targets.tree_building import buffers_in_order, build_tree, rename
from firebrick.targets.tree_order import Arrange, order_loops


def plan_tree(work: Work, facts: Table, arrange: Arrange) -> PlannedLaunch:
    """The one kernel that does all of the work.

    Args:
        work: statements in common variables.
        facts: of values, kept from group to group.
        arrange: what gives loops their kinds.
    """
    loops = order_loops(work)
    body = build_tree(loops.statements, arrange(loops), facts)
    dtypes, written = buffers_in_order(body)
    body, sizes = _canonical(body, {name: f"a{k}" for k, name in enumerate(dtypes)})
    params = tuple([Param(f"a{k}", dtype, name in written) for k, (name, dtype) in enumerate(dtypes.items())])
    return PlannedLaunch(_kind(body), params, body, tuple(dtypes), tuple(sizes), reuse=reusable(params, body))


def _canonical(body: tuple[Stmt, ...], names: dict[str, str]) -> tuple[tuple[Stmt, ...], list[Expr]]:
    """Rename loop variables i0, i1..., variables bound to data d0, d1... and symbolic sizes s0, s1..."""
    loops = list(dict.fromkeys(loop.axis.var for loop in loops_of(body)))
    bound, symbols = _other_variables(body, set(loops))
    table: dict[Var, Expr] = {v: var(f"s{k}", v.lo, v.hi) for k, v in enumerate(symbols)}
    for letter, variables in (("d", bound), ("i", loops)):
        for k, v in enumerate(variables):
            table[v] = var(f"{letter}{k}", v.lo, v.hi, v.bound.subs(table) if v.bound is not None else None)
    return rename(body, names, table), list(symbols)


def _other_variables(body: tuple[Stmt, ...], loops: set[Var]) -> tuple[list[Var], list[Var]]:
    bound: dict[Var, None] = {}
    free: dict[Var, None] = {}

    def note(e: Expr) -> None:
        for v in sorted(e.vars(), key=lambda v: v.name):
            free[v] = None

    for s in all_statements(body):
        if isinstance(s, Loop):
            note(s.axis.size)
        elif isinstance(s, Store):
            note(s.index)
            bound.update((v, None) for v, _ in s.binds)
        elif isinstance(s, Fold):
            note(s.position)
        for v in walk(computed(s)):
            if isinstance(v, Load):
                note(v.index)
                bound.update((x, None) for x, _ in v.binds)
            elif hasattr(v, "expr"):
                note(v.expr)
    return list(bound), [v for v in free if v not in loops and v not in bound]


def _kind(body: tuple[Stmt, ...]) -> str:
    inside = {type(s) for loop in loops_of(body) for s in loop.body}
    return "map" if Fold not in inside else "rows" if Store in inside else "reduce"


def reusable(params: tuple[Param, ...], body: tuple[Stmt, ...]) -> tuple[tuple[int, int], ...]:
    """Pairs (written parameter, read parameter) of which both may be the same memory.

    That is so when every element is read at the very address at which the result is stored, before or in the same
    block of statements as the store: a block computes all its values before it stores any.
    """
    loads: dict[str, list[tuple[int, Expr | None]]] = {}
    stores: dict[str, list[tuple[int, Expr | None]]] = {}
    clock = 0

    def visit(stmts: tuple[Stmt, ...]) -> None:
        nonlocal clock
        for s in stmts:
            if isinstance(s, Loop):
                clock += 1
                visit(s.body)
                clock += 1
                continue
            if isinstance(s, Store):
                stores.setdefault(s.buffer, []).append((clock, s.index if s.mode == "set" and not s.binds else None))
            for v in walk(computed(s)):
                if isinstance(v, Load):
                    loads.setdefault(v.buffer, []).append((clock, None if v.binds else v.index))

    visit(body)
    pairs = []
    for k, out in enumerate(params):
        written = stores.get(out.name, [])
        if len(written) != 1 or written[0][1] is None or out.name in loads:
            continue
        when, index = written[0]
        for j, source in enumerate(params):
            if source.written or DTYPES[source.dtype].nbytes != DTYPES[out.dtype].nbytes:
                continue
            if all(e is index and at <= when for at, e in loads.get(source.name, [])):
                pairs.append((k, j))
    return tuple(pairs)
