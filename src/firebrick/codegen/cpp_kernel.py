"""C++ text of one kernel: loops, accumulators, stores, and how iterations go to lanes and threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from firebrick.codegen.cpp_ops import COMBINE
from firebrick.codegen.cpp_types import SCALAR, constant_text, lane_type
from firebrick.codegen.cpp_values import Lanes, Local, Text, Values
from firebrick.errors import InternalError
from firebrick.loops.dtypes import DTYPES
from firebrick.loops.ir import Const, Index, Load, Store
from firebrick.loops.ops import reduction_identity
from firebrick.loops.tree import Acc, Fold, Let, Loop, Scratch
from firebrick.symbolic.expr import ONE, var

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from firebrick.codegen.cpp_values import Unit
    from firebrick.loops.ir import Value
    from firebrick.loops.schedule import Kernel
    from firebrick.loops.tree import Stmt
    from firebrick.symbolic.expr import Expr

__all__ = ["kernel_text"]

_CHUNK = 4096
"""Iterations of a vector loop that one thread takes at a time."""
_SPREAD = 64
"""Nested parallel loops are shared out as one until they have this many iterations."""
_UNROLL = 4
"""Vectors that a short reduction loop folds side by side, to hide the latency of additions."""
_CASCADE = 64
"""Additions in a row after which a partial sum is put aside, which bounds the error of long sums."""


@dataclass(slots=True)
class _AccState:
    """How an accumulator is kept. copies: vectors side by side; lanes: width of vectors, 0 for one value."""

    acc: Acc
    code: str
    lanes: int
    copies: int = 1
    unrolled: bool = False

    @property
    def positions(self) -> bool:
        return self.acc.reduction.startswith("arg")


def kernel_text(kernel: Kernel, unit: Unit) -> str:
    """The functions of one kernel; what they need is noted in `unit`."""
    return _Kernel(kernel, unit).text()


@dataclass(slots=True)
class _Split:
    """The parallel loops at the top of a kernel: lets before them, the loops shared out as one, and their body."""

    loops: list[Loop] = field(default_factory=list)
    lets: list[list[Let]] = field(default_factory=list)
    chunk: int = 1


class _Kernel:
    def __init__(self, kernel: Kernel, unit: Unit) -> None:
        self.kernel = kernel
        self.unit = unit
        self.out = Values(unit, {p.name: p.dtype for p in kernel.params})
        self.accs: dict[str, _AccState] = {}
        self.copy = ""

    # ------------------------------------------------------------ functions

    def text(self) -> str:
        """The whole text."""
        name = self.kernel.name
        out = self.out
        split = self._split()
        out.lines.append(
            f"static void {name}_part(void* const* args, const int64_t* sizes, int64_t begin, int64_t end) {{"
            if split.loops
            else f'extern "C" void {name}(void* const* args, const int64_t* sizes) {{'
        )
        self._arguments()
        if not split.loops:
            self.body(self.kernel.body)
            out.lines.append("}")
            return "\n".join(out.lines) + "\n"
        count = self._parallel(split)
        out.lines.append("}")
        out.lines.append(f'extern "C" void {name}(void* const* args, const int64_t* sizes) {{')
        self._sizes()
        out.line(f"fb_parallel({name}_part, args, sizes, {count});")
        out.lines.append("}")
        return "\n".join(out.lines) + "\n"

    def _arguments(self) -> None:
        for k, p in enumerate(self.kernel.params):
            scalar = "uint8_t" if p.dtype == "b8" else SCALAR[p.dtype]
            const = "" if p.written else "const "
            self.out.line(f"{const}{scalar}* const {p.name} = ({const}{scalar}*)args[{k}];")
        self._sizes()

    def _sizes(self) -> None:
        for k, name in enumerate(self.kernel.sizes):
            self.out.line(f"const int64_t {name} = sizes[{k}];")

    def _split(self) -> _Split:
        split = _Split()
        body: Sequence[Stmt] = self.kernel.body
        total = 1
        while total < _SPREAD:
            lets = [s for s in body if isinstance(s, Let)]
            rest = [s for s in body if not isinstance(s, Let)]
            if len(rest) != 1 or not isinstance(rest[0], Loop) or not rest[0].parallel:
                break
            loop = rest[0]
            if loop.kind != "serial" and split.loops:
                break
            split.loops.append(loop)
            split.lets.append(lets)
            body = loop.body
            size = loop.axis.size
            if loop.kind != "serial":
                lanes = self._width(loop)
                split.chunk = _CHUNK if loop.kind == "vector" else lanes * 4
                break
            if size.terms:
                total *= _SPREAD
            else:
                total *= size.const
        return split

    def _parallel(self, split: _Split) -> str:
        """The body of the part function; returns how many iterations there are to share out."""
        out = self.out
        last = split.loops[-1]
        size = out.index(last.axis.size)
        if last.kind != "serial":
            for let in split.lets[0]:
                self._let(let)
            low = f"begin * {split.chunk}"
            high = f"end * {split.chunk} < {size} ? end * {split.chunk} : {size}"
            self._vector_loop(last, low, high, chunked=split.chunk)
            return f"({size} + {split.chunk - 1}) / {split.chunk}"
        if len(split.loops) == 1:
            for let in split.lets[0]:
                self._let(let)
            name = self._bind(last)
            out.open(f"for (int64_t {name} = begin; {name} < end; {name}++)")
            self.body(last.body)
            out.close()
            return size
        for let in split.lets[0]:
            self._let(let)
        out.open("for (int64_t at = begin; at < end; at++)")
        sizes = [out.index(loop.axis.size) for loop in split.loops]
        for k, loop in enumerate(split.loops):
            inner = " * ".join(f"({s})" for s in sizes[k + 1 :])
            text = f"at / ({inner})" if inner else "at"
            name = self._bind(loop)
            out.line(f"const int64_t {name} = {text}{f' % ({sizes[k]})' if k else ''};")
            for let in split.lets[k + 1] if k + 1 < len(split.lets) else []:
                self._let(let)
        self.body(last.body)
        out.close()
        return " * ".join(f"({s})" for s in sizes)

    # ------------------------------------------------------------ statements

    def body(self, body: Iterable[Stmt]) -> None:
        """Statements of one block."""
        stmts = list(body)
        out = self.out
        leaves: list[Store | Fold] = []
        begun: set[str] = set()
        for k, s in enumerate(stmts):
            if isinstance(s, (Store, Fold)):
                leaves.append(s)
                continue
            self._flush(leaves)
            if isinstance(s, Let):
                self._let(s)
            elif isinstance(s, Scratch):
                private = out.lanes is not None
                size = s.size * (out.lanes.width if out.lanes else 1)
                scalar = "uint8_t" if s.dtype == "b8" else SCALAR[s.dtype]
                out.line(f"alignas(64) {scalar} {s.name}[{size}];")
                out.locals[s.name] = Local(s.name, private, True, private)
            elif isinstance(s, Acc):
                self._start(s, stmts[k + 1 :])
                begun.add(s.name)
            else:
                self._loop(s)
                self._finish(s, begun)
        self._flush(leaves)

    def _let(self, let: Let) -> None:
        text = self.out.value(let.value)
        self.out.locals[let.name] = Local(text.code, text.varying)

    def _flush(self, leaves: list[Store | Fold]) -> None:
        """Stores and folds; all values come first, so that a buffer may be both read and written at one index."""
        texts = [self.out.value(s.value) for s in leaves]
        for s, text in zip(leaves, texts, strict=True):
            if isinstance(s, Fold):
                self._fold(s, text)
            elif s.mode == "set":
                self._store(s, text)
            else:
                self._update(s, text)
        leaves.clear()

    def _store(self, s: Store, text: Text) -> None:
        out = self.out
        lanes = out.lanes
        dtype = s.value.dtype
        local = out.locals.get(s.buffer)
        base = local.code if local is not None else s.buffer
        bound = [(v, out.value(b)) for v, b in s.binds]
        for v, t in bound:
            out.names[v] = t.code
        private = local is not None and local.private
        if lanes is None or not (private or lanes.var in s.index.vars() or any(t.varying for _, t in bound)):
            if text.varying:
                raise InternalError("lanes stored to one place")
            out.line(f"{base}[{out.index(s.index)}] = {text.code};")
            return
        stored = out.unit.vector("u8" if dtype == "b8" else lane_type(dtype), lanes.width)
        code = out.spread(text, dtype)
        if dtype == "b8":
            code = f"__builtin_convertvector({code} & 1, {stored})"
        gathered = any(t.varying for _, t in bound)
        if private or (not gathered and s.index.coeff(lanes.var) is ONE):
            index = f"({out.index(s.index)}) * {lanes.width}" if private else out.index(s.index)
            if lanes.count is None or private:
                out.line(f"*({stored}u*)({base} + {index}) = {code};")
            else:
                out.line(f"{stored}_store({base} + {index}, {code}, {lanes.count});")
            return
        name = out.fresh()
        out.line(f"const {stored} {name} = {code};")
        for k in range(lanes.width):
            if lanes.count is not None and lanes.count.isdigit() and k >= int(lanes.count):
                break
            for v, t in bound:
                out.names[v] = f"{t.code}[{k}]" if t.varying else t.code
            guard = f"if ({k} < {lanes.count}) " if lanes.count is not None and not lanes.count.isdigit() else ""
            out.line(f"{guard}{base}[{out.index(s.index, k)}] = {name}[{k}];")

    def _update(self, s: Store, text: Text) -> None:
        """buffer[index] = combine(buffer[index], value); the schedule keeps such loops on one thread, without lanes."""
        out = self.out
        if out.lanes is not None:
            raise InternalError("an update inside of a vector loop")
        for v, t in [(v, out.value(b)) for v, b in s.binds]:
            out.names[v] = t.code
        place = f"{s.buffer}[{out.index(s.index)}]"
        dtype = s.value.dtype
        half = dtype in ("bf16", "f16")
        old = out.fresh("p")
        if half:
            raise InternalError(f"an update of {dtype}")
        out.line(f"auto& {old} = {place};")
        name = {"add": "add", "max": "max", "min": "min"}[s.mode]
        kind = dtype if dtype != "b8" else "b8"
        if kind == "b8" and name == "add":
            name = "or"
        out.line(f"{old} = {out.op_text(name, kind, [old, text.code], False)};")

    # ------------------------------------------------------------ accumulators

    def _start(self, acc: Acc, after: Sequence[Stmt]) -> None:
        out = self.out
        loop = next((s for s in after if isinstance(s, Loop) and _folds(s.body, acc.name)), None)
        if loop is None:
            raise InternalError(f"nothing folds into {acc.name}")
        inside = next((x for x in [loop, *_chain(loop.body)] if x.kind == "vector" and _folds(x.body, acc.name)), None)
        if out.lanes is not None or inside is None:
            lanes = out.lanes.width if out.lanes is not None else 0
            state = _AccState(acc, acc.name, lanes)
        else:
            width = self._width(inside)
            state = _AccState(acc, acc.name, width if width > 1 else 0, self._copies(inside, width))
        self.accs[acc.name] = state
        self._declare(state, state.code)
        out.locals[acc.name] = Local(acc.name, state.lanes > 0)

    def _identity(self, state: _AccState) -> str:
        dtype = state.acc.dtype
        text = constant_text(reduction_identity(state.acc.reduction, dtype), dtype)
        if not state.lanes:
            return text
        vector = self.out.unit.vector(lane_type(dtype), state.lanes)
        return f"{vector}_of(-(int){text})" if dtype == "b8" else f"{vector}_of({text})"

    def _declare(self, state: _AccState, code: str) -> None:
        out = self.out
        dtype = state.acc.dtype
        kind = out.unit.vector(lane_type(dtype), state.lanes) if state.lanes else SCALAR[dtype]
        start = self._identity(state)
        array = f"[{state.copies}]" if state.copies > 1 else ""
        init = f"{{{', '.join([start] * state.copies)}}}" if state.copies > 1 else start
        out.line(f"{kind} {code}{array} = {init};")
        if state.positions:
            kind = out.unit.vector("i64", state.lanes) if state.lanes else "int64_t"
            far = "INT64_MAX"
            start = f"{kind}_of({far})" if state.lanes else far
            init = f"{{{', '.join([start] * state.copies)}}}" if state.copies > 1 else start
            out.line(f"{kind} {code}_at{array} = {init};")

    def _width(self, loop: Loop) -> int:
        """Lanes of a vector loop: as many as a register holds of the widest type that varies in it."""
        return self.unit.target.lanes(_widest(loop))

    def _copies(self, loop: Loop, width: int) -> int:
        size = loop.axis.size
        if width == 1 or any(isinstance(s, (Loop, Acc, Scratch)) for s in loop.body):
            return 1
        if _weight(loop.body) > 8 or (not size.terms and size.const < 2 * _UNROLL * width):
            return 1
        return _UNROLL

    def _fold(self, s: Fold, text: Text) -> None:
        out = self.out
        state = self.accs[s.acc]
        dtype = state.acc.dtype
        code = state.code + (self.copy if state.copies > 1 else "")
        if state.lanes == 0:
            self._fold_one(s, state, code, text)
            return
        lanes = out.lanes
        assert lanes is not None
        new = out.spread(text, dtype)
        if lanes.count is not None:
            new = self._cut(new, state, lanes)
        if not state.positions:
            out.line(
                f"{code} = {out.op_text(COMBINE[state.acc.reduction], dtype, [code, _name(out, dtype, new)], True)};"
            )
            return
        new = _name(out, dtype, new)
        at = code.replace(state.code, f"{state.code}_at", 1)
        position = out.value(Index("i64", s.position))
        place = out.spread(position, "i64")
        mask, wide = out.fresh("m"), out.unit.vector("i64", lanes.width)
        narrow = out.unit.vector({1: "i8", 2: "i16", 4: "i32", 8: "i64"}[DTYPES[dtype].nbytes], lanes.width)
        out.line(f"const {wide} {mask}w = __builtin_convertvector({_better(state, new, code)}, {wide});")
        out.line(
            f"const {wide} {mask}t = __builtin_convertvector({_ties(state, new, code)}, {wide}) & ({place} < {at});"
        )
        out.line(f"const {wide} {mask} = {mask}w | {mask}t;")
        out.line(f"{code} = __builtin_convertvector({mask}, {narrow}) ? {new} : {code};")
        out.line(f"{at} = {mask} ? {place} : {at};")

    def _fold_one(self, s: Fold, state: _AccState, code: str, text: Text) -> None:
        out = self.out
        dtype = state.acc.dtype
        if not state.positions:
            out.line(f"{code} = {out.op_text(COMBINE[state.acc.reduction], dtype, [code, text.code], False)};")
            return
        position = out.index(s.position)
        new = text.code
        better = f"({_better(state, new, code)}) || (({_ties(state, new, code)}) && {position} < {code}_at)"
        out.line(f"if ({better}) {{ {code} = {new}; {code}_at = {position}; }}")

    def _cut(self, new: str, state: _AccState, lanes: Lanes) -> str:
        """Lanes beyond the count must not change the result."""
        out = self.out
        dtype = state.acc.dtype
        signed = out.unit.vector({1: "i8", 2: "i16", 4: "i32", 8: "i64"}[DTYPES[lane_type(dtype)].nbytes], lanes.width)
        listed = ", ".join(str(k) for k in range(lanes.width))
        return f"(({signed}{{{listed}}} < {lanes.count}) ? {new} : {self._identity(state)})"

    def _finish(self, loop: Loop, begun: set[str]) -> None:
        """After a loop, lanes that were folded in it become one value."""
        out = self.out
        for name in sorted(begun):
            if not _folds(loop.body, name):
                continue
            state = self.accs[name]
            begun.discard(name)
            if state.lanes and out.lanes is None:
                self._gather(state)
            elif state.positions:
                out.locals[name] = Local(f"{name}_at", state.lanes > 0)
            del self.accs[name]

    def _gather(self, state: _AccState) -> None:
        out = self.out
        name, dtype, width = state.acc.name, state.acc.dtype, state.lanes
        lane = lane_type(dtype)
        copies = [f"{name}[{k}]" for k in range(state.copies)] if state.copies > 1 else [name]
        if state.positions:
            best = out.fresh("b")
            out.line(f"{SCALAR[dtype]} {best} = {copies[0]}[0];")
            out.line(f"int64_t {best}at = {copies[0].replace(name, name + '_at', 1)}[0];")
            for code in copies:
                at = code.replace(name, f"{name}_at", 1)
                out.open(f"for (int k = 0; k < {width}; k++)")
                new, old = f"{code}[k]", best
                better = f"({_better(state, new, old)}) || (({_ties(state, new, old)}) && {at}[k] < {best}at)"
                out.line(f"if ({better}) {{ {best} = {new}; {best}at = {at}[k]; }}")
                out.close()
            out.locals[name] = Local(f"{best}at", False)
            return
        combine = COMBINE[state.acc.reduction]
        out.lanes = Lanes(var("lane"), width)
        while len(copies) > 1:
            pairs = []
            for a, b in zip(copies[::2], copies[1::2], strict=True):
                code = out.op_text(combine, dtype, [a, b], True)
                pairs.append(_name(out, dtype, code))
            copies = pairs
        out.lanes = None
        # Lanes of b8 are whole numbers, which & and | combine as they do bools.
        text = out.op_text(combine, dtype, ["a", "b"], False)
        fold = out.unit.fold(f"{combine}_{dtype}", text, lane, width)
        result = out.fresh("r")
        out.line(f"const {SCALAR[dtype]} {result} = {fold}({copies[0]});")
        out.locals[name] = Local(result, False)

    # ------------------------------------------------------------ loops

    def _bind(self, loop: Loop) -> str:
        name = loop.axis.var.name
        self.out.names[loop.axis.var] = name
        return name

    def _loop(self, loop: Loop) -> None:
        out = self.out
        if loop.kind != "serial" and out.lanes is None and self._width(loop) > 1:
            self._vector_loop(loop, "0", out.index(loop.axis.size))
            return
        sums = [s for s in self.accs.values() if s.acc.reduction in ("sum", "prod") and _folds(loop.body, s.acc.name)]
        sums = [s for s in sums if DTYPES[s.acc.dtype].is_float and s.copies == 1]
        size = loop.axis.size
        name = self._bind(loop)
        if sums and (size.terms or size.const > 2 * _CASCADE):
            self._cascade(loop, sums, name, "0", out.index(size), _CASCADE, 1)
            return
        out.open(f"for (int64_t {name} = 0; {name} < {out.index(size)}; {name}++)")
        self.body(loop.body)
        out.close()

    def _cascade(
        self, loop: Loop, sums: list[_AccState], name: str, low: str, high: str, chunk: int, step: int
    ) -> None:
        """Long sums in blocks: for each block a partial sum from the identity, then added to the total."""
        out = self.out
        block = out.fresh("c")
        out.open(f"for (int64_t {block} = {low}; {block} < {high}; {block} += {chunk})")
        end = out.fresh("e")
        out.line(f"const int64_t {end} = {block} + {chunk} < {high} ? {block} + {chunk} : {high};")
        for s in sums:
            s.code = s.acc.name + "_part"
            self._declare(s, s.code)
        out.open(f"for (int64_t {name} = {block}; {name} < {end}; {name}++)")
        self.body(loop.body)
        out.close()
        for s in sums:
            total, part = s.acc.name, s.code
            s.code = total
            out.line(f"{total} = {total} {'+' if s.acc.reduction == 'sum' else '*'} {part};")
        out.close()

    def _vector_loop(self, loop: Loop, low: str, high: str, chunked: int = 0) -> None:
        out = self.out
        width = self._width(loop)
        name = self._bind(loop)
        if width == 1:
            out.open(f"for (int64_t {name} = {low}, end_ = {high}; {name} < end_; {name}++)")
            self.body(loop.body)
            out.close()
            return
        size = loop.axis.size
        states = [s for s in self.accs.values() if s.lanes and _folds(loop.body, s.acc.name)]
        copies = max((s.copies for s in states), default=1)
        at, end = out.fresh("at"), out.fresh("end")
        out.line(f"int64_t {at} = {low};")
        out.line(f"const int64_t {end} = {high};")
        known = None if size.terms else size.const
        if copies > 1 and (known is None or known >= width * copies):
            out.open(f"for (; {at} + {width * copies} <= {end}; {at} += {width * copies})")
            out.line(f"#pragma GCC unroll {copies}")
            out.open(f"for (int u = 0; u < {copies}; u++)")
            out.line(f"const int64_t {name} = {at} + {width} * u;")
            self.copy = "[u]"
            self._lanes_body(loop, Lanes(loop.axis.var, width))
            out.close()
            out.close()
        self.copy = "[0]"
        left = known % (width * copies) if known is not None else None
        if (left is None or left >= width or copies == 1) and (known is None or known >= width):
            out.open(f"for (; {at} + {width} <= {end}; {at} += {width})")
            out.line(f"const int64_t {name} = {at};")
            self._lanes_body(loop, Lanes(loop.axis.var, width))
            out.close()
        rest = known % width if known is not None else None
        if rest != 0:
            out.open(f"if ({at} < {end})")
            out.line(f"const int64_t {name} = {at};")
            count = str(rest)
            if rest is None:
                count = out.fresh("n")
                out.line(f"const int64_t {count} = {end} - {at};")
            self._lanes_body(loop, Lanes(loop.axis.var, width, count))
            out.close()

    def _lanes_body(self, loop: Loop, lanes: Lanes) -> None:
        out = self.out
        saved = dict(out.locals), dict(self.accs)
        out.lanes = lanes
        self.body(loop.body)
        out.lanes = None
        out.locals, self.accs = saved


def _name(out: Values, dtype: str, code: str) -> str:
    """Name a vector expression, so that it can be repeated."""
    if code.isidentifier():
        return code
    name = out.fresh()
    out.line(f"const {out.type_of(dtype, True)} {name} = {code};")
    return name


def _better(state: _AccState, new: str, old: str) -> str:
    sign = ">" if state.acc.reduction == "argmax" else "<"
    if DTYPES[state.acc.dtype].is_float:
        return f"({new} {sign} {old}) | (({new} != {new}) & ({old} == {old}))"
    return f"{new} {sign} {old}"


def _ties(state: _AccState, new: str, old: str) -> str:
    if DTYPES[state.acc.dtype].is_float:
        return f"({new} == {old}) | (({new} != {new}) & ({old} != {old}))"
    return f"{new} == {old}"


def _folds(body: Iterable[Stmt], acc: str) -> bool:
    return any(s.acc == acc if isinstance(s, Fold) else isinstance(s, Loop) and _folds(s.body, acc) for s in body)


def _chain(body: Iterable[Stmt]) -> Iterable[Loop]:
    for s in body:
        if isinstance(s, Loop):
            yield s
            yield from _chain(s.body)


def _walk(body: Iterable[Stmt]) -> Iterable[Value]:
    """Values of a body, those that they are made of included, each once."""
    seen: set[Value] = set()
    stack: list[Value] = []
    pending: list[Stmt] = list(body)
    while pending:
        s = pending.pop()
        if isinstance(s, Loop):
            pending.extend(s.body)
        elif isinstance(s, (Let, Fold)):
            stack.append(s.value)
        elif isinstance(s, Store):
            stack.append(s.value)
            stack.extend(b for _, b in s.binds)
    while stack:
        v = stack.pop()
        if v not in seen:
            seen.add(v)
            yield v
            stack.extend(_children(v))


def _children(v: Value) -> tuple[Value, ...]:
    if isinstance(v, Load):
        return tuple(b for _, b in v.binds)
    if isinstance(v, (Const, Index)):
        return ()
    return getattr(v, "args", None) or (v.cond, v.body)  # type: ignore[union-attr]


def _weight(body: Iterable[Stmt]) -> int:
    return sum(1 for v in _walk(body) if not isinstance(v, Const))


def _widest(loop: Loop) -> int:
    """Bytes of the widest lanes in a loop; values that are the same in all lanes don't count."""
    widest = 4
    lane = loop.axis.var
    inner = {s.name for s in _all(loop.body) if isinstance(s, (Let, Acc, Scratch))}
    for v in _walk(loop.body):
        if DTYPES[v.dtype].nbytes > widest and _varies(v, lane, inner):
            widest = DTYPES[v.dtype].nbytes
    for s in _all(loop.body):
        if isinstance(s, Fold) and lane in s.position.vars():
            widest = 8
    return widest


def _varies(v: Value, lane: Expr, inner: set[str]) -> bool:
    if isinstance(v, Const):
        return False
    if isinstance(v, Index):
        return False  # lanes of an index are made as wide as needed
    if isinstance(v, Load):
        return lane in v.index.vars() or v.buffer in inner or any(_varies(b, lane, inner) for _, b in v.binds)
    return any(_varies(c, lane, inner) for c in _children(v))


def _all(body: Iterable[Stmt]) -> Iterable[Stmt]:
    for s in body:
        yield s
        if isinstance(s, Loop):
            yield from _all(s.body)
