"""Integer expressions in canonical form: the algebra of sizes, strides and indices.

An `Expr` is built only through the functions of this module (or Python's operators) and is interned: equal
expressions are the same object, so `is` compares them and hashing costs nothing. Construction simplifies with the
ranges of variables, so `(4*i + j)//4` is `i` and `(4*i + j)%4` is `j` whenever `0 <= j < 4`.

Canonical form: every expression is `const + sum(coeff * atom)`, kept in the slots `const` and `terms`; an atom is a
variable, a product of atoms, a floor division, a modulus, a minimum or a maximum. Products of sums are expanded.
Division and modulus are Python's: rounded down, the sign of the divisor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from math import gcd
from typing import Any, NoReturn

from firebrick.ir.index.intern import RECENT, Interned

__all__ = ["INF", "ONE", "ZERO", "Add", "Const", "Expr", "FloorDiv", "Max", "Min", "Mod", "Mul", "Terms", "Var"]
__all__ += [
    "NeedsNumber",
    "as_expr",
    "as_int",
    "const",
    "exprs",
    "floordiv",
    "known_less",
    "maximum",
    "minimum",
    "mod",
    "product",
]
__all__ += ["total", "var"]

INF = 1 << 100
"""Stands for no bound in ranges; every true bound is far smaller."""
_FINITE = 1 << 90

Terms = tuple[tuple["Expr", int], ...]


class Expr:
    """An interned integer expression. `lo` and `hi` bound its value, inclusive; -INF and INF where nothing does."""

    __slots__ = ("__weakref__", "_text", "_vars", "const", "hi", "lo", "terms")

    const: int
    terms: Terms
    lo: int
    hi: int
    _text: str | None
    _vars: frozenset[Var] | None

    def vars(self) -> frozenset[Var]:
        """The variables that occur in it."""
        variables = self._vars
        if variables is None:
            none: frozenset[Var] = frozenset()
            parts = [a.vars() for a in self.children()]
            variables = self._vars = parts[0] if len(parts) == 1 else none.union(*parts)
        return variables

    def children(self) -> tuple[Expr, ...]:
        """The expressions that this one is made of, constants left out."""
        return tuple(a for a, _ in self.terms)

    def show(self) -> str:
        """Text that `parse` reads back to this very object. It is also Python, given min and max."""
        text = self._text
        if text is None:
            text = self._text = self._show()
        return text

    def _show(self) -> str:
        text = ""
        for atom, coeff in self.terms:
            size = abs(coeff)
            # A leading minus binds tighter than // and %.
            body = _operand(atom) if size != 1 or (coeff < 0 and not text) else atom.show()
            text += _sign(coeff, text) + (body if size == 1 else f"{size}*{body}")
        return text + f"{_sign(self.const, text)}{abs(self.const)}" if self.const or not text else text

    def subs(self, values: Mapping[Var, Expr]) -> Expr:
        """Replace variables, simplifying again."""
        if self.vars().isdisjoint(values):
            return self
        return _combination(self.const, [(atom._subs(values), coeff) for atom, coeff in self.terms])

    def _subs(self, values: Mapping[Var, Expr]) -> Expr:
        """`subs` of an atom."""
        raise NotImplementedError

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value for given values of its variables, by name."""
        return self.const + sum(c * a._evaluate(values) for a, c in self.terms)

    def _evaluate(self, values: Mapping[str, int]) -> int:
        """`evaluate` of an atom."""
        raise NotImplementedError

    def coeff(self, v: Var) -> Expr | None:
        """The factor of `v` (its stride): the expression is `coeff(v)*v + rest` and rest is free of `v`.

        None when `v` occurs in a way that is not linear.
        """
        result: Expr = ZERO
        for atom, c in self.terms:
            if atom is v:
                result = result + c
            elif v in atom.vars():
                part = _factor_beside(atom, v)
                if part is None:
                    return None
                result = result + part * c
        return result

    def split(self, variables: Iterable[Var]) -> tuple[dict[Var, Expr], Expr] | None:
        """Strides of `variables` and the rest that is free of them, or None if it is not linear in one of them."""
        strides: dict[Var, Expr] = {}
        rest = self
        for v in variables:
            stride = self.coeff(v)
            if stride is None:
                return None
            strides[v] = stride
            if stride is not ZERO:
                rest = rest - stride * v
        return (strides, rest) if rest.vars().isdisjoint(strides) else None

    @property
    def is_const(self) -> bool:
        """Whether it is a number."""
        return not self.terms

    def __add__(self, other: Expr | int) -> Expr:
        if not isinstance(other, Expr):
            return _shift(self, other)
        if not other.terms:
            return _shift(self, other.const)
        if not self.terms:
            return _shift(other, self.const)
        out = dict(self.terms)
        for a, c in other.terms:
            out[a] = out.get(a, 0) + c
        return _linear(self.const + other.const, out)

    def __radd__(self, other: int) -> Expr:
        return _shift(self, other)

    def __sub__(self, other: Expr | int) -> Expr:
        if not isinstance(other, Expr):
            return _shift(self, -other)
        out = dict(self.terms)
        for a, c in other.terms:
            out[a] = out.get(a, 0) - c
        return _linear(self.const - other.const, out)

    def __rsub__(self, other: int) -> Expr:
        return _scale(self, -1) + other

    def __neg__(self) -> Expr:
        return _scale(self, -1)

    def __mul__(self, other: Expr | int) -> Expr:
        if not isinstance(other, Expr):
            return _scale(self, other)
        if not self.terms or not other.terms:
            return _scale(other, self.const) if not self.terms else _scale(self, other.const)
        return _multiply(self, other)

    def __rmul__(self, other: int) -> Expr:
        return _scale(self, other)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return floordiv(self, other)

    def __mod__(self, other: Expr | int) -> Expr:
        return mod(self, other)

    def __repr__(self) -> str:
        return self.show()

    def __deepcopy__(self, memo: Any = None) -> Expr:
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> NoReturn:
        raise TypeError("expressions travel between processes as text, see symbolic.parse")


