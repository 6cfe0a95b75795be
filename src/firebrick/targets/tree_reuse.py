"""Which results of a kernel may lie where one of its inputs lies."""

from __future__ import annotations

from firebrick.ir.index.expr import Expr
from firebrick.ir.kernels.schedule import Param
from firebrick.ir.kernels.tree import Loop, Stmt, computed
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Load, Store
from firebrick.ir.loops.values import walk


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
            alike = not source.written and DTYPES[source.dtype].nbytes == DTYPES[out.dtype].nbytes
            if alike and all(e is index and at <= when for at, e in loads.get(source.name, [])):
                pairs.append((k, j))
    return tuple(pairs)
