"""C++ text of the body of a kernel: statements, loops, and how iterations go to lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise

from firebrick.errors import InternalError
from firebrick.ir.index.expr import ONE, Var
from firebrick.ir.kernels.tree import Acc, Fold, Let, Loop, Scratch, Stmt, all_statements
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Store
from firebrick.targets.cpu.accumulators import AccState, add_partial, declare, fold, gather, sums
from firebrick.targets.cpu.casts import half
from firebrick.targets.cpu.cpp_types import SCALAR, lane_type
from firebrick.targets.cpu.lane_values import Values
from firebrick.targets.cpu.tree_facts import folding_loop, folds, price, transposed, weight, widest
from firebrick.targets.cpu.unit_writer import Lanes, Local, Replica, Text, Unit

_UNROLL = 4
"""Vectors that a short reduction loop folds side by side, to hide the latency of additions."""
_COUNTED = 4
"""Iterations of an innermost loop that are written out: counting takes as long as what they do."""
_SHORT_CHAIN = 16
"""Instructions of a loop that is short for that: longer ones hide it themselves, and would be long to compile."""
TILE = 4
"""Vectors that a tile of columns is wide, if its body is short."""
_LONG_CHAIN = 64
"""Operations from which on a loop computes several vectors side by side: a CPU does not look far enough ahead to begin
the next iteration while operations of this one wait for each other."""
_LONGEST_CHAIN = 512
"""Operations up to which: the C++ compiler takes long over what several times as many would be."""
_CASCADE = 32
"""Additions in a row after which a partial sum is put aside, which bounds the error of long sums."""
_LONGEST = 1 << 20
"""Additions that a loop of symbolic size is prepared for."""


class Body:
    """Writes the statements of one kernel."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.out = Values(unit)
        self.copy = ""

    # ------------------------------------------------------------ statements

    def body(self, body: Iterable[Stmt]) -> None:
        """Statements of one block."""
        stmts = list(body)
        leaves: list[Store | Fold] = []
        begun: set[str] = set()
        for k, s in enumerate(stmts):
            if isinstance(s, (Store, Fold)):
                leaves.append(s)
                continue
            self.flush(leaves)
            if isinstance(s, Loop):
                self._loop(s)
                self.finish(s, begun)
                continue
            for _ in self.out.each_replica():
                if isinstance(s, Let):
                    self.let(s)
                elif isinstance(s, Scratch):
                    self._scratch(s)
                else:
                    self.start(s, stmts[k + 1 :])
                    begun.add(s.name)
        self.flush(leaves)

    def let(self, let: Let) -> None:
        """Name a value."""
        text = self.out.value(let.value)
        self.out.locals[let.name] = Local(text.code, text.varying)

    def _scratch(self, s: Scratch) -> None:
        out = self.out
        private = out.lanes is not None
        size = s.size * (out.lanes.width if out.lanes else 1)
        scalar = "uint8_t" if s.dtype == "b8" else SCALAR[s.dtype]
        name = s.name + out.suffix
        out.line(f"alignas(64) {scalar} {name}[{size}];")
        out.locals[s.name] = Local(name, private, True, private)

    def flush(self, leaves: list[Store | Fold]) -> None:
        """Stores and folds; all values come first, so that a buffer may be both read and written at one index."""
        if not leaves:
            return
        out = self.out
        texts, first = [], len(out.lines)
        starts = []
        for _ in out.each_replica():
            starts.append(len(out.lines))
            texts.append([out.value(s.value) for s in leaves])
        out.lines[first:] = _interleaved([out.lines[a:b] for a, b in pairwise([*starts, len(out.lines)])])
        for k, _ in enumerate(out.each_replica()):
            for s, text in zip(leaves, texts[k], strict=True):
                if isinstance(s, Fold):
                    state = out.accs[s.acc]
                    fold(out, s, state, text, self.copy if state.copies > 1 else "")
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
        gathered = any(t.varying for _, t in bound)
        if lanes is None or not (private or gathered or lanes.var in s.index.vars()):
            if text.varying:
                raise InternalError("lanes stored to one place")
            out.line(f"{base}[{out.index(s.index)}] = {text.code};")
            return
        stored = out.unit.vector("u8" if dtype == "b8" else lane_type(dtype), lanes.width)
        code = out.spread(text, dtype)
        if dtype == "b8":
            code = f"__builtin_convertvector({code} & 1, {stored})"
        if private:
            out.line(f"*({stored}u*)({base} + ({out.index(s.index)}) * {lanes.width}) = {code};")
        elif not gathered and s.index.coeff(lanes.var) is ONE:
            place, some = f"{base} + {out.index(s.index)}", lanes.count
            out.line(f"{stored}_store({place}, {code}, {some});" if some else f"*({stored}u*)({place}) = {code};")
        else:
            self._scatter(s, base, stored, code, bound)

    def _scatter(self, s: Store, base: str, stored: str, code: str, bound: list[tuple[Var, Text]]) -> None:
        """Store lanes one by one."""
        out = self.out
        lanes = out.lanes
        assert lanes is not None
        name = out.fresh()
        out.line(f"const {stored} {name} = {code};")
        fixed = lanes.count is not None and lanes.count.isdigit()
        for k in range(int(lanes.count) if fixed and lanes.count else lanes.width):
            for v, t in bound:
                out.names[v] = f"{t.code}[{k}]" if t.varying else t.code
            guard = f"if ({k} < {lanes.count}) " if lanes.count is not None and not fixed else ""
            out.line(f"{guard}{base}[{out.index(s.index, k)}] = {name}[{k}];")

    def _update(self, s: Store, text: Text) -> None:
        """buffer[index] = combine(buffer[index], value); the schedule shares out only loops that meet nowhere."""
        out = self.out
        bound = [(v, out.value(b)) for v, b in s.binds]
        for v, t in bound:
            out.names[v] = t.code
        dtype = s.value.dtype
        if out.lanes is not None:
            if s.index.coeff(out.lanes.var) is not ONE or any(t.varying for _, t in bound):
                raise InternalError("lanes that update one place")
            stored = out.unit.vector(lane_type(dtype), out.lanes.width)
            place, count = f"{s.buffer} + {out.index(s.index)}", out.lanes.count
            old = f"*(const {stored}u*)({place})" if count is None else f"{stored}_load({place}, {count})"
            old = out.name(dtype, old, True).code
            code = out.op_text(s.mode, dtype, [old, out.spread(text, dtype)], True)
            whole = f"*({stored}u*)({place}) = {code};"
            out.line(whole if count is None else f"{stored}_store({place}, {code}, {count});")
            return
        place = out.fresh("p")
        out.line(f"auto& {place} = {s.buffer}[{out.index(s.index)}];")
        function = {"add": "or" if dtype == "b8" else "add", "max": "max", "min": "min"}[s.mode]
        if dtype not in ("bf16", "f16"):
            out.line(f"{place} = {out.op_text(function, dtype, [place, text.code], False)};")
            return
        sides = [half(out, f"fb_from_{dtype}", Text(code, False)) for code in (place, text.code)]
        result = Text(out.op_text(function, "f32", sides, False), False)
        out.line(f"{place} = {half(out, f'fb_to_{dtype}', result)};")

    # ------------------------------------------------------------ accumulators

    def start(self, acc: Acc, after: Sequence[Stmt]) -> None:
        """Define an accumulator as the loop that folds into it needs it."""
        out = self.out
        loop = next((s for s in after if isinstance(s, Loop) and folds(s.body, acc.name)), None)
        if loop is None:
            raise InternalError(f"nothing folds into {acc.name}")
        inside = folding_loop(loop, acc.name)
        name = acc.name + out.suffix
        if out.lanes is not None:
            state = AccState(acc, name, out.lanes.width)
        elif inside is None or self.width(inside) == 1:
            state = AccState(acc, name, 0)
        else:
            width = self.width(inside)
            state = AccState(acc, name, width, self._copies(inside, width))
        out.accs[acc.name] = state
        declare(out, state)
        out.locals[acc.name] = Local(name, state.lanes > 0)

    def finish(self, loop: Loop, begun: set[str]) -> dict[str, tuple[str, str]]:
        """After a loop, what was folded in it becomes one value; returns names of values and positions."""
        out = self.out
        done: dict[str, tuple[str, str]] = {}
        for name in sorted(begun):
            if not folds(loop.body, name):
                continue
            begun.discard(name)
            for _ in out.each_replica():
                state = out.accs.pop(name)
                done[name] = state.code, state.at()
                if state.lanes and out.lanes is None:
                    done[name] = gather(out, state)
                elif state.positions:
                    out.locals[name] = Local(state.at(), state.lanes > 0)
        return done

    def width(self, loop: Loop) -> int:
        """Lanes of a vector loop: as many as a register holds of the widest type that varies in it."""
        return self.unit.target.lanes(widest(loop))

    @staticmethod
    def _copies(loop: Loop, width: int) -> int:
        size = loop.axis.size
        if any(isinstance(s, (Loop, Acc, Scratch)) for s in loop.body) or price(loop.body) > _SHORT_CHAIN:
            return 1
        return 1 if not size.terms and size.const < 2 * _UNROLL * width else _UNROLL

    # ------------------------------------------------------------ loops

    def bind(self, loop: Loop) -> str:
        """The C++ name of a loop variable."""
        name = loop.axis.var.name
        self.out.names[loop.axis.var] = name
        return name

    def _loop(self, loop: Loop) -> None:
        vector = loop.kind != "serial" and self.out.lanes is None
        (self.vector_loop if vector else self.serial_loop)(loop, "0", self.out.index(loop.axis.size))

    def serial_loop(self, loop: Loop, low: str, high: str) -> None:
        """One iteration after the other."""
        self._cascades(loop, self._partial_sums(loop), low, high, 1, lambda a, b: self._plain_loop(loop, a, b))

    def _plain_loop(self, loop: Loop, low: str, high: str) -> None:
        out = self.out
        if out.lanes is not None and self._transposed_loop(loop, low, high):
            return
        name = self.bind(loop)
        few = loop.axis.size.is_const and loop.axis.size.const <= _COUNTED
        if few and not any(isinstance(inner, Loop) for inner in loop.body):
            out.line(f"#pragma GCC unroll {_COUNTED}")
        with out.block(f"for (int64_t {name} = {low}; {name} < {high}; {name}++)"):
            self.body(loop.body)

    def _partial_sums(self, loop: Loop) -> list[AccState]:
        """Sums that the loop folds into and that are not yet kept in parts."""
        states = [s for _ in self.out.each_replica() for s in self.out.accs.values()]
        return [s for s in states if sums(s) and not s.code.endswith("_part") and folds(loop.body, s.acc.name)]

    def _cascades(
        self, loop: Loop, parts: list[AccState], low: str, high: str, step: int, emit: Callable[[str, str], None]
    ) -> None:
        """Long sums in blocks of blocks, as many levels as the loop is long; `step` iterations add once."""
        size = loop.axis.size
        chunk = step * _CASCADE
        while parts and (chunk < _LONGEST * step if size.terms else 2 * chunk < size.const):
            emit = partial(self._cascade, parts, chunk=chunk, emit=emit)
            chunk *= _CASCADE
        emit(low, high)

    def _cascade(
        self, parts: list[AccState], low: str, high: str, chunk: int, emit: Callable[[str, str], None]
    ) -> None:
        """Long sums in blocks: for each block a partial sum from the start value, then added to the total."""
        out = self.out
        block, end = out.fresh("c"), out.fresh("e")
        with out.block(f"for (int64_t {block} = {low}; {block} < {high}; {block} += {chunk})"):
            out.line(f"const int64_t {end} = {block} + {chunk} < {high} ? {block} + {chunk} : {high};")
            for s in parts:
                s.code += "_part"
                declare(out, s)
            emit(block, end)
            for s in parts:
                total, part = s.code.removesuffix("_part"), s.code
                add_partial(out, total, part, s)
                s.code = total

    def vector_loop(self, loop: Loop, low: str, high: str) -> None:
        """Iterations as lanes. `low` is a multiple of the vectors that are done side by side."""
        out = self.out
        width = self.width(loop)
        if width == 1:
            self.serial_loop(loop, low, high)
            return
        states = [s for s in out.accs.values() if s.lanes and folds(loop.body, s.acc.name)]
        copies = max((s.copies for s in states), default=1)
        parts = [s for s in self._partial_sums(loop) if s.lanes]
        step = width * copies
        self._cascades(loop, parts, low, high, step, lambda a, b: self._vectors(loop, a, b, width, copies))

    def _side_by_side(self, loop: Loop) -> int:
        """Vectors that one iteration of a loop computes."""
        if loop.kind == "tile":
            if any(isinstance(s, Loop) and transposed(s, loop.axis.var) for s in all_statements(loop.body)):
                return 1
            many = weight(loop.body)
            return TILE if many <= 24 else TILE // 2 if many <= 48 else 1
        many = weight(loop.body) if all(isinstance(s, (Let, Store)) for s in loop.body) else 0
        return _UNROLL if _LONG_CHAIN <= many <= _LONGEST_CHAIN else 1

    def _vectors(self, loop: Loop, low: str, high: str, width: int, copies: int) -> None:
        out = self.out
        name = self.bind(loop)
        tiles = self._side_by_side(loop) if copies == 1 else 1
        at, end = out.fresh("at"), out.fresh("end")
        out.line(f"int64_t {at} = {low};")
        out.line(f"const int64_t {end} = {high};")
        trips = None if loop.axis.size.terms else loop.axis.size.const
        step = width * copies * tiles
        if step > width and (trips is None or trips >= step):
            with out.block(f"for (; {at} + {step} <= {end}; {at} += {step})"):
                if copies > 1:
                    for u in range(copies):
                        out.line(f"const int64_t {name}_{u} = {at} + {width * u};")
                        self.copy = f"[{u}]"
                        self._lanes_body(loop, [(f"{name}_{u}", Lanes(loop.axis.var, width))])
                    self.copy = "[0]"
                else:
                    many = []
                    for k in range(tiles):
                        out.line(f"const int64_t {name}_{k} = {at} + {width * k};")
                        many.append((f"{name}_{k}", Lanes(loop.axis.var, width)))
                    self._lanes_body(loop, many)
        self.copy = "[0]"
        left = trips % step if trips is not None else None
        if (left is None or left >= width or step == width) and (trips is None or trips >= width):
            with out.block(f"for (; {at} + {width} <= {end}; {at} += {width})"):
                out.line(f"const int64_t {name} = {at};")
                self._lanes_body(loop, [(name, Lanes(loop.axis.var, width))])
        rest = trips % width if trips is not None else None
        if rest != 0:
            with out.block(f"if ({at} < {end})"):
                out.line(f"const int64_t {name} = {at};")
                count = out.fresh("n") if rest is None else str(rest)
                if rest is None:
                    out.line(f"const int64_t {count} = {end} - {at};")
                self._lanes_body(loop, [(name, Lanes(loop.axis.var, width, count))])

    def _lanes_body(self, loop: Loop, lanes: list[tuple[str, Lanes]]) -> None:
        with self.out.side_by_side([Replica(row, name, f"_{k}" if k else "") for k, (name, row) in enumerate(lanes)]):
            self.body(loop.body)

    def _transposed_loop(self, loop: Loop, low: str, high: str) -> bool:
        """A serial loop in lanes whose loads follow the loop: blocks are loaded along it, turned, and read as lanes.

        for b in 0..8: y[b] = x[8*lane + b]    ->    t = turn(x, 8 rows of 8); for b in 0..8: y[b] = t[b]
        """
        out = self.out
        lanes = out.lanes
        assert lanes is not None
        loads = transposed(loop, lanes.var) if len(out.replicas) == 1 else []
        loads = [v for v in loads if v.buffer not in out.locals and DTYPES[v.dtype].nbytes in (1, 2, 4, 8)]
        size = loop.axis.size
        width = lanes.width
        if not loads or width not in (4, 8, 16) or (not size.terms and size.const < width):
            return False
        name = self.bind(loop)
        at = out.fresh("at")
        out.line(f"int64_t {at} = {low};")
        with out.block(f"for (; {at} + {width} <= {high}; {at} += {width})"):
            for v in loads:
                lane = "u8" if v.dtype == "b8" else lane_type(v.dtype)
                vector = out.unit.vector(lane, width)
                table = out.fresh("t")
                out.names[loop.axis.var] = at
                stride = v.index.coeff(lanes.var)
                assert stride is not None
                block = out.unit.block(vector, SCALAR[lane], width)
                out.line(f"{vector} {table}[{width}];")
                count = lanes.count or str(width)
                out.line(f"{block}({table}, {v.buffer} + {out.index(v.index)}, {out.index(stride)}, {count});")
                out.turned[v] = f"{table}[{name} - {at}]"
            out.names[loop.axis.var] = name
            with out.block(f"for (int64_t {name} = {at}; {name} < {at} + {width}; {name}++)"):
                self.body(loop.body)
        for v in loads:
            del out.turned[v]
        if size.terms or size.const % width:
            with out.block(f"for (int64_t {name} = {at}; {name} < {high}; {name}++)"):
                self.body(loop.body)
        return True


def _interleaved(parts: list[list[str]]) -> list[str]:
    """The same definitions for several vectors in turns, where each part is nothing but definitions."""
    alike = len({len(part) for part in parts}) == 1
    if alike and all(line.lstrip().startswith("const ") for part in parts for line in part):
        return [line for group in zip(*parts, strict=True) for line in group]
    return [line for part in parts for line in part]