class Const(Expr):
    """A number."""

    __slots__ = ()

    @property
    def value(self) -> int:
        """The number."""
        return self.const

    def __int__(self) -> int:
        return self.const

    def __index__(self) -> int:
        return self.const


class Var(Expr):
    """A variable with its range. `bound`, if given, is a size that the variable stays below."""

    __slots__ = ("bound", "name")

    name: str
    bound: Expr | None

    def vars(self) -> frozenset[Var]:
        """The variable itself."""
        variables = self._vars
        if variables is None:
            variables = self._vars = frozenset((self,))
        return variables

    def children(self) -> tuple[Expr, ...]:
        """None: a variable is a leaf."""
        return ()

    def _show(self) -> str:
        return self.name

    def _subs(self, values: Mapping[Var, Expr]) -> Expr:
        return values.get(self, self)

    def _evaluate(self, values: Mapping[str, int]) -> int:
        return values[self.name]


class Add(Expr):
    """`const + sum(coeff * atom)` with at least two summands."""

    __slots__ = ()


class Mul(Expr):
    """`scale` times the product of `factors`; as an atom its scale is 1 and it has two factors or more."""

    __slots__ = ("factors", "scale")

    factors: tuple[Expr, ...]
    scale: int

    def children(self) -> tuple[Expr, ...]:
        """The factors."""
        return self.factors

    def _show(self) -> str:
        if self.scale != 1:
            return super()._show()
        return "*".join(_operand(f) for f in self.factors)

    def _subs(self, values: Mapping[Var, Expr]) -> Expr:
        result: Expr = ONE
        for f in self.factors:
            result = result * f._subs(values)
        return result

    def _evaluate(self, values: Mapping[str, int]) -> int:
        result = 1
        for f in self.factors:
            result *= f._evaluate(values)
        return result


class _Call(Expr):
    """An atom made of operands by a row of `_CALLS`."""

    __slots__ = ("args",)

    args: tuple[Expr, ...]

    def children(self) -> tuple[Expr, ...]:
        """The operands."""
        return self.args

    def _show(self) -> str:
        sign = _CALLS[type(self)][2]
        if sign in ("min", "max"):
            return f"{sign}({', '.join(a.show() for a in self.args)})"
        return sign.join(_operand(a) for a in self.args)

    def _subs(self, values: Mapping[Var, Expr]) -> Expr:
        return _CALLS[type(self)][0](*[a.subs(values) for a in self.args])

    def _evaluate(self, values: Mapping[str, int]) -> int:
        return _CALLS[type(self)][1](*[a.evaluate(values) for a in self.args])


class FloorDiv(_Call):
    """`a // b`, rounded down; args is (a, b)."""

    __slots__ = ()


class Mod(_Call):
    """`a % b` with the sign of `b`; args is (a, b)."""

    __slots__ = ()


