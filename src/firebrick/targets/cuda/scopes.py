"""Scopes of a kernel's text: what is known where, and indices in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from firebrick.ir.index.expr import Expr, FloorDiv, Max, Min, Mod, Mul, Var

INDENT = "    "


@dataclass(frozen=True, slots=True)
class Term:
    """Text of a value. dims: dimensions of the tile along which it varies. depth: of the scope where it is known.

    plain: it needs no parentheses. number: it is a number of Python, without a type.
    """

    text: str
    dims: frozenset[str] = frozenset()
    depth: int = 0
    plain: bool = True
    number: bool = False

    @property
    def operand(self) -> str:
        """The text as part of a larger one."""
        return self.text if self.plain else f"({self.text})"


@dataclass(slots=True)
class Scope:
    """Lines of a loop. last: what it ends with. keys: what is known as long as it is open."""

    head: str
    lines: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    keys: list[object] = field(default_factory=list)


def joined(parts: Sequence[Term]) -> Term:
    """What depends on all of some terms."""
    none: frozenset[str] = frozenset()
    return Term("", none.union(*(p.dims for p in parts)), max((p.depth for p in parts), default=0))


class Scopes:
    """Open scopes, the program's first, and what is known in them."""

    def __init__(self) -> None:
        self.scopes = [Scope("")]
        self.known: dict[object, Term] = {}
        self.vars: dict[Var, Term] = {}
        self.count = 0

    def line(self, text: str, depth: int = -1) -> None:
        """Write a line in the innermost scope, or that of `depth`."""
        self.scopes[depth].lines.append(text)

    def open(self, head: str) -> None:
        """Begin a loop."""
        self.scopes.append(Scope(head))

    def close(self) -> None:
        """End a loop: it stands in the scope around it, and what is known in it is forgotten."""
        done = self.scopes.pop()
        self.line(done.head)
        for line in [*done.lines, *done.last]:
            self.line(INDENT + line)
        for key in done.keys:
            self.known.pop(key, None)

    def fresh(self) -> str:
        """A name."""
        self.count += 1
        return f"v{self.count - 1}"

    def remember(self, key: object, term: Term) -> Term:
        """Know a value as long as its scope is open."""
        self.known[key] = term
        self.scopes[term.depth].keys.append(key)
        return term

    def named(self, key: object, term: Term, name: str = "") -> Term:
        """Give a value a name in the scope where it is known."""
        name = name or self.fresh()
        self.line(f"{name} = {term.text}", term.depth)
        return self.remember(key, Term(name, term.dims, term.depth))

    # ------------------------------------------------------------ indices

    def index(self, e: Expr) -> Term:
        """An index."""
        parts: list[Term] = []
        text = ""
        for atom, coeff in e.terms:
            a = self._atom(atom)
            parts.append(a)
            size = abs(coeff)
            body = a.operand if size == 1 else f"{size} * {a.operand}"
            sign = ("-" if coeff < 0 else "") if not text else (" - " if coeff < 0 else " + ")
            text += sign + body
        if e.const or not text:
            text += f"{' - ' if e.const < 0 else ' + '}{abs(e.const)}" if text else str(e.const)
        plain = (len(e.terms) == 1 and not e.const and e.terms[0][1] == 1) or not e.terms
        whole = joined(parts)
        return Term(text, whole.dims, whole.depth, plain, not e.terms)

    def _atom(self, e: Expr) -> Term:
        if isinstance(e, Var):
            name = self.vars.get(e)
            return name if name is not None else Term(e.name)  # a symbolic size
        key = e
        if key in self.known:
            return self.known[key]
        if isinstance(e, Mul):
            parts = [self._atom(f) if not f.is_const else self.index(f) for f in e.factors]
            whole = joined(parts)
            return Term(" * ".join(p.operand for p in parts), whole.dims, whole.depth, False)
        if isinstance(e, FloorDiv | Mod | Min | Max):
            args = [self.index(a) for a in e.args]
            whole = joined(args)
            if isinstance(e, Min | Max):
                function = "tl.minimum" if isinstance(e, Min) else "tl.maximum"
                text = args[0].text
                for a in args[1:]:
                    text = f"{function}({text}, {a.text})"
            elif e.args[0].lo < 0:
                function = "whole_floordiv" if isinstance(e, FloorDiv) else "whole_mod"
                text = f"{function}({args[0].text}, {args[1].text})"
            else:
                text = f"{args[0].operand} {'//' if isinstance(e, FloorDiv) else '%'} {args[1].operand}"
            return self.named(key, Term(text, whole.dims, whole.depth, False))
        return self.index(e)
