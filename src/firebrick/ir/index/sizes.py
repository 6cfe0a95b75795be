"""Sizes as symbols: what torch asks of a size that is an expression, and which facts the answers depend on.

A size that varies is a `torch.SymInt` around a `SizeNode`, which torch takes for one of its own: arithmetic makes
expressions of the index algebra, and whoever needs a number or a decision asks `Sizes`. It answers from the ranges of
the symbols where these tell, else from the values at hand, and keeps the answer as a fact that must hold of other
calls. An equation that becomes a fact replaces a symbol, so that all that is made later is simpler.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch

from firebrick.errors import DataDecides, SizesRefused
from firebrick.ir.index.expr import Expr, Mul, NeedsNumber, Var, as_expr, floordiv, maximum, minimum, mod, product, var
from firebrick.ir.index.index_text import parse

_MOST = (1 << 62) - 1
"""No size is larger."""
_ANY = 1009
"""What a size that data decide is taken to be, for choices that are right either way."""


class SizesDisagree(ValueError):
    """What was taken for true of sizes that data decide is not so in this call."""


@dataclass(frozen=True, slots=True)
class Fact:
    """`difference sign 0` is true, or is not; sign is "==" or "<". where: the line that asked."""

    sign: str
    difference: Expr
    truth: bool
    where: str = ""

    def check(self, values: Mapping[str, int]) -> None:
        """Look whether it holds of a call.

        Raises:
            SizesDisagree: it does not.
        """
        value = self.difference.evaluate(values)
        if (value == 0 if self.sign == "==" else value < 0) is not self.truth:
            text = f"{self.difference.show()} {self.sign} 0 was taken to be {self.truth}"
            raise SizesDisagree(f"{text}{f' at {self.where}' if self.where else ''}, with {dict(values)}")


_CERTAIN: Mapping[str, Callable[[Expr], bool | None]] = {
    "==": lambda d: not d.const if d.is_const else False if d.lo > 0 or d.hi < 0 or _indivisible(d) else None,
    "<": lambda d: True if d.hi < 0 else False if d.lo >= 0 else None,
}
"""Sign -> what is certain of the comparison with 0."""


def _reduced(d: Expr) -> Expr:
    """The expression without positive factors that all its terms have: of the same sign."""
    if not d.terms:
        return d
    common = list(_factors(d.terms[0][0])) if not d.const else []
    for atom, _ in d.terms[1:]:
        left = list(_factors(atom))
        common = [f for f in common if f in left and (left.remove(f) or True)]  # type: ignore[func-returns-value]
    scale = math.gcd(d.const, *[c for _, c in d.terms])
    common = [f for f in common if f.lo >= 1]
    if scale == 1 and not common:
        return d
    quotient: Expr = as_expr(d.const // scale)
    for atom, c in d.terms:
        factors = list(_factors(atom))
        for f in common:
            factors.remove(f)
        quotient = quotient + product(factors) * (c // scale)
    return quotient


def _factors(atom: Expr) -> tuple[Expr, ...]:
    return atom.factors if isinstance(atom, Mul) else (atom,)


def _indivisible(d: Expr) -> bool:
    """Whether all terms have a factor that the constant lacks, so that the sum can't be 0."""
    return d.const % math.gcd(*[c for _, c in d.terms]) != 0


_SMALL: Mapping[str, tuple[int, ...]] = {"ones": (1,), "layout": (0, 1), "generally": (0, 1)}
"""Way of asking -> sizes that others are taken to be larger than."""


@cache
def _larger(v: Var, least: int) -> Var:
    return var(v.name, max(v.lo, least), max(v.hi, least))


def _least(e: Expr, least: int) -> Expr:
    """The expression of symbols that are no smaller than that."""
    return e.subs({v: _larger(v, least) for v in e.vars() if v.lo < least})