class Min(_Call):
    """The least of `args`, which are sorted by text."""

    __slots__ = ()


class Max(_Call):
    """The greatest of `args`, which are sorted by text."""

    __slots__ = ()


# ---------------------------------------------------------------- interning

_interned: dict[Any, Expr] = Interned()
_quotients: dict[tuple[Expr, Expr], Expr] = {}
_remainders: dict[tuple[Expr, Expr], Expr] = {}
_MEMO_LIMIT = RECENT


def _new(cls: type[Any], const_: int, terms: Terms | None, lo: int, hi: int) -> Any:
    e = object.__new__(cls)
    e.const = const_
    e.terms = ((e, 1),) if terms is None else terms
    e.lo = lo if lo > -_FINITE else -INF
    e.hi = hi if hi < _FINITE else INF
    e._text = None
    e._vars = None
    return e


def const(value: int) -> Const:
    """The expression of a number."""
    interned = _interned.get(value)
    if interned is None:
        interned = _interned.setdefault(int(value), _new(Const, int(value), (), int(value), int(value)))
    return interned  # type: ignore[return-value]


def var(name: str, lo: int = 0, hi: int = INF, bound: Expr | None = None) -> Var:
    """A variable of the inclusive range lo to hi that stays below `bound`, an expression, if there is one."""
    if bound is not None:
        hi = min(hi, bound.hi - 1 if bound.hi < INF else INF)
        bound = bound if bound.terms else None
    key = (name, lo, hi, bound)
    interned = _interned.get(key)
    if interned is None:
        variable = _new(Var, 0, None, lo, hi)
        variable.name = name
        variable.bound = bound
        interned = _interned.setdefault(key, variable)
    return interned  # type: ignore[return-value]


def as_expr(value: Expr | int) -> Expr:
    """The expression itself, or that of a number."""
    return value if isinstance(value, Expr) else const(value)


def exprs(values: Iterable[Expr | int]) -> tuple[Expr, ...]:
    """Each of `values` as an expression."""
    return tuple(v if isinstance(v, Expr) else const(v) for v in values)


ZERO = const(0)
ONE = const(1)


# ---------------------------------------------------------------- sums


def _shift(e: Expr, by: int) -> Expr:
    if by == 0:
        return e
    if not e.terms:
        return const(e.const + by)
    return _affine(e.const + by, e.terms)


def _scale(e: Expr, by: int) -> Expr:
    if by == 1:
        return e
    if by == 0:
        return ZERO
    if not e.terms:
        return const(e.const * by)
    # All coefficients grow alike, so the order of terms stays.
    return _affine(e.const * by, tuple((a, c * by) for a, c in e.terms))


def _term_key(term: tuple[Expr, int]) -> tuple[int, int, str]:
    atom, coeff = term
    return (-len(atom.factors) if type(atom) is Mul else -1, -abs(coeff), atom.show())


def _linear(shift: int, coeffs: dict[Expr, int]) -> Expr:
    """`shift + sum(coeff * atom)`, simplified."""
    if any(type(a) is Mod for a in coeffs):
        shift = _rejoin(shift, coeffs)
    terms = [t for t in coeffs.items() if t[1]]
    if len(terms) > 1:
        terms.sort(key=_term_key)
    return _affine(shift, tuple(terms))


def _rejoin(shift: int, coeffs: dict[Expr, int]) -> int:
    """m*(x//m) + x%m -> x. Changes `coeffs`, returns the new constant."""
    pending = [a for a in coeffs if type(a) is Mod]
    while pending:
        atom = pending.pop()
        c = coeffs.get(atom, 0)
        if c == 0 or type(atom) is not Mod:
            continue
        whole = floordiv(atom.args[0], atom.args[1]) * atom.args[1]
        if len(whole.terms) != 1 or whole.const:
            continue
        quotient, k = whole.terms[0]
        if coeffs.get(quotient, 0) != c * k:
            continue
        del coeffs[atom]
        del coeffs[quotient]
        shift += c * atom.args[0].const
        for a, n in atom.args[0].terms:
            coeffs[a] = coeffs.get(a, 0) + c * n
        # What was joined may be the quotient that another remainder waits for.
        pending = [a for a in coeffs if type(a) is Mod]
    return shift


