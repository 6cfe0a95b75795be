"""Turns groups into kernels: forwards values from writers to readers, orders loops, names everything canonically.

Equal work on other buffers gives an equal tree, so it becomes one kernel that is launched again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firebrick.loops.ir import Axis, Load, Store
from firebrick.loops.schedule import Kernel, Launch, Param
from firebrick.loops.tree import Fold, Let, Loop, loops_of
from firebrick.scheduling.build import Statement, buffers_in_order, build_tree, rename
from firebrick.scheduling.order import plan_loops
from firebrick.scheduling.reuse import reusable
from firebrick.scheduling.values import Rewriter, walk
from firebrick.symbolic.expr import Var, var

if TYPE_CHECKING:
    from firebrick.loops.ir import Value
    from firebrick.loops.tree import Stmt
    from firebrick.scheduling.fusion import Group, Member
    from firebrick.scheduling.values import Table
    from firebrick.symbolic.expr import Expr
    from firebrick.targets.base import Target

__all__ = ["KernelSet"]


class KernelSet:
    """The kernels of one schedule, each made once."""

    def __init__(self, facts: Table, target: Target) -> None:
        self._facts = facts
        self._target = target
        self._known: dict[tuple[Any, ...], Kernel] = {}
        self._forms: dict[tuple[object, ...], tuple[str, tuple[int, ...], tuple[Expr, ...]]] = {}

    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels in order of first use."""
        return tuple(self._known.values())

    def launch(self, group: Group, live: set[str]) -> Launch:
        """The launch that does a group's work; `live` names the buffers that are read outside of it."""
        buffers, form = _form(group, live)
        found = self._forms.get(form)
        if found is None:
            found = self._forms[form] = self._make(group, live, buffers)
        kernel, order, sizes = found
        names = list(buffers)
        nodes = tuple([n.node.name for n in group.nodes])
        origins = dict.fromkeys(n.node.origin for n in group.nodes if n.node.origin)
        parts = tuple(dict.fromkeys([p for n in group.nodes for p in n.node.parts]))
        return Launch(kernel, tuple([names[k] for k in order]), sizes, nodes, ", ".join(origins), parts)

    def _make(
        self, group: Group, live: set[str], buffers: dict[str, int]
    ) -> tuple[str, tuple[int, ...], tuple[Expr, ...]]:
        """The kernel of a group of a new form: its name, which of the group's buffers it takes, and its sizes."""
        # What runs along a loop is started before it, so that loop is the innermost.
        along = {e for m in group.members for e in (m.subs[v] for v in m.facts.scans) if isinstance(e, Var)}
        outer = tuple([v for v in group.outer if v not in along])
        statements, names = _statements(group, live, outer)
        statements, plan = plan_loops(statements, outer, dict(group.sizes), self._target.vector_bytes)
        body = build_tree(statements, plan, self._facts)
        order, written = buffers_in_order(body)
        body, sizes = _canonical(body, {name: f"a{k}" for k, name in enumerate(order)})
        params = tuple([Param(f"a{k}", names[name][1], name in written) for k, name in enumerate(order)])
        key = (params, body)
        kernel = self._known.get(key)
        if kernel is None:
            symbols = tuple([f"s{k}" for k in range(len(sizes))])
            kernel = self._known[key] = Kernel(
                f"k{len(self._known)}_{_kind(body)}", params, body, symbols, reusable(params, body)
            )
        return kernel.name, tuple([buffers[names[n][0]] for n in order]), tuple(sizes)


def _form(group: Group, live: set[str]) -> tuple[dict[str, int], tuple[object, ...]]:
    """The buffers of a group, numbered, and what it computes in terms of those numbers and of numbered loops."""
    buffers: dict[str, int] = {}
    loops: dict[Var, int] = {}
    parts: list[object] = []
    for m in group.members:
        parts.append(m.facts.form)
        parts.append(tuple([buffers.setdefault(b, len(buffers)) for b in m.facts.buffers]))
        for e in m.subs.values():
            for atom, coeff in e.terms:
                if isinstance(atom, Var):
                    parts.append((loops.setdefault(atom, len(loops)), coeff))
                else:
                    parts.append(atom)
            parts.append(e.const)
    parts.append(tuple([loops.setdefault(v, len(loops)) for v in group.outer]))
    parts.append(tuple([group.sizes.get(v) for v in loops]))
    parts.append(tuple([b in live for b in buffers]))
    return buffers, tuple(parts)