class Sizes:
    """The symbols of one capture: their values in the call at hand, and what was decided about them.

    how: how questions are answered that do not say it, see `ask`. `assumed` keeps what was answered for larger sizes
    than may come, which is right wherever a dimension of one element differs from others in nothing but strides.
    frozen: the guards are written; nothing may be decided any more.
    """

    def __init__(self) -> None:
        self.symbols: dict[str, Var] = {}
        self.hints: dict[str, int] = {}
        self.data: set[Var] = set()  # symbols that no input has: the data of tensors decide them
        self.nonempty: dict[Expr, None] = {}  # of data, and taken to be 1 or more: other code runs where they are not
        self.takes_data = False  # whether there may be such
        self.guesses = False  # whether the program's questions, if they are empty, may be answered with no
        self.guessed: set[Expr] = set()  # what was so taken to be another number than 0, or larger
        self.disproved = 0  # calls that did not agree with that
        self.undecided: Callable[[str], Exception] = DataDecides
        self.facts: dict[tuple[str, Expr], Fact] = {}
        self.assumed: dict[tuple[str, Expr], bool] = {}
        self.replaced: dict[Var, Expr] = {}
        self.version = 0
        self.how = "exactly"
        self.frozen = False
        self.shown = False  # whether one leaves the graph as an integer
        self.where: Callable[[], str] = str

    # ---- symbols

    def symbol(self, hint: int, lo: int = 1, hi: int = _MOST) -> Var:
        """A new symbol."""
        size_var = var(f"s{len(self.hints)}", lo, hi)
        self.symbols[size_var.name], self.hints[size_var.name] = size_var, hint
        return size_var

    def from_data(self, lo: int = 0, hi: int = _MOST) -> Var:
        """A new symbol for what only the data of tensors tell; its value at hand is any."""
        symbol = var(f"u{len(self.hints)}", lo, hi)
        self.symbols[symbol.name], self.hints[symbol.name] = symbol, max(min(_ANY + 2 * len(self.data), hi), lo)
        self.data.add(symbol)
        return symbol

    def of_data(self, e: Expr | int) -> bool:
        """Whether data decide an expression."""
        return bool(self.data) and isinstance(e, Expr) and not self.data.isdisjoint(e.vars())

    def bounded(self, index: Expr | int, size: Expr | int) -> Expr | None:
        """An end of a slice as a place in a dimension, without a question; None where questions may be asked."""
        index, size = self.settled(as_expr(index)), self.settled(as_expr(size))
        if not self.of_data(index - size):
            return None
        if not self.holds("<=", 0, index):
            index = index + size * minimum(maximum(-index, 0), 1)
        low = index if self.holds("<=", 0, index) else maximum(index, 0)
        return low if self.holds("<=", low, size) else minimum(low, size)

    def holds(self, sign: str, left: Expr | int, right: Expr | int) -> bool:
        """Whether `left sign right` is certain, or a fact."""
        base, swap, negated = _SIGNS[sign]
        d = _reduced(self.settled(as_expr(right) - left if swap else as_expr(left) - right))
        fact = self.facts.get((base, d))
        truth = _CERTAIN[base](d) if fact is None else fact.truth
        return truth is not None and truth is not negated

    def size(self, value: Expr | int) -> Any:
        """What stands for a size in the shape of a tensor: a SymInt, or the number that it is."""
        value = self.settled(as_expr(value))
        return torch.SymInt(SizeNode(value, self)) if value.terms else value.const

    def settled(self, e: Expr) -> Expr:
        """The expression by what is known now."""
        return e.subs(self.replaced) if self.replaced and e.terms else e

    def hint(self, e: Expr | int) -> int:
        """The value in the call at hand."""
        return e.evaluate(self.hints) if isinstance(e, Expr) else e

    # ---- questions

    def ask(self, sign: str, left: Expr | int, right: Expr | int, how: str = "") -> bool:
        """Whether `left sign right`; what no range tells becomes a fact.

        how: "exactly"; "ones": equality with 1 is answered as for large sizes; "layout": that with 0 too; "generally":
        and all else as for sizes of 2 and more, if that is certain then; "certainly": no, unless it is certain;
        "expected": yes, where anything else is an error, which for data is looked for in each call;
        "loosely": sizes are different unless it is certain that they are not, and which is larger is told from the
        values at hand, for choices that are right either way.
        """
        base, swap, negated = _SIGNS[sign]
        d = _reduced(self.settled(as_expr(right) - left if swap else as_expr(left) - right))
        answer = _CERTAIN[base](d)
        how = how or self.how
        if answer is None and how == "certainly":
            return False
        if answer is None and how == "loosely":
            answer = base == "<" and self.hint(d) < 0
        if answer is None and how in _SMALL:
            if base == "==" and any(type(n) is int and n in _SMALL[how] for n in (size_of(left), size_of(right))):
                answer = _CERTAIN[base](_least(d, 1 << 20))
            elif how == "generally" or base == "==":
                answer = _CERTAIN[base](_least(d, 2))
            if answer is not None:
                self.assumed[base, d] = answer
        if answer is None and how in _SMALL and self.of_data(d):
            answer = self._of_nonempty(base, d)
        if answer is None and how == "expected" and self.of_data(d):
            self._decide(base, d, not negated)
        return (self._decide(base, d) if answer is None else answer) is not negated

    def guess(self, sign: str, left: Expr | int, right: Expr | int) -> bool | None:
        """The answer where what data decide is not empty, which each call looks for; None where that does not tell."""
        base, swap, negated = _SIGNS[sign]
        d = _reduced(self.settled(as_expr(right) - left if swap else as_expr(left) - right))
        symbols = [v for v in d.vars() if v in self.data]
        answer = _CERTAIN[base](d.subs({v: _larger(v, 1) for v in symbols}))
        if not self.guesses or answer is None or any(v.lo < 0 for v in symbols):
            return None
        self.guessed.add(d)
        return self._decide(base, d, answer) is not negated

    def guess_number(self, size: Expr, number: int) -> bool:
        """Whether a size that data decide is guessed to be a number."""
        if self.guesses:
            self.guessed.add(_reduced(self.settled(size) - number))
        return self.guesses and self.ask("==", size, number, "expected")

    def _of_nonempty(self, base: str, d: Expr) -> bool | None:
        """The answer where what data decide is 1 or more; numbers that may be negative are an error then."""
        atoms = [atom for atom, _ in d.terms if self.of_data(atom)]
        for atom in atoms:
            if atom.lo < 0:
                self.ask("<=", 0, atom, "expected")
        d = self.settled(d)
        atoms = [atom for atom, _ in d.terms if self.of_data(atom)]
        larger = {atom: var(f"n{i}", max(atom.lo, 1), max(atom.hi, 1)) for i, atom in enumerate(atoms)}
        answer = _CERTAIN[base](sum((larger.get(a, a) * c for a, c in d.terms), as_expr(d.const)))
        if answer is None and atoms:  # all of it, then
            atoms = [d - d.const]
            answer = _CERTAIN[base](var("n", 1, max(atoms[0].hi, 1)) + d.const)
        if answer is not None:
            self.nonempty.update(dict.fromkeys(atoms))
        return answer

    @contextmanager
    def asked(self, how: str) -> Iterator[None]:
        """Answer questions so for a while."""
        before, self.how = self.how, how
        try:
            yield
        finally:
            self.how = before

    def number(self, e: Expr | int) -> int:
        """The number that an expression is, from here on."""
        e = self.settled(as_expr(e))
        if e.terms:
            self._decide("==", e - self.hint(e))
        return self.hint(e)

    def fits(self, e: Expr) -> bool:
        """Whether an expression fits into 64 bits, for sizes up to 2^31 where ranges don't tell; else it is fixed."""
        usual = e.subs({v: var(v.name, v.lo, 1 << 31) for v in e.vars() if 0 <= v.lo < 1 << 31 < v.hi})
        ends = ((usual.hi, e), (-usual.lo, -e))
        if abs(self.hint(e)) <= _MOST and all(n <= _MOST or self.ask("<=", x, _MOST, "expected") for n, x in ends):
            return True
        self.fix(e)
        return False

    def fix(self, e: Expr) -> None:
        """Let every symbol of an expression be the number that it is now."""
        for v in sorted(self.settled(e).vars(), key=lambda v: v.name):
            self.number(v)

    def are_open(self) -> bool:
        """Whether there are symbols that no number has replaced."""
        return any(self.settled(symbol).terms for symbol in self.symbols.values())

    def key(self) -> str:
        """What a compile depends on, beside the shapes: ranges and facts, not the values at hand."""
        ranges = [f"{v.name} {v.lo}..{v.hi}" for v in map(self.settled, self.symbols.values()) if isinstance(v, Var)]
        return "\n".join([*ranges, *(f"{f.difference} {f.sign} 0 {f.truth}" for f in self.facts.values())])

    def enforce(self) -> None:
        """Make facts of what was assumed.

        Raises:
            NeedsNumber: one does not hold in this call, which is known from here on.
        """
        for (sign, d), truth in [*self.assumed.items()]:
            del self.assumed[sign, d]
            d = self.settled(d)
            if self.of_data(d) and not (sign == "==" and truth):  # calls where it does not hold run other code
                self.nonempty[-d if truth else d + 1 if sign == "<" else d if d.hi + d.lo > 0 else -d] = None
            elif self.ask(sign, d, 0, "exactly") is not truth:
                raise NeedsNumber(d)

    def _decide(self, sign: str, d: Expr, truth: bool | None = None) -> bool:
        if (sign, d) not in self.facts:
            if self.frozen:
                raise SizesRefused(f"whether {d} {sign} 0 is asked when the guards are written")
            if truth is None and self.of_data(d):
                raise self.undecided(f"whether {d.show()} {sign} 0 is asked")
            at_hand = self.hint(d) == 0 if sign == "==" else self.hint(d) < 0
            self.add(Fact(sign, d, at_hand if truth is None else truth, self.where()))
        return self.facts[sign, d].truth

    def add(self, fact: Fact) -> None:
        """Take a fact for true, and draw conclusions."""
        self.facts[fact.sign, fact.difference] = fact
        d = fact.difference
        if fact.sign == "==" and fact.truth:
            for atom, factor in sorted(d.terms, key=lambda term: term[0] not in self.data):
                if isinstance(atom, Var) and (abs(factor) == 1 or len(d.terms) == 1):
                    rest = d - atom * factor
                    if atom not in rest.vars() and (atom in self.data or not self.of_data(rest)):
                        self._replace(atom, floordiv(-rest, factor))
                        return
        elif len(d.terms) == 1 and isinstance(d.terms[0][0], Var):
            v, factor = d.terms[0]
            assert isinstance(v, Var)
            lo, hi = _narrowed(v, factor, d.const, fact)
            if (lo, hi) != (v.lo, v.hi):
                self._replace(v, var(v.name, lo, hi) if lo < hi else as_expr(lo))

    def _replace(self, v: Var, by: Expr) -> None:
        self.version += 1
        if v in self.data and isinstance(by, Var) and by.name == v.name:
            self.data.add(by)
        self.replaced = {old: e.subs({v: by}) for old, e in self.replaced.items()}
        self.replaced[v] = by

    # ---- facts as text

    def to_json(self, since: int = 0) -> list[list[Any]]:
        """The facts behind the first `since`."""
        return [[f.sign, f.difference.show(), f.truth, f.where] for f in list(self.facts.values())[since:]]

    def take(self, rows: Iterable[list[Any]]) -> bool:
        """Take facts over that another compile of the same graph has found; False if one does not hold here."""
        facts = [(sign, parse(text, self.symbols), truth) for sign, text, truth, _ in rows]
        if any(
            not self.of_data(d) and (self.hint(d) == 0 if sign == "==" else self.hint(d) < 0) != truth
            for sign, d, truth in facts
        ):
            return False
        return all(
            self.ask(sign if truth else _CONTRARY[sign], d, 0, "expected" if self.of_data(d) else "exactly")
            for sign, d, truth in facts
        )

    def of_calls(self) -> list[Fact]:
        """Facts about what data decide: each call has to look whether they hold."""
        return [fact for fact in self.facts.values() if self.of_data(fact.difference)]