def _affine(shift: int, terms: Terms) -> Expr:
    """Intern a sum whose terms are simplified and sorted."""
    if not terms:
        return const(shift)
    if shift == 0 and len(terms) == 1:
        atom, c = terms[0]
        if c == 1:
            return atom
    key = (shift, terms)
    interned = _interned.get(key)
    if interned is None:
        lo = hi = shift
        for atom, c in terms:
            if c > 0:
                lo += c * atom.lo
                hi += c * atom.hi
            else:
                lo += c * atom.hi
                hi += c * atom.lo
        if shift == 0 and len(terms) == 1:
            atom, c = terms[0]
            term = _new(Mul, 0, terms, lo, hi)
            term.scale = c
            term.factors = atom.factors if type(atom) is Mul else (atom,)
        else:
            term = _new(Add, shift, terms, lo, hi)
        interned = _interned.setdefault(key, term)
    return interned


# ---------------------------------------------------------------- products


def _multiply(x: Expr, y: Expr) -> Expr:
    out: dict[Expr, int] = {}
    for a, c in x.terms:
        if y.const:
            out[a] = out.get(a, 0) + c * y.const
        for b, d in y.terms:
            atom = _product_atom(a, b)
            out[atom] = out.get(atom, 0) + c * d
    if x.const:
        for b, d in y.terms:
            out[b] = out.get(b, 0) + d * x.const
    return _linear(x.const * y.const, out)


def _product_atom(a: Expr, b: Expr) -> Expr:
    left = a.factors if type(a) is Mul else (a,)
    right = b.factors if type(b) is Mul else (b,)
    return _intern_product(tuple(sorted(left + right, key=Expr.show)))


def _intern_product(factors: tuple[Expr, ...]) -> Expr:
    key = ("*", factors)
    interned = _interned.get(key)
    if interned is None:
        lo = hi = 1
        for f in factors:
            corners = (lo * f.lo, lo * f.hi, hi * f.lo, hi * f.hi)
            lo, hi = min(corners), max(corners)
        if len(set(factors)) == 1 and len(factors) % 2 == 0:
            lo = max(lo, 0)
        term = _new(Mul, 0, None, lo, hi)
        term.scale = 1
        term.factors = factors
        interned = _interned.setdefault(key, term)
    return interned


def product(factors: Iterable[Expr | int]) -> Expr:
    """The product of all; 1 if there are none."""
    result: Expr = ONE
    for f in factors:
        result = result * f
    return result


def total(summands: Iterable[Expr | int]) -> Expr:
    """The sum of all; 0 if there are none."""
    return _combination(0, [(as_expr(s), 1) for s in summands])


def _combination(shift: int, parts: Iterable[tuple[Expr, int]]) -> Expr:
    """`shift + sum(factor * part)`."""
    out: dict[Expr, int] = {}
    for part, factor in parts:
        shift += factor * part.const
        for a, c in part.terms:
            out[a] = out.get(a, 0) + factor * c
    return _linear(shift, out)


def _factor_beside(atom: Expr, v: Var) -> Expr | None:
    """What `v` is multiplied by in an atom that contains it, or None if that is not linear."""
    if type(atom) is not Mul:
        return None
    others = [f for f in atom.factors if f is not v]
    if len(others) != len(atom.factors) - 1 or any(v in f.vars() for f in others):
        return None
    return product(others)


# ---------------------------------------------------------------- division


def floordiv(a: Expr | int, b: Expr | int) -> Expr:
    """`a // b`, rounded down; ZeroDivisionError if `b` is 0."""
    return _divide(as_expr(a), as_expr(b), quotient=True)


def mod(a: Expr | int, b: Expr | int) -> Expr:
    """`a % b`, with the sign of `b`; ZeroDivisionError if it is 0."""
    return _divide(as_expr(a), as_expr(b), quotient=False)


