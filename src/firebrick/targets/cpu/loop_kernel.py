"""C++ text of one kernel: its functions, and how its iterations are shared out among threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from firebrick.errors import LoweringError
from firebrick.ir.kernels.schedule import Kernel
from firebrick.ir.kernels.tree import Acc, Let, Loop, Stmt
from firebrick.targets.cpu.accumulators import AccState, combine_one, declare
from firebrick.targets.cpu.body import TILE, Body
from firebrick.targets.cpu.cpp_types import SCALAR
from firebrick.targets.cpu.plan import PARALLEL_WORK
from firebrick.targets.cpu.tree_facts import deepest_loops, folds, weight
from firebrick.targets.cpu.unit_writer import Local, Unit

_CHUNK = 4096
"""Iterations of a vector loop that one thread takes at a time."""
_SPREAD = 64
"""Nested parallel loops are shared out as one until they have this many iterations."""
_MOST_PARTS = 256
"""Parts of a reduction that runs on several threads; the result doesn't depend on how many there are."""
_PART = 16384
"""Least iterations of a part."""


def kernel_text(kernel: Kernel, unit: Unit) -> str:
    """The functions of one kernel; what they need is noted in `unit`."""
    return _Kernel(kernel, unit).text()


@dataclass(slots=True)
class _Split:
    """The parallel loops at the top of a kernel: lets before each, and the loops that are shared out as one."""

    loops: list[Loop] = field(default_factory=list)
    lets: list[list[Let]] = field(default_factory=list)