_SIGNS: Mapping[str, tuple[str, bool, bool]] = {
    "==": ("==", False, False), "!=": ("==", False, True), "<": ("<", False, False), ">=": ("<", False, True),
    ">": ("<", True, False), "<=": ("<", True, True),
}  # fmt: skip
"""Comparison -> the base one, whether the sides are exchanged, whether it is the contrary."""


def _narrowed(v: Var, factor: int, shift: int, fact: Fact) -> tuple[int, int]:
    """The range of a symbol for which `factor*v + shift < 0` (or not), or is not 0."""
    if fact.sign == "==":
        at = -shift // factor
        return (v.lo + 1, v.hi) if at == v.lo else (v.lo, v.hi - 1) if at == v.hi else (v.lo, v.hi)
    if fact.truth:  # factor*v <= -shift - 1
        limit = (-shift - 1) // factor if factor > 0 else -((-shift - 1) // -factor)
    else:
        limit = -(shift // factor) if factor > 0 else shift // -factor
    upper = (factor > 0) is fact.truth
    return (v.lo, min(v.hi, limit)) if upper else (max(v.lo, limit), v.hi)


# ---------------------------------------------------------------- what torch sees


class _Node:
    """What torch asks of any symbolic value; `_ANSWERS` has what takes no more than a line."""

    __slots__ = ()


class SizeNode(_Node):
    """A size that is an expression."""

    __slots__ = ("expr", "sizes")

    def __init__(self, expr: Expr, sizes: Sizes) -> None:
        self.expr, self.sizes = expr, sizes

    def __repr__(self) -> str:
        return self.sizes.settled(self.expr).show()

    @property
    def hint(self) -> int:
        """The value in the call at hand."""
        return self.sizes.hint(self.expr)

    def guard_int(self, *_: Any) -> int:
        """The number, which it must be in other calls too."""
        return self.sizes.number(self.expr)

    def _derived_size(self, function: Callable[..., Expr], *others: SizeNode) -> SizeNode:
        return SizeNode(self.sizes.settled(function(self.expr, *[o.expr for o in others])), self.sizes)


Formula: TypeAlias = "Expr | float | tuple[Any, ...]"
"""An expression as a float, a float, or the sign of an operation and two formulas."""

FLOAT_SIGNS: Mapping[str, tuple[str, Callable[[float, float], float]]] = {
    "add": ("add", operator.add),
    "sub": ("sub", operator.sub),
    "mul": ("mul", operator.mul),
    **dict.fromkeys(("truediv", "float_truediv", "int_truediv"), ("div", operator.truediv)),
    **dict.fromkeys(("pow", "float_pow"), ("pow", math.pow)),
}
"""torch's name of an operation of floats -> that in loops, and what it does."""


def float_of(formula: Formula, number: Callable[[Expr], int]) -> float:
    """The value of a formula, by those of its expressions."""
    if isinstance(formula, tuple):
        sign, *parts = formula
        return FLOAT_SIGNS[sign][1](*[float_of(part, number) for part in parts])
    return float(number(formula) if isinstance(formula, Expr) else formula)


def exprs_in(formula: Formula) -> Iterator[Expr]:
    """The expressions in a formula."""
    if isinstance(formula, tuple):
        for part in formula[1:]:
            yield from exprs_in(part)
    elif isinstance(formula, Expr):
        yield formula


class FloatNode(_Node):
    """A float that is computed of sizes."""

    __slots__ = ("formula", "sizes")

    def __init__(self, formula: Formula, sizes: Sizes) -> None:
        self.formula, self.sizes = formula, sizes

    def __repr__(self) -> str:
        return repr(float_of(self.formula, self.sizes.hint))

    def settled(self) -> FloatNode | float:
        """The float by what is known now."""

        def settle(formula: Formula) -> Formula:
            if isinstance(formula, tuple):
                return (formula[0], *map(settle, formula[1:]))
            return self.sizes.settled(formula) if isinstance(formula, Expr) else formula

        formula = settle(self.formula)
        is_settled = not any(e.terms for e in exprs_in(formula))
        return float_of(formula, self.sizes.hint) if is_settled else FloatNode(formula, self.sizes)

    @property
    def hint(self) -> float:
        """The value in the call at hand."""
        return float_of(self.formula, self.sizes.hint)

    def guard_float(self, *_: Any) -> float:
        """The number, which it must be in other calls too."""
        return float_of(self.formula, self.sizes.number)

    def _rounded(self, function: Callable[[float], int]) -> SizeNode:
        return SizeNode(as_expr(function(self.guard_float())), self.sizes)


def _of_floats(name: str) -> Any:
    return lambda self, other: FloatNode((name, self.formula, other.formula), self.sizes)


def _known_floats(function: Callable[[float, float], bool]) -> Any:
    def test(self: FloatNode, other: FloatNode) -> TestNode:
        return TestNode(
            lambda _: function(self.guard_float(), other.guard_float()),
            lambda _: not function(self.guard_float(), other.guard_float()),
            self.sizes,
        )

    return test


for _name in FLOAT_SIGNS:
    setattr(FloatNode, _name, _of_floats(_name))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(FloatNode, _name, _known_floats(getattr(operator, _name)))


def _arithmetic(function: Callable[..., Expr]) -> Any:
    return lambda self, other: self._derived_size(function, other)


def _comparison(sign: str) -> Any:
    def test(node: SizeNode, other: SizeNode, sign: str) -> Callable[[str], bool]:
        return lambda how: node.sizes.ask(sign, node.expr, other.expr, how)

    return lambda self, other: TestNode(test(self, other, sign), test(self, other, _CONTRARY[sign]), self.sizes)


_CONTRARY = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


_ARITHMETIC: Mapping[str, Callable[..., Expr]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    **dict.fromkeys(("floordiv", "int_floordiv"), floordiv), "mod": mod, "sym_min": minimum, "sym_max": maximum,
}  # fmt: skip
for _name, _function in _ARITHMETIC.items():
    setattr(SizeNode, _name, _arithmetic(_function))
for _name, _sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    setattr(SizeNode, _name, _comparison(_sign))


class TestNode(_Node):
    """A comparison of sizes and its contrary, decided when someone needs to know: functions of how it is asked.

    torch's `statically_known_true` and its like ask `_hint`, `expr` and `shape_env`.
    """

    __slots__ = ("_contrary", "_test", "sizes")
    __test__ = False
    _hint = None

    def __init__(self, test: Callable[[str], bool], contrary: Callable[[str], bool], sizes: Sizes) -> None:
        self._test, self._contrary, self.sizes = test, contrary, sizes

    def __repr__(self) -> str:
        return "a comparison of sizes"

    def _or(self, otherwise: bool) -> bool:
        """The answer where either will do."""
        before, self.sizes.undecided = self.sizes.undecided, DataDecides
        try:
            return self._test("generally")
        except DataDecides:
            return otherwise
        finally:
            self.sizes.undecided = before

    def guard_bool(self, *_: Any) -> bool:
        """The answer for torch's own code, to which a size of 1 is in question only for strides and broadcasting."""
        return self._test("layout" if self.sizes.how in ("exactly", "ones") else "")

    def statically_known_true(self, *_: Any) -> bool:
        """Whether it is certain."""
        return self._test("certainly")

    def sym_not(self) -> TestNode:
        """The contrary."""
        return TestNode(self._contrary, self._test, self.sizes)

    def and_(self, other: TestNode) -> TestNode:
        """Both."""
        return TestNode(
            lambda how: self._test(how) and other._test(how),
            lambda how: self._contrary(how) or other._contrary(how),
            self.sizes,
        )


class _Environment:
    """The part of torch's ShapeEnv that is asked about a comparison."""

    def _maybe_evaluate_static(self, test: TestNode) -> bool | None:
        return True if test.statically_known_true() else False if test.sym_not().statically_known_true() else None

    def evaluate_sym_node(self, test: TestNode, **_: Any) -> bool:
        """The answer where either will do."""
        return test.guard_bool()


_ANSWERS: Mapping[type[_Node], Mapping[str, Callable[..., Any]]] = {
    _Node: {
        **dict.fromkeys(["is_int", "is_bool", "is_float", "is_nested_int", "is_constant"], lambda n: False),
        **dict.fromkeys(("is_symbolic", "has_hint"), lambda n: True),
        **dict.fromkeys(
            ["nested_int", "constant_int", "constant_bool", "maybe_as_int", "maybe_as_bool", "maybe_as_float"],
            lambda n: None,
        ),
        **dict.fromkeys(("clone", "pos"), lambda n: n),  # it never changes
        **dict.fromkeys(("str", "_graph_repr"), lambda n: f"{n!r}"),
    },
    SizeNode: {
        "is_int": lambda n: True,
        "is_constant": lambda n: not n.sizes.settled(n.expr).terms,
        "maybe_as_int": lambda n: e.const if (e := n.sizes.settled(n.expr)).is_const else None,
        "require_hint": lambda n, *_: n.hint,
        "int_": SizeNode.guard_int,
        "wrap_int": lambda n, number: SizeNode(as_expr(number), n.sizes),
        "sym_float": lambda n: FloatNode(n.expr, n.sizes),
        "sym_sum": lambda n, nodes: SizeNode(sum((other.expr for other in nodes), as_expr(0)), n.sizes),
        "neg": lambda n: n._derived_size(operator.neg),
        **dict.fromkeys(["floor", "ceil", "trunc", "round", "sym_int"], lambda n: n),
        "bool_": lambda n: n.sizes.ask("!=", n.expr, 0),
        "pow_by_natural": lambda n, by: SizeNode(math.prod([n.expr] * by.guard_int(), start=as_expr(1)), n.sizes),
        **dict.fromkeys(("truediv", "int_truediv"), lambda n, by: FloatNode(("truediv", n.expr, by.expr), n.sizes)),
    },
    FloatNode: {
        "is_float": lambda n: True,
        "wrap_float": lambda n, number: FloatNode(number, n.sizes),
        "float_": FloatNode.guard_float,
        "neg": lambda n: FloatNode(("mul", -1.0, n.formula), n.sizes),
        "floor": lambda n: n._rounded(math.floor),  # the number needs to be known
        "ceil": lambda n: n._rounded(math.ceil),
        "trunc": lambda n: n._rounded(math.trunc),
    },
    TestNode: {
        "is_bool": lambda n: True,
        "wrap_bool": lambda n, value: TestNode(lambda _: value, lambda _: not value, n.sizes),
        "bool_": lambda n, *_: n._test(""),
        "expect_true": lambda n, *_: n._test("expected"),  # another answer is an error
        "guard_or_false": lambda n, *_: n._or(False),
        "guard_or_true": lambda n, *_: n._or(True),
        "guard_size_oblivious": TestNode.guard_bool,
        "expr": property(lambda n: n),  # type: ignore[dict-item]
        "shape_env": property(lambda n: _Environment()),  # type: ignore[dict-item]
        "sym_and": TestNode.and_,
        **dict.fromkeys(("or_", "sym_or"), lambda n, other: n.sym_not().and_(other.sym_not()).sym_not()),
    },
}
"""Kind of value -> torch's name of a question -> the answer."""
for _class, _answers in _ANSWERS.items():
    for _name, _answer in _answers.items():
        setattr(_class, _name, _answer)


# ---------------------------------------------------------------- sizes of tensors


def has_symbols(tensor: torch.Tensor) -> bool:
    """Whether a tensor's sizes, strides or offset are expressions."""
    return bool(tensor._has_symbolic_sizes_strides)  # type: ignore[attr-defined]


def size_of(size: Any) -> Expr | int:
    """A size as the algebra has it: an expression of what is known now, or a number."""
    if isinstance(size, Expr):
        return size if size.terms else size.const
    if isinstance(size, torch.SymInt) and hasattr(size.node, "sizes"):  # ragged ones have none
        node: Any = size.node
        e: Expr = node.sizes.settled(node.expr)
        return e if e.terms else e.const
    return size  # type: ignore[no-any-return]


def expressions(values: Iterable[Any]) -> tuple[Expr | int, ...]:
    """Sizes as the algebra has them; they are equal where the sizes are certain to be."""
    return tuple(map(size_of, values))


def symbol_axes(shape: Iterable[Any]) -> list[tuple[int, str, int]]:
    """Axes whose sizes tell a symbol: the axis, the symbol, and how much larger the size is."""
    rows = list[tuple[int, str, int]]()
    for d, e in enumerate(
        getattr(size.node, "expr", None) if isinstance(size, torch.SymInt) else size for size in shape
    ):
        if isinstance(e, Expr) and len(e.terms) == 1 and isinstance(e.terms[0][0], Var) and e.terms[0][1] == 1:
            rows.append((d, e.terms[0][0].name, e.const))
    return rows


def settled(values: Iterable[Any]) -> tuple[Any, ...]:
    """Sizes by what is known now: SymInts and numbers."""
    return tuple([v.node.sizes.size(v.node.expr) if isinstance(v, torch.SymInt) else v for v in values])


def one_or_more(size: Any) -> Any:
    """`max(size, 1)`; an expression where nothing may be asked any more."""
    sizes = size.node.sizes
    return sizes.size(maximum(size.node.expr, 1)) if sizes.frozen else max(size, 1)


def sizes_in(values: Iterable[Any]) -> Sizes | None:
    """What knows the symbols in some sizes; None if there are none."""
    return next((v.node.sizes for v in values if isinstance(v, torch.SymInt) and hasattr(v.node, "sizes")), None)


def now(size: Any) -> int:
    """A size in the call at hand, for choices that are right either way."""
    return int(size.node.hint if isinstance(size, torch.SymInt) else size)


def below(a: Any, b: Any) -> bool:
    """Whether a size or stride is less than another, where symbols are 2 or more."""
    sizes = sizes_in((a, b))
    return bool(a < b) if sizes is None else sizes.ask("<", size_of(a), size_of(b), "generally")
