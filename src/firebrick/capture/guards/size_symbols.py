"""Which sizes of a frame's tensors are symbols, and the guards that say what was decided about them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch

from firebrick.capture.guards.guard_kinds import Guard
from firebrick.capture.guards.size_conditions import Shape
from firebrick.capture.guards.sources import Source
from firebrick.capture.marks import DYNAMIC, STATIC
from firebrick.errors import ConfigError
from firebrick.fakes.mode import is_plain
from firebrick.ir.index.expr import Expr, Var, as_expr
from firebrick.ir.index.operation import operation
from firebrick.ir.index.sizes import Sizes

if TYPE_CHECKING:
    from firebrick._native import Frame


_INTEGERS = (2, (1 << 31) - 1)
"""Integers that may be symbols: 0 and 1 mean more than a number, and products of larger ones overflow."""

_TORCH_MARKS = ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices")
"""Attributes by which torch's own functions mark dimensions of a tensor; the second allows them to be numbers."""


class Symbols:
    """The symbols of one capture.

    dynamic: None: what `varying` names, and what is marked; True: all sizes from 2 on; False: none. ones: whether what
    varies is a symbol also where it is 1 now; has_ones: whether that was so. written: objects that calls change: an
    integer of one is a counter, a symbol from 1 on.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.dynamic: bool | None = False
        self.varying: frozenset[tuple[Source, int]] = frozenset()
        self.written: frozenset[Source] = frozenset()
        self.ones, self.has_ones = True, False
        self._by_size: dict[Any, Var] = {}
        self._leaves: dict[str, Shape] = {}
        self._marked: dict[str, str] = {}
        self._integers: dict[Source, Var] = {}
        self._guards: list[Shape] = []
        self.places: dict[Shape, str] = {}

    def of(self, tensor: torch.Tensor, source: Source) -> dict[int, Var]:
        """The dimensions of a tensor of the frame whose sizes are symbols."""
        if self.dynamic is False or not is_plain(tensor):
            return {}
        marks: Mapping[int, tuple[int | None, int | None]] = getattr(tensor, DYNAMIC, {})
        static = {*getattr(tensor, STATIC, ()), *getattr(tensor, "_dynamo_static_indices", ())} - {*marks}
        marked = {*marks, *(d for name in _TORCH_MARKS for d in getattr(tensor, name, ()))}
        strict = {d for name in _TORCH_MARKS[::2] for d in getattr(tensor, name, ())}
        bounds = {r.dim: (r.min, r.max) for r in getattr(tensor, "_dynamo_dynamic_range", ())}
        symbols: dict[int, Var] = {}
        for d, size in enumerate(tensor.shape):
            varies = (source, d) in self.varying and (size > 1 or self.ones)
            varies = d in marked or varies or (size > 1 and self.dynamic is True)
            if varies and size and d not in static:
                self.has_ones |= size == 1 and d not in marked
                lo, hi = marks.get(d) or bounds.get(d, (None, None))
                symbols[d] = self._symbol(size, d, source, max(lo or 1, 1), hi)
                if d in marks or d in strict:
                    self._marked.setdefault(symbols[d].name, f"{source}.shape[{d}]")
        return symbols

    def _symbol(self, size: int, dim: int, source: Source, lo: int, hi: int | None) -> Var:
        """A symbol for a size; equal ones in the same place of several tensors are most likely one."""
        leaf = ("size", source, dim)
        key = (size, dim, lo, hi)
        symbol = self._by_size.get(key)
        if symbol is not None:
            self._guards.append(("==", leaf, self._leaves[symbol.name]))
            return symbol
        symbol = self._by_size[key] = self.sizes.symbol(size, lo) if hi is None else self.sizes.symbol(size, lo, hi)
        self._leaves[symbol.name] = leaf
        self._guards.append(("<=", lo, leaf))
        if hi is not None:
            self._guards.append(("<=", leaf, hi))
        return symbol

    def integer(self, number: int, source: Source) -> Var | None:
        """The symbol of an integer of Python; None for those that mean more than a number, and large ones."""
        counts = number == 1 and self.ones and getattr(source, "base", None) in self.written
        if self.dynamic is False or not (counts or _INTEGERS[0] <= number <= _INTEGERS[1]):
            return None
        if source not in self._integers:
            self.has_ones |= counts
            self._integers[source] = self.computed(number, source, 1 if counts else _INTEGERS[0])
        return self._integers[source]

    def computed(self, number: int, source: Source, least: int = 1) -> Var:
        """The symbol of an integer that Python computes of a number that varies."""
        symbol = self.sizes.symbol(number, least, _INTEGERS[1])
        leaf = self._leaves[symbol.name] = ("int", source)
        self._guards += [("<=", least, leaf), ("<=", leaf, _INTEGERS[1])]
        return symbol

    def decided_integers(self) -> set[Source]:
        """Those that had to be numbers; a counter may have to be one only where it is 1."""
        symbols = [(s, v) for s, v in self._integers.items() if not self.sizes.settled(v).terms]
        return {source for source, symbol in symbols if self.sizes.hint(symbol) > 1}

    def check_marks(self) -> None:
        """Sizes that `mark_dynamic` says vary must not be known; raises ConfigError: a line needs one."""
        for name, size in self._marked.items():
            symbol = self.sizes.symbols[name]
            if not self.sizes.settled(symbol).terms:
                facts = (f for f in self.sizes.facts.values() if f.truth and symbol in f.difference.vars())
                where = next((f" at {f.where}" for f in facts if f.sign == "==" and f.where), "")
                raise ConfigError(
                    f"{size} is marked as dynamic, but has to be {self.sizes.hint(symbol)}{where}",
                    fix="let the code work for any size, or leave the dimension unmarked",
                )

    def note_places(self) -> None:
        """Find where the program needed the numbers of sizes and integers."""
        for fact in self.sizes.facts.values():
            if fact.sign == "==" and fact.truth and fact.where:
                for v in fact.difference.vars():
                    if v.name in self._leaves and not self.sizes.settled(v).terms:
                        self.places.setdefault(self._leaves[v.name], fact.where)

    def in_use(self) -> bool:
        """Whether there are any."""
        return bool(self._leaves or self.sizes.data)

    def layout(self, tensor: torch.Tensor, symbols: Mapping[int, Var]) -> tuple[list[Expr], list[Expr]]:
        """Sizes and strides of a tensor; those of dimensions that lie side by side follow from its sizes."""
        shape, strides = list(tensor.shape), tensor.stride()
        sizes = [symbols.get(d, as_expr(n)) for d, n in enumerate(shape)]
        results: list[Expr] = [as_expr(n) for n in strides]
        at, step = 1, as_expr(1)
        for d in sorted(range(len(shape)), key=lambda d: (strides[d], -d)):
            if strides[d] == at:
                results[d] = step
            at, step = strides[d] * shape[d], results[d] * sizes[d]
        return sizes, results

    def guard_strides(self, source: Source, strides: Iterable[Expr], guarded: Iterable[int | None]) -> None:
        """Guard the strides that the guard on the tensor leaves free."""
        for d, (stride, fixed) in enumerate(zip(strides, guarded, strict=True)):
            if fixed is None:
                self._guards.append(("==", ("stride", source, d), self.shape_of(stride)))

    def guards(self) -> Iterator[Guard]:
        """The conditions under which what was captured is right; nothing more may be decided from here on."""
        self.sizes.frozen = True
        yield from (Guard("SHAPE", None, shape) for shape in self._shapes())

    def _shapes(self) -> Iterator[Shape]:
        yield from self._guards
        for fact in self.sizes.facts.values():
            d = fact.difference
            if self.sizes.of_data(d):
                continue  # each call looks
            left = sum((a * c for a, c in d.terms if c > 0), as_expr(max(d.const, 0)))
            right = left - d
            sides = self.shape_of(left), self.shape_of(right)
            if fact.sign == "==":
                shape = ("==" if fact.truth else "!=", *sides)
            else:
                shape = ("<", *sides) if fact.truth else ("<=", *sides[::-1])
            self.places[shape] = fact.where
            yield shape

    def shape_of(self, e: Expr) -> Shape:
        """An expression of the sizes of the frame's tensors, as guards have it."""
        if isinstance(e, Var):
            return self._leaves[e.name]
        if not e.terms:
            return e.const
        sign, parts = operation(e)
        return reduce(lambda chain, part: (sign, chain, part), map(self.shape_of, parts))


def changed_sizes(frame: Frame, guards: Iterable[Guard]) -> Iterator[tuple[Source, int]]:
    """The dimensions for whose sizes guards fail."""
    for guard in guards:
        if guard.kind == "TENSOR" and guard.source is not None:
            with contextlib.suppress(LookupError, AttributeError, TypeError):
                meta, tensor = guard.payload, guard.source.evaluate(frame)
                if tensor.dim() == len(meta.sizes) and tensor.dtype == meta.dtype:
                    both = enumerate(zip(meta.sizes, tensor.shape, strict=True))
                    yield from ((guard.source, d) for d, (was, now) in both if was is not None and was != now)


def vary_together(frame: Frame, changed: Iterable[tuple[Source, int]]) -> Iterator[tuple[Source, int]]:
    """Dimensions that most likely vary too where others of their tensor do: those before (batches of sequences or of
    images), and all of indices and masks, which have no features."""
    last: dict[Source, int] = {}
    for source, d in changed:
        last[source] = max(d, last.get(source, 0))
    for source, d in last.items():
        tensor = source.evaluate(frame)
        every = tensor.dim() if not tensor.is_floating_point() and not tensor.is_complex() else d
        yield from ((source, k) for k in range(every) if tensor.shape[k] > 1)