def _divide(a: Expr, b: Expr, quotient: bool) -> Expr:
    if not b.terms:
        n = b.const
        if not a.terms:
            return const(a.const // n if quotient else a.const % n)
        if n == 1:
            return a if quotient else ZERO
        if n <= 0:
            if n == 0:
                raise ZeroDivisionError(f"{a.show()} divided by 0")
            return _divide(-a, const(-n), True) if quotient else -_divide(-a, const(-n), False)
    memo = _quotients if quotient else _remainders
    result = memo.get((a, b))
    if result is None:
        if b.terms:
            result = _quotient_by_size(a, b) if quotient else _remainder_by_size(a, b)
        else:
            result = _quotient_by_number(a, b.const) if quotient else _remainder_by_number(a, b.const)
        if len(memo) >= _MEMO_LIMIT:
            memo.clear()
        memo[a, b] = result
    return result


def _quotient_by_number(a: Expr, m: int) -> Expr:
    whole = {atom: c // m for atom, c in a.terms if c % m == 0}
    rest = {atom: c for atom, c in a.terms if c % m}
    shift, left = divmod(a.const, m)
    if whole or shift:
        return _linear(shift, whole) + floordiv(_linear(left, rest), m)
    if a.lo // m == a.hi // m:
        return const(a.lo // m)
    coarse = _coarsen(a, m)
    if coarse is not None:
        g, big, _ = coarse
        return floordiv(big, m // g)
    # (x//c + k)//m -> (x + c*k)//(c*m)
    inner = [atom for atom, c in a.terms if c == 1 and type(atom) is FloorDiv and not atom.args[1].terms]
    if len(inner) == 1:
        x, c = inner[0].args[0], inner[0].args[1].const
        return floordiv(x + (a - inner[0]) * c, c * m)
    return _intern_call(FloorDiv, (a, const(m)), a.lo // m, a.hi // m)


def _remainder_by_number(a: Expr, m: int) -> Expr:
    shift = a.const % m
    rest: dict[Expr, int] = {}
    changed = shift != a.const
    for atom, c in a.terms:
        if type(atom) is Mod and not atom.args[1].terms and (c * atom.args[1].const) % m == 0:
            changed = True
            shift += c * atom.args[0].const
            for inner, d in atom.args[0].terms:
                rest[inner] = rest.get(inner, 0) + c * d
        else:
            if abs(c) >= m:
                changed = True
                c %= m
            rest[atom] = rest.get(atom, 0) + c
    if changed:
        return mod(_linear(shift, rest), m)
    k = a.lo // m
    if k == a.hi // m:
        return a - k * m
    coarse = _coarsen(a, m)
    if coarse is not None:
        g, big, small = coarse
        return mod(big, m // g) * g + small
    return _intern_call(Mod, (a, const(m)), 0, min(m - 1, a.hi) if a.lo >= 0 else m - 1)


def _coarsen(a: Expr, m: int) -> tuple[int, Expr, Expr] | None:
    """Write `a` as `g*big + small` with 0 <= small < g and g > 1 a divisor of `m`, the largest that works."""
    steps = {gcd(c, m) for _, c in a.terms}
    for g in sorted(steps, reverse=True):
        if g == 1:
            return None
        big = {atom: c // g for atom, c in a.terms if c % g == 0}
        small = {atom: c for atom, c in a.terms if c % g}
        shift, left = divmod(a.const, g)
        rest = _linear(left, small)
        if rest.lo >= 0 and rest.hi < g:
            return g, _linear(shift, big), rest
    return None


def _quotient_by_size(a: Expr, b: Expr) -> Expr:
    """Division by a symbolic size."""
    if b.lo < 1:
        return _intern_call(FloorDiv, (a, b), -INF, INF)
    whole, rest = _split_multiples(a, b)
    if whole is not ZERO:
        return whole + floordiv(rest, b)
    if a.lo >= 0 and known_less(a, b):
        return ZERO
    lo = a.lo // (b.hi if a.lo >= 0 else b.lo)
    hi = a.hi // (b.lo if a.hi >= 0 else b.hi)
    return _intern_call(FloorDiv, (a, b), lo, hi)


def _remainder_by_size(a: Expr, b: Expr) -> Expr:
    """Remainder of a division by a symbolic size."""
    if b.lo < 1:
        return _intern_call(Mod, (a, b), -INF, INF)
    whole, rest = _split_multiples(a, b)
    if whole is not ZERO:
        return mod(rest, b)
    if a.lo >= 0 and known_less(a, b):
        return a
    hi = b.hi - 1 if b.hi < INF else INF
    return _intern_call(Mod, (a, b), 0, min(hi, a.hi) if a.lo >= 0 else hi)


def _split_multiples(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Write `a` as `whole*b + rest` by the terms that have all factors of `b`, a single product."""
    if b.const or len(b.terms) != 1:
        # Division by a sum: only an exact multiple of the whole sum is found.
        if a.terms and b.terms and a.terms[0][1] % b.terms[0][1] == 0:
            k = a.terms[0][1] // b.terms[0][1]
            if (a - b * k) is ZERO:
                return const(k), ZERO
        return ZERO, a
    divisor, scale = b.terms[0]
    needed = list(divisor.factors) if type(divisor) is Mul else [divisor]
    whole: Expr = ZERO
    for atom, c in a.terms:
        if c % scale:
            continue
        factors = list(atom.factors) if type(atom) is Mul else [atom]
        for f in needed:
            if f not in factors:
                break
            factors.remove(f)
        else:
            whole = whole + product(factors) * (c // scale)
    return whole, a - whole * b


def _intern_call(cls: type[_Call], args: tuple[Expr, ...], lo: int, hi: int) -> Expr:
    key = (cls, args)
    interned = _interned.get(key)
    if interned is None:
        call = _new(cls, 0, None, lo, hi)
        call.args = args
        interned = _interned.setdefault(key, call)
    return interned


# ---------------------------------------------------------------- order


def minimum(*args: Expr | int) -> Expr:
    """The least of one or more expressions."""
    return _extremum(Min, [as_expr(a) for a in args], lambda a, b: a.hi <= b.lo or (a - b).hi <= 0)


def maximum(*args: Expr | int) -> Expr:
    """The greatest of one or more expressions."""
    return _extremum(Max, [as_expr(a) for a in args], lambda a, b: a.lo >= b.hi or (a - b).lo >= 0)


def _extremum(cls: type[_Call], args: list[Expr], beats: Callable[[Expr, Expr], bool]) -> Expr:
    flat: list[Expr] = []
    for a in args:
        flat.extend(a.args if isinstance(a, _Call) and type(a) is cls else (a,))
    candidates: list[Expr] = []
    for a in dict.fromkeys(flat):
        if any(beats(k, a) for k in candidates):
            continue
        candidates = [k for k in candidates if not beats(a, k)]
        candidates.append(a)
    if len(candidates) == 1:
        return candidates[0]
    ordered = tuple(sorted(candidates, key=Expr.show))
    pick = min if cls is Min else max
    return _intern_call(cls, ordered, pick(a.lo for a in ordered), pick(a.hi for a in ordered))


def known_less(a: Expr, b: Expr | int) -> bool:
    """Whether `a < b` is certain from the ranges and the symbolic bounds of variables."""
    b = as_expr(b)
    return a.hi < b.lo or (b - 1 - _largest(a)).lo >= 0


def _largest(a: Expr) -> Expr:
    """An expression that `a` does not exceed, in which variables below a symbolic bound are replaced by it."""
    result: Expr = const(a.const)
    for atom, c in a.terms:
        part: Expr = atom
        if c > 0:
            factors = atom.factors if type(atom) is Mul else (atom,)
            limits = [f.bound - 1 if type(f) is Var and f.bound is not None else f for f in factors]
            if tuple(limits) != factors and all(f.lo >= 0 for f in factors):
                part = product(limits)
            elif type(atom) is Mod and atom.args[1].terms and atom.args[1].lo >= 1:
                part = atom.args[1] - 1
            elif atom.hi < INF:
                part = const(atom.hi)
        elif atom.lo > -INF:
            part = const(atom.lo)
        result = result + part * c
    return result


def _sign(value: int, before: str) -> str:
    return (" - " if value < 0 else " + ") if before else ("-" if value < 0 else "")


def _operand(e: Expr) -> str:
    """Text of an operand of a product or a division, in parentheses where it needs them."""
    text = e.show()
    return text if isinstance(e, (Var, Min, Max)) or (not e.terms and e.const >= 0) else f"({text})"


_CALLS: Mapping[type[_Call], tuple[Callable[..., Expr], Callable[..., int], str]] = {
    FloorDiv: (floordiv, operator.floordiv, "//"), Mod: (mod, operator.mod, "%"),
    Min: (minimum, lambda *args: min(args), "min"), Max: (maximum, lambda *args: max(args), "max"),
}  # fmt: skip
"""Kind of atom -> its constructor, its meaning on numbers, its sign."""


class NeedsNumber(ValueError):
    """Something takes numbers only, and got an expression."""

    def __init__(self, expr: Expr) -> None:
        self.expr = expr
        super().__init__(f"{expr.show()} is not a constant")


def as_int(e: Expr | int) -> int:
    """The number that a constant expression is.

    Raises:
        NeedsNumber: it is not constant.
    """
    if isinstance(e, Expr) and e.terms:
        raise NeedsNumber(e)
    return e.const if isinstance(e, Expr) else e