def _statements(
    group: Group, live: set[str], outer: tuple[Var, ...]
) -> tuple[list[Statement], dict[str, tuple[str, str]]]:
    """Stores of a group in common variables, with loads of what the group itself makes replaced by the values.

    Also returns, for each name that buffers have in them (b0, b1...), the buffer and its dtype.
    """
    short: dict[str, str] = {}
    names: dict[str, tuple[str, str]] = {}
    made: dict[tuple[str, Expr], Value] = {}
    written: list[tuple[str, frozenset[Var], Store]] = []

    def name(buffer: str, dtype: str) -> str:
        found = short.get(buffer)
        if found is None:
            found = short[buffer] = f"b{len(short)}"
            names[found] = (buffer, dtype)
        return found

    def load(v: Load) -> Value:
        forwarded = made.get((v.buffer, v.index)) if not v.binds else None
        if forwarded is None:
            loaded.add(v.buffer)
        return forwarded or Load(v.dtype, name(v.buffer, v.dtype), v.index, v.binds)

    loaded: set[str] = set()
    for m in group.members:
        rewrite = Rewriter(_substitution(m), load, lambda axes, m=m: _axes(axes, m, group))  # type: ignore[misc]
        stored = []
        for s in m.nest.stores:
            value, index = rewrite(s.value), rewrite.index(s.index)
            binds: Any = tuple([(v, rewrite(b)) for v, b in s.binds])
            stored.append((s, value, index, binds))
        for s, value, index, binds in stored:
            if s.mode == "set" and not s.binds:
                made[s.buffer, index] = value
            if s.buffer in live:
                inner = frozenset(v for v in m.parallel if v not in outer)
                store = Store(name(s.buffer, value.dtype), index, value, s.mode, binds)
                written.append((s.buffer, inner, store))
    return [Statement(inner, store, buffer in loaded) for buffer, inner, store in written], names


def _substitution(m: Member) -> Any:
    subs = m.subs
    return lambda e: e.subs(subs)


def _axes(axes: tuple[Axis, ...], m: Member, group: Group) -> tuple[Axis, ...]:
    """Axes of a reduction in common variables, outer parts of split ones first."""
    out: list[Axis] = []
    for a in axes:
        e = m.subs[a.var]
        parts = [v for v in e.vars() if v in group.sizes]
        parts.sort(key=lambda v: _step(e, v), reverse=True)
        out.extend(Axis(v, group.sizes[v]) for v in parts)
    return tuple(out)


def _step(e: Expr, v: Var) -> int:
    stride = e.coeff(v)
    return 0 if stride is None else max(stride.lo, 1)


def _canonical(body: tuple[Stmt, ...], names: dict[str, str]) -> tuple[tuple[Stmt, ...], list[Expr]]:
    """Rename loop variables i0, i1..., variables bound to data d0, d1... and symbolic sizes s0, s1..."""
    subs: dict[Var, Expr] = {}
    for loop in loops_of(body):
        v = loop.axis.var
        if v not in subs:
            subs[v] = v  # placed in order; renamed below, once sizes have their names
    loops = list(subs)
    bound, symbols = _other_variables(body, set(loops))
    table: dict[Var, Expr] = {}
    for k, v in enumerate(symbols):
        table[v] = var(f"s{k}", v.lo, v.hi)
    for k, v in enumerate(bound):
        table[v] = var(f"d{k}", v.lo, v.hi, v.bound.subs(table) if v.bound is not None else None)
    for k, v in enumerate(loops):
        table[v] = var(f"i{k}", v.lo, v.hi, v.bound.subs(table) if v.bound is not None else None)
    return rename(body, names, table), list(symbols)


def _other_variables(body: tuple[Stmt, ...], loops: set[Var]) -> tuple[list[Var], list[Var]]:
    bound: dict[Var, None] = {}
    free: dict[Var, None] = {}

    def note(e: Expr) -> None:
        for v in sorted(e.vars(), key=lambda v: v.name):
            free[v] = None

    def visit(stmts: tuple[Stmt, ...]) -> None:
        for s in stmts:
            if isinstance(s, Loop):
                note(s.axis.size)
                visit(s.body)
                continue
            roots = [s.value] if isinstance(s, (Let, Fold, Store)) else []
            if isinstance(s, Store):
                note(s.index)
                bound.update((v, None) for v, _ in s.binds)
                roots += [b for _, b in s.binds]
            elif isinstance(s, Fold):
                note(s.position)
            for v in walk(roots):
                if isinstance(v, Load):
                    note(v.index)
                    bound.update((x, None) for x, _ in v.binds)
                elif hasattr(v, "expr"):
                    note(v.expr)

    visit(body)
    return list(bound), [v for v in free if v not in loops and v not in bound]


def _kind(body: tuple[Stmt, ...]) -> str:
    loops = list(loops_of(body))
    folds = any(isinstance(s, Fold) for loop in loops for s in loop.body)
    if not folds:
        return "map"
    return "rows" if any(isinstance(s, Store) for loop in loops for s in loop.body) else "reduce"
