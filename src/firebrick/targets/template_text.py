"""Writes a kernel by a target's templates: each iteration of the outer loops is a lane, and loops inside are loops.

for i0 in 4:                               def k0(a0, a1):
  for i1 in 8:                               x1 = a0[lane]
    a1[8*i0 + i1] = max(a0[8*i0 + i1], 0)    x2 = maximum(x1, 0.0)
                                             a1[lane] = x2
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from firebrick.errors import CompileError
from firebrick.ir.index.expr import ONE, ZERO, Expr, Var, as_expr, floordiv, mod, product, var
from firebrick.ir.kernels.schedule import Kernel
from firebrick.ir.kernels.tree import Acc, Fold, Let, Loop, Stmt, loops_of
from firebrick.ir.loops.program import Const, Index, Load, Masked, Op, Store, Value
from firebrick.ir.loops.scalar_ops import REDUCTIONS, reduction_identity

if TYPE_CHECKING:
    from firebrick.targets.base import Target


class Refused(CompileError):
    """A target has no text for something; the op is left to others."""


def kernel_text(kernel: Kernel, target: Target) -> str:
    """Text of a kernel.

    Raises:
        Refused: the target's tables lack something.
    """
    return _Writer(kernel, target).text()


def lane_loops(body: tuple[Stmt, ...]) -> list[Loop]:
    """The loops whose iterations are lanes: independent ones at the top that only hold each other and lets."""
    loops: list[Loop] = []
    while True:
        rest = [s for s in body if not isinstance(s, Let)]
        if len(rest) != 1 or not isinstance(rest[0], Loop) or _folds_outside(rest[0]):
            return loops
        loops.append(rest[0])
        body = rest[0].body


def _folds_outside(loop: Loop) -> bool:
    """Whether iterations fold into one accumulator. All other loops come from nests, so they are independent."""
    loops = list(loops_of((loop,)))
    own = {s.name for inner in loops for s in inner.body if isinstance(s, Acc)}
    return any(isinstance(s, Fold) and s.acc not in own for inner in loops for s in inner.body)


def lane_count(body: tuple[Stmt, ...]) -> Expr:
    """How many lanes a kernel of this body has; 1 for one that has to run in order."""
    return product([loop.axis.size for loop in lane_loops(body)])


class _Writer:
    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel, self.target, self.templates = kernel, target, target.templates
        self.lines: list[str] = []
        self.where: dict[Var, Expr] = {}
        self.scopes: list[dict[Value, str]] = [{}]
        self.lets: dict[str, str] = {}
        self.arrays: set[str] = set()
        self.accs: dict[str, Acc] = {}
        self.mask = self.templates.mask
        self.numbers = 0

    def text(self) -> str:
        """The whole kernel."""
        params = [self.filled("param", name=p.name, t=self.target.type(p.dtype)) for p in self.kernel.params]
        params += [self.filled("size", name=s) for s in self.kernel.sizes]
        loops, count = lane_loops(self.kernel.body), lane_count(self.kernel.body)
        lane = var("lane", 0, count.hi - 1)
        inner: Expr = ONE
        for loop in reversed(loops):
            place = floordiv(lane, inner) if loop is loops[0] else mod(floordiv(lane, inner), loop.axis.size)
            self.where[loop.axis.var] = ZERO if loop.axis.size is ONE else place
            inner = inner * loop.axis.size
        if self.templates.lanes:
            self.lines += self.templates.lanes.format(count=self.target.index(count)).splitlines()
        body = self.kernel.body
        for loop in loops:
            self.block([s for s in body if isinstance(s, Let)])
            body = loop.body
        self.block(body)
        return self.templates.kernel.format(name=self.kernel.name, params=", ".join(params), body=self.taken(0))

    # ------------------------------------------------------------ statements

    def block(self, body: Sequence[Stmt]) -> None:
        """Statements in order; neighbouring stores and folds happen after all their values are computed."""
        leaves: list[tuple[Store | Fold, str, Expr]] = []
        for s in body:
            if isinstance(s, (Store, Fold)):
                leaves.append((s, self.value(s.value), self.place(s) if isinstance(s, Store) else ZERO))
                continue
            self.finish(leaves)
            if isinstance(s, Let):
                self.lets[s.name] = self.value(s.value)
            elif isinstance(s, Loop):
                self.loop(s)
            elif isinstance(s, Acc):
                self.accs[s.name] = s
                first = self.target.constant(reduction_identity(s.reduction, s.dtype), s.dtype)
                self.write("start", name=s.name, value=first, t=self.target.type(s.dtype))
            else:
                self.arrays.add(s.name)
                self.write("scratch", name=s.name, size=s.size, t=self.target.type(s.dtype))
        self.finish(leaves)

    def finish(self, leaves: list[tuple[Store | Fold, str, Expr]]) -> None:
        """Write the stores and folds whose values are there."""
        for s, value, place in leaves:
            if isinstance(s, Store):
                self.store(s, value, place)
                continue
            acc = self.accs[s.acc]
            combine = REDUCTIONS[acc.reduction].combine
            if not combine:
                raise Refused(f"no {acc.reduction}")
            folded = self.target.function(combine, acc.dtype, [s.acc, value])
            self.write("assign", name=s.acc, value=folded, t=self.target.type(acc.dtype))
        leaves.clear()

    def store(self, s: Store, value: str, place: Expr) -> None:
        """One store."""
        fields = {"index": self.target.index(place), "value": value, "t": self.target.type(s.value.dtype)}
        if s.buffer in self.arrays:
            self.write("write", name=s.buffer, **fields)
        else:
            kind = s.mode if s.mode != "set" else "masked_store" if self.mask else "store"
            self.write(kind, buffer=s.buffer, mask=self.mask, **fields)

    def loop(self, loop: Loop) -> None:
        """A loop that every lane runs by itself."""
        name, start = loop.axis.var.name, len(self.lines)
        self.scopes.append({})
        self.block(loop.body)
        self.scopes.pop()
        body = self.taken(start)
        self.write("loop", var=name, size=self.target.index(self.located(loop.axis.size)), body=body)

    def taken(self, start: int) -> str:
        """Lines since `start`, indented."""
        body = textwrap.indent("\n".join(self.lines[start:]), "  ")
        del self.lines[start:]
        return body

    def write(self, template: str, **fields: object) -> None:
        """Add lines by a template."""
        self.lines += self.filled(template, **fields).splitlines()

    def filled(self, template: str, **fields: object) -> str:
        """A template's text."""
        text: str = getattr(self.templates, template)
        if not text:
            raise Refused(f"no {template.replace('_', ' ')}")
        return text.format(**fields)

    # ------------------------------------------------------------ values

    def value(self, v: Value) -> str:
        """The name or number that stands for a value."""
        for scope in reversed(self.scopes):
            if v in scope:
                return scope[v]
        text = self.make(v)
        if not isinstance(v, Const) and not text.isidentifier():
            text = self.assigned("x", text, v.dtype)
        self.scopes[-1][v] = text
        return text

    def assigned(self, letter: str, text: str, dtype: str) -> str:
        """A new name of a value."""
        self.numbers += 1
        self.write("assign", name=f"{letter}{self.numbers}", value=text, t=self.target.type(dtype))
        return f"{letter}{self.numbers}"

    def make(self, v: Value) -> str:
        """The text that computes a value."""
        target = self.target
        match v:
            case Const():
                return target.constant(v.value, v.dtype)
            case Index():
                return self.filled("cast", a=target.index(self.located(v.expr)), t=target.type(v.dtype), old="index")
            case Load():
                return self.load(v)
            case Op(name="to"):
                (a,) = v.args
                return self.filled("cast", a=self.value(a), t=target.type(v.dtype), old=target.type(a.dtype))
            case Op():
                args = [self.value(a) for a in v.args]
                return target.function(v.name, v.args[-1].dtype, args)
            case Masked():
                return self.masked(v)
        raise Refused(f"no {v.name} in the middle of a kernel")

    def load(self, v: Load) -> str:
        """A load from memory, or of what the kernel made."""
        if v.buffer in self.lets:
            return self.lets[v.buffer]
        if v.buffer in self.accs:
            return v.buffer
        index = self.target.index(self.place(v))
        if v.buffer in self.arrays:
            return self.filled("read", name=v.buffer, index=index)
        kind = "masked_load" if self.mask else "load"
        return self.filled(kind, buffer=v.buffer, index=index, mask=self.mask, t=self.target.type(v.dtype))

    def masked(self, v: Masked) -> str:
        """Loads under a mask happen only where it holds."""
        cond, outer = self.value(v.cond), self.mask
        if outer:
            self.mask = self.assigned("m", self.filled("both", a=outer, b=cond), "b8")
        else:
            self.mask = cond
        self.scopes.append({})
        body = self.value(v.body)
        self.scopes.pop()
        self.mask = outer
        return self.target.function("where", v.dtype, [cond, body, self.value(v.other)])

    def place(self, access: Load | Store) -> Expr:
        """The index of a load or store; variables that come from data are names of values."""
        variables = {v: var(self.named(b), v.lo, v.hi, v.bound) for v, b in access.binds}
        return self.located(access.index).subs(variables)

    def named(self, v: Value) -> str:
        """A name, also for a number."""
        text = self.value(v)
        if not text.isidentifier():
            text = self.scopes[-1][v] = self.assigned("x", text, v.dtype)
        return text

    def located(self, expr: Expr) -> Expr:
        """An index in terms of the lane."""
        return as_expr(expr).subs(self.where)
