"""Writes the lines of one part: tiles of indices, loads, folds and stores, each value named once where it is first
known.

A value stands in the outermost scope (the program, a loop along an inner dimension, the loop of a serial fold) in which
all that it depends on is known, so what does not change in a loop is computed before it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from struct import pack, unpack

from firebrick.errors import InternalError
from firebrick.ir.index.expr import ONE, ZERO, Expr, floordiv, var
from firebrick.ir.kernels.tree import local
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Const, Index, Load, Masked, Op, Reduce, Scan, Store, Value
from firebrick.ir.loops.scalar_ops import reduction_identity
from firebrick.ir.loops.values import Table, children_of, loads_of, ordered, roots_of, values_of
from firebrick.targets.cuda.scopes import INDENT, Scope, Scopes, Term, joined
from firebrick.targets.cuda.tile import LOOP, WHOLE, Dim, Fold, Online, Part, Phase, position_of
from firebrick.targets.cuda.triton_functions import FOLDS, FUNCTIONS, TYPES, cast_text

__all__ = ["INDENT", "PartWriter"]

_UNROLLED = 16
"""Steps up to which the loop of a serial fold is written out."""
_INLINE = 64
"""Characters up to which a value that is used once stands where it is used."""
_CHECKED = frozenset({"floordiv", "truncdiv", "mod", "fmod", "shl", "shr", "min", "max"})
"""Functions of whole numbers to whose text a number would be an int32, and so their result."""
_CALL = re.compile(r"[\w.]+\((\{\w\}|[\w.]+)(, (\{\w\}|[\w.]+))*\)")
"""A text that is a call, whose arguments stand alone between its commas."""
_COMPARED = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


class PartWriter(Scopes):
    """The lines of a part."""

    def __init__(self, part: Part, wide: bool, numbers: Iterable[str] = ()) -> None:
        super().__init__()
        self.part = part
        self.wide = wide
        self.integer = "tl.int64" if wide else "tl.int32"
        self.results = {name: Term(name) for name in numbers}  # of folds; and arguments that are no addresses
        self.inside: dict[str, str] = {}  # dimension -> name of the mask of what is below its size
        self.starts: dict[str, str] = {}  # dimension -> text of its elements in a block
        self.blocks: dict[str, int] = {}  # dimension -> elements, for those that are axes of the tile
        self.uses: Counter[Value] = Counter()
        self.facts = Table()
        self.again: set[tuple[str, Expr]] = set()  # what a later phase reads again
        self.shares = _shares(part)

    # ------------------------------------------------------------ frame

    def lines(self, pid: str) -> list[str]:
        """The lines, given the text of the part's program id."""
        tile = [d for d in self.part.grid if d.block > 1]
        self.blocks = {d.var.name: d.block for d in tile}
        self.inner = max((d.block for d in self.part.inner), default=1)
        self.rank = len(tile) + bool(self.part.inner)
        self._programs(pid)
        for d in self.part.inner:
            self.blocks[d.var.name] = d.block
            if d.kind == WHOLE:
                self._along(d, "")
        roots = [r for p in self.part.phases for r in roots_of(*p.items)]
        self.uses.update(roots + [c for v in values_of(*roots) for c in children_of(v)])
        for k, phase in enumerate(self.part.phases):
            self.again = {(v.buffer, v.index) for p in self.part.phases[k + 1 :] for v in loads_of(*p.items)}
            self._phase(phase)
        while len(self.scopes) > 1:
            self.close()
        return self.scopes[0].lines

    def _programs(self, pid: str) -> None:
        """Where this program is: one number for all dimensions, the last fastest."""
        dims = self.part.grid
        if len(dims) > 1:
            if pid != "pid":
                self.line(f"pid = {pid}")
            pid = "pid"
        for k, d in reversed(list(enumerate(dims))):
            place = pid
            if k:
                self.line(f"pid_{d.var.name} = {pid} % {self._count(d)}")
                place = f"pid_{d.var.name}"
                rest = f"pid_{'_'.join(o.var.name for o in dims[:k])}"
                self.line(f"{rest} = {pid} // {self._count(d)}")
                pid = rest
            place = f"{place}.to(tl.int64)" if self.wide else place
            self._along(d, place)

    def _count(self, d: Dim) -> str:
        return self.index(-floordiv(-d.size, d.block)).operand

    def _along(self, d: Dim, start: str) -> None:
        """Name the elements of a block and the mask of those that there are."""
        name = d.var.name
        dims: frozenset[str] = frozenset()
        text = start or "0"
        if name in self.blocks:
            axis = self._axis(name)
            where = ", ".join(":" if k == axis else "None" for k in range(self.rank))
            block = f"tl.arange(0, {d.block})" + (f"[{where}]" if self.rank > 1 else "")
            text = block
            if start:
                text = f"{start} * {d.block} + {block}" if d in self.part.grid else f"{start} + {block}"
            if self.wide and not start:
                text = f"{block}.to(tl.int64)"
            dims = frozenset((name,))
        elif d.block > 1:
            raise InternalError(f"dimension {name} of {d.block} is no axis")
        depth = len(self.scopes) - 1
        self.line(f"{name} = {text}")
        self.starts[name] = text
        self.vars[d.var] = Term(name, dims, depth)
        if d.masked:
            self.line(f"{name}_in = {name} < {self.index(d.size).operand}")
            self.inside[name] = f"{name}_in"

    def _axis(self, name: str) -> int:
        if any(d.var.name == name for d in self.part.inner):
            return self.rank - 1
        return [d.var.name for d in self.part.grid if d.block > 1].index(name)

    def _shape(self, dims: Iterable[str]) -> str:
        sizes = ["1"] * self.rank
        for name in dims:
            sizes[self._axis(name)] = str(self.blocks[name])
        return f"[{', '.join(sizes)}]"

    # ------------------------------------------------------------ values

    def value(self, v: Value, mask: tuple[Term, ...] = ()) -> Term:
        """A value; loads in it happen only where all of `mask` holds."""
        key = self._key(v, mask)
        term = self.known.get(key)
        if term is not None:
            return term
        if not isinstance(v, Op):
            return self._write(v, mask)
        # Arguments first, so that no chain is too long for the stack.
        for below in ordered([v], lambda c: self._key(c, mask) in self.known or not isinstance(c, Op)):
            self._write(below, mask)
        return self.known[key]

    def _key(self, v: Value, mask: tuple[Term, ...]) -> object:
        return (v, tuple(m.text for m in mask) if mask and self.facts(v).loads else ())

    def _write(self, v: Value, mask: tuple[Term, ...]) -> Term:
        key = self._key(v, mask)
        match v:
            case Const():
                if str(v.value) == "-0.0":  # Triton takes a number that equals 0 for 0.0
                    return self.remember(key, Term(f"tl.cast(tl.full([], 0.0, tl.float32) * -1.0, {TYPES[v.dtype]})"))
                return self.remember(key, Term(_number(v), plain=not _number(v).startswith("-"), number=True))
            case Index():
                e = self.index(v.expr)
                kind = TYPES[v.dtype]
                text = f"tl.cast({e.text}, {kind})" if e.number or not e.dims else f"{e.operand}.to({kind})"
                if kind == self.integer and e.dims:
                    return self.remember(key, e)
                return self._settle(key, v, Term(text, e.dims, e.depth))
            case Load():
                if v.buffer in self.results:
                    return self.remember(key, self.results[v.buffer])
                return self._load(key, v, mask)
            case Op():
                return self._settle(key, v, self._op(v, [self.value(a, mask) for a in v.args]))
            case Masked():
                cond = self.value(v.cond, mask)
                if cond.number:
                    return self.remember(key, self.value(v.body if cond.text == "True" else v.other, mask))
                cond = cond if re.fullmatch(r"\w+", cond.text) else self.named(("mask", key), cond)
                body = self._typed(self.value(v.body, (*mask, cond)), v.dtype)
                whole = joined((cond, body))
                other = self._typed(self.value(v.other), v.dtype) if v.dtype == "f64" else self.value(v.other)
                text = f"tl.where({cond.text}, {body.text}, {other.text})"  # a number beside f64 would be a float32
                return self._settle(key, v, Term(text, whole.dims, whole.depth))
            case Reduce():
                return self._serial(key, v, mask)
            case Scan():
                return self._scan(key, v, mask)
        raise InternalError(f"value {v}")

    def _settle(self, key: object, v: Value, term: Term) -> Term:
        """Name a value that is used more than once, is long, or should be computed further out."""
        if self.uses[v] > 1 or len(term.text) > _INLINE or term.depth < len(self.scopes) - 1:
            return self.named(key, term)
        return self.remember(key, term)

    def _typed(self, term: Term, dtype: str) -> Term:
        """A term that has a type of its own."""
        if not term.number:
            return term
        return Term(f"tl.full([], {term.text}, {TYPES[dtype]})", term.dims, term.depth)

    def _drawn(self, v: Op, args: list[Term]) -> Term:
        """Whether a word is below a bound: one draw has those of four elements that lie together."""
        element = v.args[0].expr if isinstance(v.args[0], Index) else ZERO
        numbers, bound = ", ".join(a.text for a in args[1:-1]), args[-1].text
        dims = [d for d in (*self.part.inner, *self.part.grid) if d.var in element.vars() and d.var.name in self.blocks]
        along = next((d for d in dims if self._axis(d.var.name) == self.rank - 1 and d.block % 4 == 0), None)
        rest = element - along.var if along is not None else element
        if along is None or along.var in rest.vars() or (rest % 4) is not ZERO:
            e = self.index(element)
            whole = joined([e, *args[1:]])
            text = e.text if e.dims else f"tl.full([], {e.text}, {self.integer})"
            return Term(f"draw_one({text}, {numbers}) < {bound}", whole.dims, whole.depth, False)
        name, at = along.var.name, self.vars[along.var]
        four = var(f"{name}_four")
        start, _, block = self.starts[name].rpartition("tl.arange")
        quarter = block.replace(f"(0, {along.block})", f"(0, {along.block // 4})")
        elements = Term(f"{start}4 * tl.arange{quarter}", at.dims, at.depth)
        self.vars[four] = self.known.get(("four", name)) or self.named(("four", name), elements)
        first = self.index(rest + four)
        whole = joined([first, *args[1:]])
        words = f"draw_four({first.text}, {numbers})"
        return Term(f"tl.reshape({words}, {self._shape(whole.dims)}) < {bound}", whole.dims, whole.depth, False)

    def _op(self, v: Op, args: list[Term]) -> Term:
        if v.name == "drawn":
            return self._drawn(v, args)
        by = _inverse(v)
        if by is not None:
            v, args = Op(v.dtype, "mul", (v.args[0], by)), [args[0], self.value(by)]
        source = v.args[-1].dtype
        if v.name == "to":
            a = self._typed(args[0], source)
            text = cast_text(a.operand, source, v.dtype)
            return Term(text, a.dims, a.depth, text.endswith(")"))
        row = DTYPES[source]
        narrow = source in ("bf16", "f16") and v.name != "where"
        if narrow:
            args = [Term(f"{self._typed(a, source).operand}.to(tl.float32)", a.dims, a.depth) for a in args]
        if v.name in _COMPARED and source == "i64" and all(isinstance(a, Index | Const) for a in v.args):
            args = self._bare(v, args)
        first = 1 if v.name == "where" else 0
        kind = source if source in ("f32", "f64") else "f32" if row.is_float else row.kind
        template = FUNCTIONS[kind][v.name]
        if v in self.shares.values():
            template = "tl.exp({a})"
        elif v.name == "div" and isinstance(v.args[1], Load) and self.shares.get(v.args[1].buffer) is v.args[0]:
            whole = Term(f"tl.div_rn(1.0, {args[1].operand})", args[1].dims, args[1].depth)
            template, args[1] = "{a} * {b}", self.named(("share", v.args[1]), whole)
        # To a function a number is a float32: libdevice has no such pair, and others take what that rounded.
        called = source == "f64" and "(" in template
        typed = called or row.kind == "bool" or (row.is_int and v.name in _CHECKED)
        if typed or all(a.number for a in args[first:]):
            args = [*args[:first], *(self._typed(a, source) for a in args[first:])]
        args = [self._typed(a, "b8") if k < first else a for k, a in enumerate(args)]
        bits = 8 * row.nbytes
        call = _CALL.fullmatch(template) is not None
        words = [a.text if call else a.operand for a in args]
        text = template.format(**dict(zip("abc", words, strict=False)), bits=bits, last=bits - 1)
        if narrow and v.dtype == source:
            text, call = f"({text}).to({TYPES[source]})", True
        whole = joined(args)
        return Term(text, whole.dims, whole.depth, call)

    def _bare(self, v: Op, args: list[Term]) -> list[Term]:
        """Sides of a comparison of indices, without a detour over 64 bits."""
        if self.wide or any(isinstance(a, Const) and not -(1 << 31) <= a.value < 1 << 31 for a in v.args):
            return args
        return [self.index(a.expr) if isinstance(a, Index) else t for a, t in zip(v.args, args, strict=True)]

    # ------------------------------------------------------------ loads

    def _load(self, key: object, v: Load, mask: tuple[Term, ...]) -> Term:
        place = self._place(v, mask)
        conds = self._masks(place.dims)
        if conds or mask:
            whole = joined((place, *mask))
            masks = " & ".join([*conds, *(m.operand for m in mask)])
            address = place.text
            if self.rank and not place.dims and whole.dims:
                address += f" + tl.zeros({self._shape(())}, tl.int32)"
            text = f"tl.load({v.buffer} + {address}, {masks}, 0"
            place = whole
        else:
            text = f"tl.load({v.buffer} + {place.text}"
        looped = any(d.kind == LOOP and d.var.name in place.dims for d in self.part.inner)
        if looped:
            keep = (v.buffer, v.index) in self.again
            text += f', eviction_policy="{"evict_last" if keep else "evict_first"}"'
        return self.named(key, Term(text + ")", place.dims, place.depth))

    def _place(self, v: Load | Store, mask: tuple[Term, ...]) -> Term:
        """Where an element is."""
        for x, b in v.binds:
            term = self._typed(self.value(b, mask), "i64")
            text = term.text if self.wide else f"{term.operand}.to(tl.int32)"
            self.vars[x] = Term(text, term.dims, term.depth, self.wide and term.plain)
            if not re.fullmatch(r"\w+", text):
                self.vars[x] = self.named(("bound", x, b, tuple(m.text for m in mask)), self.vars[x])
        stale = [k for k in self.known if isinstance(k, Expr) and not k.vars().isdisjoint(x for x, _ in v.binds)]
        for k in stale:
            del self.known[k]
        return self.index(v.index)

    def _masks(self, dims: Iterable[str]) -> list[str]:
        return [self.inside[name] for name in self.blocks if name in dims and name in self.inside]

    # ------------------------------------------------------------ phases

    def _phase(self, phase: Phase) -> None:
        along = self.part.inner[phase.dim] if phase.dim >= 0 else None
        walked = along if along is not None and along.kind == LOOP else None
        if walked is not None:
            start, end = f"{walked.var.name}_start", self.index(walked.size).text
            self.open(f"for {start} in range(0, {end}, {walked.block}):")
            self._along(walked, f"{start}.to(tl.int64)" if self.wide and not walked.size.is_const else start)
        ends: list[str] = []
        stores = []
        for item in phase.items:
            if isinstance(item, Store):
                stores.append(self._store(item, along))
            elif along is not None:
                ends += self._online(item, along) if isinstance(item, Online) else self._fold(item, along)
        read = {v.buffer for other in self.part.phases if other is not phase for v in loads_of(*other.items)}
        if any(isinstance(item, Store) and item.buffer in read for item in phase.items):
            self.line("tl.debug_barrier()  # other warps still read what is overwritten")
        self.scopes[-1].lines += stores
        if walked is not None:
            self.close()
            self.inside.pop(walked.var.name, None)
        self.scopes[-1].lines += ends

    def _store(self, s: Store, along: Dim | None) -> str:
        place = self._place(s, ())
        value = self._typed(self.value(s.value), s.value.dtype)
        everywhere = frozenset(d.var.name for d in self.part.grid if d.block > 1)
        if along is not None:
            everywhere |= {along.var.name}
        address = place.text
        if place.dims != everywhere:
            shape = self._shape(everywhere)
            dense = f"tl.full({shape}, {place.text}, {self.integer})"
            address = f"tl.broadcast_to({place.text}, {shape})" if place.dims else dense
        masks = " & ".join(self._masks(everywhere))
        text = value.text
        if s.mode in ("max", "min") and DTYPES[s.value.dtype].is_float:
            # As a whole number a NaN of this sign is beyond all others, so it stays.
            text = f'tl.where({value.operand} == {value.operand}, {text}, {"" if s.mode == "max" else "-"}float("nan"))'
        call = "tl.store" if s.mode == "set" else f"tl.atomic_{s.mode}"
        if s.mode != "set":
            text = f"tl.broadcast_to({text}, {self._shape(everywhere)})" if value.dims != everywhere else text
        last = f", {masks}" if masks else ""
        last += ', sem="relaxed"' if s.mode != "set" else ""
        return f"{call}({s.buffer} + {address}, {text}{last})"

    def _fold(self, item: Fold, along: Dim) -> list[str]:
        """Fold a value into an accumulator, or at once; gives the lines that come behind the loop."""
        value = self._typed(self.value(item.value), item.value.dtype)
        name, places = along.var.name, item.reduction.startswith("arg")
        start = _number(Const(item.value.dtype, reduction_identity(item.reduction, item.value.dtype)))
        dims = value.dims | {name}
        mask = self.inside.get(name)
        text = self._full(value, dims)
        place = self._full(self.index(item.position), dims, self.integer) if places else ""
        if along.kind == WHOLE:
            if mask:
                text = f"tl.where({mask}, {text}, {start})"
                place = f"tl.where({mask}, {place}, {_FAR})" if places else ""
            self._finish(item, name, text, place, dims - {name})
            return []
        acc = f"{item.name}_all"
        kind = TYPES[item.value.dtype]
        self.line(f"{acc} = tl.full({self._shape(dims)}, {start}, {kind})", -2)
        if places:
            self.line(f"{acc}_at = tl.full({self._shape(dims)}, {_FAR}, {self.integer})", -2)
            if mask:
                text, place = f"tl.where({mask}, {text}, {start})", f"tl.where({mask}, {place}, {_FAR})"
            helper = FOLDS[item.reduction].helper
            self.scopes[-1].last.append(f"{acc}, {acc}_at = {helper}({acc}, {acc}_at, {text}, {place})")
        else:
            two = FOLDS[item.reduction].two
            both = two.format(a=acc, b=text if "(" in two else _wrapped(text))
            self.scopes[-1].last.append(f"{acc} = {f'tl.where({mask}, {both}, {acc})' if mask else both}")
        held, self.scopes = self.scopes, [Scope("")]
        self._finish(item, name, acc, f"{acc}_at" if places else "", dims - {name})
        lines, self.scopes = self.scopes[0].lines, held
        return lines

    def _finish(self, item: Fold, name: str, text: str, place: str, dims: frozenset[str]) -> None:
        """Fold a tile along its inner dimension."""
        axis = self._axis(name)
        keep = ", keep_dims=True" if self.rank > 1 else ""
        helper = FOLDS[item.reduction].helper
        if place:
            self.line(f"_, {item.name}_at = tl.reduce(({text}, {place}), {axis}, {helper}{keep})")
            line = f"{item.name}_at.to(tl.int64)"
        else:
            line = self._reduced(item.reduction, item.value.dtype, text, axis, keep)
        self.line(f"{item.name} = {line}")
        self.results[item.name] = Term(item.name, dims, 0)

    @staticmethod
    def _reduced(reduction: str, dtype: str, text: str, axis: int, keep: str) -> str:
        if reduction == "sum":
            return f"tl.sum({text}, {axis}{keep})"
        if dtype == "b8":
            function = "tl.max" if reduction in ("any", "max") else "tl.min"
            return f"{function}({_wrapped(text)}.to(tl.int32), {axis}{keep}) != 0"
        return f"tl.reduce({text}, {axis}, {FOLDS[reduction].helper}{keep})"

    def _full(self, term: Term, dims: frozenset[str], kind: str = "") -> str:
        """A value that is as large as the tile along `dims`."""
        if dims <= term.dims:
            return term.text
        if term.number:
            return f"tl.full({self._shape(dims)}, {term.text}, {kind or self.integer})"
        return f"tl.broadcast_to({term.text}, {self._shape(dims)})"

    def _online(self, item: Online, along: Dim) -> list[str]:
        """A maximum and the sum of exponentials below it, both mended as the maximum grows."""
        value = self._typed(self.value(item.value), item.value.dtype)
        name, kind = along.var.name, TYPES[item.value.dtype]
        dims = value.dims | {name}
        best, whole, near = f"{item.best}_all", f"{item.total}_all", item.total in self.shares
        axis, size = self._axis(name), along.block // self._neighbours(item.value, along)
        rows = [str(d.block if d.var.name in dims else 1) for d in self.part.grid if d.block > 1]
        sizes = ", ".join([*rows, str(size)])
        self.line(f'{best} = tl.full([{sizes}], -float("inf"), {kind})', -2)
        self.line(f"{whole} = tl.zeros([{sizes}], {kind})", -2)
        text, mask = self._full(value, dims), self.inside.get(name)
        text = f'tl.where({mask}, {text}, -float("inf"))' if mask else text
        text = f"tl.reshape({text}, [{sizes}, {along.block // size}])"
        self.scopes[-1].last.append(f"{best}, {whole} = online_sum({best}, {whole}, {text}, {self.rank}, {near})")
        keep = ", keep_dims=True" if self.rank > 1 else ""
        # Of an infinite maximum the differences are NaN, or it counts as 0.
        odd = f'tl.where({item.best} > 0, float("inf"), 0.0)' if item.finite else 'float("nan")'
        for result in (item.best, item.total):
            self.results[result] = Term(result, dims - {name}, 0)
        return [
            f"{item.best} = tl.reduce({best}, {axis}, greatest_of{keep})",
            f"{whole} *= tl.where({best} == {item.best}, 1.0, libdevice.exp({best} - {item.best}))",
            f"{item.total} = tl.sum({whole}, {axis}{keep})",
            f'{item.total} = tl.where(tl.abs({item.best}) == float("inf"), {odd}, {item.total})',
        ]

    @staticmethod
    def _neighbours(value: Value, along: Dim) -> int:
        """Elements that one thread reads together: it folds them before it looks at those that it had."""
        loads = [v for v in values_of(value) if isinstance(v, Load) and along.var in v.index.vars()]
        if not loads or any(v.binds or v.index.coeff(along.var) is not ONE for v in loads):
            return 1
        return min(8, along.block, 16 // min(DTYPES[v.dtype].nbytes for v in loads))

    # ------------------------------------------------------------ folds of a thread, scans

    def _serial(self, key: object, v: Reduce, mask: tuple[Term, ...]) -> Term:
        """A fold that each element of the tile does alone, in a loop."""
        places = v.name.startswith("arg")
        depth = len(self.scopes)
        for a in v.axes:
            size = self.index(a.size)
            short = a.size.is_const and a.size.const <= _UNROLLED
            self.open(f"for {a.var.name} in {'tl.static_range' if short else 'range'}({size.text}):")
            wide = self.wide and not short
            if wide:
                self.line(f"{a.var.name}_wide = {a.var.name}.to(tl.int64)")
            self.vars[a.var] = Term(a.var.name + "_wide" * wide, frozenset(), len(self.scopes) - 1)
        body = self._typed(self.value(v.body, mask), v.body.dtype)
        acc = self.fresh()
        start = _number(Const(v.body.dtype, reduction_identity(v.name, v.body.dtype)))
        shape = self._shape(body.dims) if body.dims else "[]"
        begin = [f"{acc} = tl.full({shape}, {start}, {TYPES[v.body.dtype]})"]
        if places:
            begin.append(f"{acc}_at = tl.full({shape}, {_FAR}, {self.integer})")
            text = f"tl.full({shape}, {self.index(position_of(v)).text}, {self.integer})"
            self.line(f"{acc}, {acc}_at = {FOLDS[v.name].helper}({acc}, {acc}_at, {body.text}, {text})")
        else:
            two = FOLDS[v.name].two
            self.line(f"{acc} = " + two.format(a=acc, b=body.text if "(" in two else body.operand))
        # What the loop starts from stands before it.
        self.scopes[depth - 1].lines += begin
        while len(self.scopes) > depth:
            self.close()
        term = Term(f"{acc}_at.to(tl.int64)" if places else acc, body.dims, depth - 1)
        return self.remember(key, term)

    def _scan(self, key: object, v: Scan, mask: tuple[Term, ...]) -> Term:
        """A running fold along the phase's dimension; a loop carries what came before."""
        body = self._typed(self.value(v.body, mask), v.dtype)
        along = next(d for d in self.part.inner if d.var is v.var)
        name, row = v.var.name, FOLDS[v.name]
        # All of the tile: Triton 3.6 refuses a scan of fewer rows than the tile has.
        dims = body.dims | {name, *(d.var.name for d in self.part.grid if d.block > 1)}
        axis = self._axis(name)
        text = self._full(body, dims)
        depth = len(self.scopes) - 1
        start = _number(Const(v.dtype, reduction_identity(v.name, v.dtype)))
        inner = self.named(("scan", key), Term(f"tl.associative_scan({text}, {axis}, {row.helper})", dims, depth))
        if along.kind == WHOLE:
            return self.remember(key, inner)
        carry = f"{self.fresh()}_before"
        before = self._shape(dims - {name}) if self.rank > 1 else "[]"
        self.line(f"{carry} = tl.full({before}, {start}, {TYPES[v.dtype]})", -2)
        term = self.named(key, Term(row.two.format(a=carry, b=inner.text), dims, depth))
        inside = self.inside.get(name)
        text = f"tl.where({inside}, {text}, {start})" if inside else text
        keep = ", keep_dims=True" if self.rank > 1 else ""
        more = self._reduced(v.name, v.dtype, text, axis, keep)
        self.scopes[-1].last.append(f"{carry} = {row.two.format(a=carry, b=more)}")
        return term


_FAR = (1 << 31) - 1
"""A place behind all others."""


def _wrapped(text: str) -> str:
    return text if re.fullmatch(r"\w+|[\w.]+\([^()]*\)", text) else f"({text})"


def _number(v: Const) -> str:
    value = v.value
    if isinstance(value, float) and not math.isfinite(value):
        return 'float("nan")' if math.isnan(value) else f'{"-" if value < 0 else ""}float("inf")'
    return repr(value)


def _inverse(v: Op) -> Const | None:
    """The number by which eager's kernels multiply where a number divides, also in means and hardswish; pooling, and a
    tensor of one number, divide, from which this is off by a last bit."""
    kind = {"f32": "f", "f64": "d"}.get(v.dtype)
    if v.name != "div" or kind is None or not isinstance(v.args[1], Const) or not 1e-37 < abs(v.args[1].value) < 1e37:
        return None
    (by,) = unpack(kind, pack(kind, v.args[1].value))
    return Const(v.dtype, *unpack(kind, pack(kind, 1 / by)))


def _shares(part: Part) -> dict[str, Value]:
    """Sums -> the exponentials, of differences from a maximum, that they add up, where all that goes along the rows has
    16 bits. There 2 to the power of a product is exact enough: it is off by as much as the product was rounded, which
    is 1e-6 for exp(-20), and less in a sum."""
    inner, items = {d.var for d in part.inner}, [i for p in part.phases for i in p.items]
    moved: list[Value] = [v for p in part.phases for v in loads_of(*p.items) if not inner.isdisjoint(v.index.vars())]
    moved += [i.value for i in items if isinstance(i, Store) and not inner.isdisjoint(i.index.vars())]
    tops = {i.name for i in items if isinstance(i, Fold) and i.reduction == "max"}
    out: dict[str, Value] = {}
    for i in items if all(DTYPES[v.dtype].nbytes <= 2 for v in moved) else ():
        match i:
            case Online(best, name, value) if value.dtype == "f32":
                out[name] = Op("f32", "exp", (Op("f32", "sub", (value, local("f32", best))),))
            case Fold(name, "sum", Op("f32", "exp", (Op(_, "sub", (_, Load(_, top))),)) as value) if top in tops:
                out[name] = value
    return out