class _Kernel:
    def __init__(self, kernel: Kernel, unit: Unit) -> None:
        self.kernel = kernel
        self.body = Body(unit)
        self.out = self.body.out

    def text(self) -> str:
        """The whole text."""
        split = self._split()
        if split.loops:
            self._head("part")
            count = self._loops(split)
            self.out.lines.append("}")
            self._head("")
            self._start("args", count)
        else:
            reduction = self._reduction()
            if reduction is not None:
                self._parallel_reduction(*reduction)
            else:
                self._head("")
                self.body.body(self.kernel.body)
        self.out.lines.append("}")
        return "\n".join(self.out.lines) + "\n"

    def _head(self, kind: str) -> None:
        name, out = self.kernel.name, self.out
        out.reset()
        start, part = ("static void", "_part") if kind else ('extern "C" void', "")
        more = ", int64_t begin, int64_t end" if kind else ""
        out.lines.append(f"{start} {name}{part}(void* const* args, const int64_t* sizes{more}) {{")
        for k, p in enumerate(self.kernel.params):
            if p.dtype not in SCALAR:
                raise LoweringError(f"loops have no numbers of type {p.dtype}")
            scalar = "uint8_t" if p.dtype == "b8" else SCALAR[p.dtype]
            const = "" if p.written else "const "
            out.line(f"{const}{scalar}* const {p.name} = ({const}{scalar}*)args[{k}];")
        for k, size in enumerate(self.kernel.sizes):
            out.line(f"const int64_t {size} = sizes[{k}];")

    def _start(self, args: str, count: str) -> None:
        """Run the part function for all iterations, on threads if that is worth it."""
        pieces = "1"
        if self.kernel.sizes:
            sizes = [f"({self.out.index(e)})" for e in deepest_loops(self.kernel.body)]
            pieces = f"{' * '.join([*sizes, str(weight(self.kernel.body))])} < {PARALLEL_WORK} ? 0 : 1"
        self.out.line(f"fb_parallel({self.kernel.name}_part, {args}, sizes, {count}, {pieces});")

    # ------------------------------------------------------------ independent iterations

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
            total *= _SPREAD if size.terms or loop.kind != "serial" else size.const
        return split

    def _loops(self, split: _Split) -> str:
        """The body of the part function; returns how many iterations there are to share out."""
        out, last = self.out, split.loops[-1]
        for let in split.lets[0]:
            self.body.let(let)
        size = out.index(last.axis.size)
        if last.kind != "serial":
            chunk = _CHUNK if last.kind == "vector" else self.body.width(last) * TILE
            high = f"end * {chunk} < {size} ? end * {chunk} : {size}"
            self.body.vector_loop(last, f"begin * {chunk}", f"({high})")
            return f"({size} + {chunk - 1}) / {chunk}"
        if len(split.loops) == 1:
            name = self.body.bind(last)
            with out.block(f"for (int64_t {name} = begin; {name} < end; {name}++)"):
                self.body.body(last.body)
            return size
        with out.block("for (int64_t at = begin; at < end; at++)"):
            sizes = [out.index(loop.axis.size) for loop in split.loops]
            for k, loop in enumerate(split.loops):
                inner = " * ".join(f"({s})" for s in sizes[k + 1 :])
                text = f"at / ({inner})" if inner else "at"
                name = self.body.bind(loop)
                out.line(f"const int64_t {name} = {text}{f' % ({sizes[k]})' if k else ''};")
                for let in split.lets[k + 1] if k + 1 < len(split.lets) else []:
                    self.body.let(let)
            self.body.body(last.body)
        return " * ".join(f"({s})" for s in sizes)

    # ------------------------------------------------------------ reductions of everything

    def _reduction(self) -> tuple[list[Let], list[Acc], Loop, list[Stmt]] | None:
        """Lets, accumulators, the one parallel loop that folds into them, and what follows, if the kernel is that."""
        body = list(self.kernel.body)
        place = next((k for k, s in enumerate(body) if isinstance(s, Loop)), None)
        if place is None:
            return None
        loop = body[place]
        before, after = body[:place], body[place + 1 :]
        lets = [s for s in before if isinstance(s, Let)]
        accs = [s for s in before if isinstance(s, Acc)]
        assert isinstance(loop, Loop)
        if not loop.parallel or len(lets) + len(accs) != len(before) or any(isinstance(s, Loop) for s in after):
            return None
        return (lets, accs, loop, after) if accs and all(folds(loop.body, a.name) for a in accs) else None

    def _parallel_reduction(self, lets: list[Let], accs: list[Acc], loop: Loop, after: list[Stmt]) -> None:
        """Parts of fixed size go to threads and are then combined in order."""
        out, body = self.out, self.body
        first = len(self.kernel.params)
        self._head("part")
        for let in lets:
            body.let(let)
        chunk = self._part_size(loop)
        size = out.index(loop.axis.size)
        with out.block("for (int64_t part = begin; part < end; part++)"):
            out.line(f"const int64_t chunk = {chunk};")
            out.line(f"const int64_t low = part * chunk, high = low + chunk < {size} ? low + chunk : {size};")
            begun: set[str] = set()
            for acc in accs:
                body.start(acc, [loop])
                begun.add(acc.name)
            (body.vector_loop if loop.kind == "vector" else body.serial_loop)(loop, "low", "high")
            done = body.finish(loop, begun)
            for k, acc in enumerate(accs):
                value, at = done[acc.name]
                out.line(f"(({SCALAR[acc.dtype]}*)args[{first + 2 * k}])[part] = {value};")
                if acc.reduction.startswith("arg"):
                    out.line(f"((int64_t*)args[{first + 2 * k + 1}])[part] = {at};")
        self.out.lines.append("}")
        self._head("")
        for let in lets:
            body.let(let)
        out.line(f"const int64_t chunk = {chunk}, parts = ({size} + chunk - 1) / chunk;")
        places = [f"args[{k}]" for k in range(first)]
        for acc in accs:
            out.line(f"{SCALAR[acc.dtype]} {acc.name}_parts[{_MOST_PARTS}];")
            out.line(f"int64_t {acc.name}_places[{_MOST_PARTS if acc.reduction.startswith('arg') else 1}];")
            places += [f"{acc.name}_parts", f"{acc.name}_places"]
        out.line(f"void* const more[] = {{{', '.join(places)}}};")
        self._start("more", "parts")
        for acc in accs:
            state = AccState(acc, acc.name, 0)
            declare(out, state)
            with out.block("for (int64_t part = 0; part < parts; part++)"):
                combine_one(out, state, state.code, state.at(), f"{acc.name}_parts[part]", f"{acc.name}_places[part]")
            out.locals[acc.name] = Local(state.at() if state.positions else state.code, False)
        body.body(after)

    def _part_size(self, loop: Loop) -> str:
        """Iterations of one part, so that there are at most `_MOST_PARTS`, as C++."""
        size = loop.axis.size
        step, least, parts = (_CHUNK, _PART, _MOST_PARTS) if loop.kind == "vector" else (1, 1, _SPREAD)
        if size.terms:
            text = self.out.index(size)
            need = f"(({text}) + {parts * step - 1}) / {parts * step} * {step}"
            return f"({need}) > {least} ? ({need}) : {least}"
        return str(max(least, -(-size.const // (parts * step)) * step))
