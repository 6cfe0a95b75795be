"""The forms that a matmul and the kernel that reads its result may have, of which `max-autotune` measures some.

    mm(x, w) -> t; b = gelu(t + bias)   ->   "library": both steps as they are
                                             "128x64x64": one kernel, which stores gelu(total + bias)
                                             "16x64x128 in 4": partial sums, and b = gelu(their sum + bias)

A kernel that folds rows can't be done by tiles, but may read sums of parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from firebrick.ir.index.expr import ONE, ZERO, Expr, product, var
from firebrick.ir.kernels.groups import PlannedLaunch, Statement, Work
from firebrick.ir.kernels.schedule import Launch, Place, Schedule, names_in
from firebrick.ir.loops.constructors import op
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Buffer, Extern, Load, LoopProgram, Ref, Store, Value, device_type
from firebrick.ir.loops.values import loads_of
from firebrick.targets.cuda.beside import touched
from firebrick.targets.cuda.facts import CardFacts
from firebrick.targets.cuda.launches import canonical, items_of, plan_group, renamed
from firebrick.targets.cuda.product import LARGE, TOTAL, Matmul, Tile, in_turn, launch_of, matmul_of, takes_turns
from firebrick.targets.cuda.tile import Body


@dataclass
class Subject:
    """A matmul and its place among the steps, and that of the launch that reads its result, if it is measured too.
    kept: others read the result too. text: what is equal for equal subjects; short: for people. forms: steps of each,
    the first of which is taken where nothing is measured. program: a form alone. pads: partial sums."""

    mm: Matmul
    at: int
    end: int
    kept: bool = True
    text: str = ""
    short: str = ""
    forms: dict[str, list[Any]] = field(default_factory=dict)
    program: Callable[[str], Schedule] = field(init=False)
    pads: dict[str, Buffer] = field(default_factory=dict)


class Search:
    """The matmuls among some steps, and their forms."""

    def __init__(self, steps: list[Any], table: Any, target: Any, device: str) -> None:
        self.steps, self.table, self.target, self.card, self.device = steps, table, target, target.card, device
        self.buffers = {b.name: b for b in table.program.buffers}
        self.kernels = {k.name: k for k in table.kernels()}

    def chosen(self, choose: Callable[..., list[str]]) -> list[Any]:
        """The steps with matmuls in the forms that `choose` names."""
        subjects, out = list(filter(self.find_forms, self.subjects())), [[s] for s in self.steps]
        for s, form in zip(subjects, choose(subjects), strict=True):
            out[s.at], out[s.end] = [], s.forms[form]
            used = {n for step in s.forms[form] for n in names_in(step)}
            self.table.scratchpads += [pad for name, pad in s.pads.items() if name in used]
        return list(itertools.chain.from_iterable(out))

    def subjects(self) -> Iterator[Subject]:
        """Matmuls, each with the launch that reads its result where both may be measured together."""
        moved = [touched(s, self.kernels) for s in self.steps]
        both = [reads | writes for reads, writes in moved]
        free = {b.name for b in self.buffers.values() if b.kind == "temp"}
        free -= {r.buffer for r in self.table.program.outputs if isinstance(r, Ref)}
        claimed = set[int]()
        for k, step in reversed(list(enumerate(self.steps))):
            mine = isinstance(step, Extern) and device_type(step.device) == self.device
            mm = matmul_of(step, self.buffers, self.card) if mine else None  # type: ignore[arg-type]
            if mm is None:
                continue
            subject, readers = Subject(mm, k, k), [j for j in range(k + 1, len(both)) if mm.out in both[j]]
            if readers and readers[0] not in claimed:
                between = set[str]().union(*(moved[i][1] for i in range(k + 1, readers[0])))
                if self._joins(mm, self.steps[readers[0]]) and between.isdisjoint(mm.buffers):
                    subject.end, subject.kept = readers[0], len(readers) > 1 or mm.out not in free
                    claimed.add(subject.end)
            yield subject

    def _joins(self, mm: Matmul, step: Any) -> bool:
        """Whether a step that reads a result may be measured with the matmul: what it writes is its own."""
        kernel = self.kernels[step.kernel] if isinstance(step, Launch) else None
        if kernel is None or step.sizes or not isinstance(kernel.body, Body):
            return False
        read, pairs = (
            {v.buffer for v in loads_of(*items_of(kernel.body))},
            list(zip(step.args, kernel.params, strict=True)),
        )
        own = {b.name for b in self.buffers.values() if b.kind in ("temp", "output")} - {*mm.buffers}
        return not any(p.number or (p.written and (a not in own or p.name in read)) for a, p in pairs)

    def find_forms(self, subject: Subject) -> bool:
        """Fill in the forms, if all sizes are numbers."""
        mm, buffers, call = subject.mm, self.buffers, self.steps[subject.at]
        results = {mm.out} if subject.kept else set()
        after: list[Any] = self.steps[subject.end : subject.end + 1] if subject.end > subject.at else []
        parts = tuple(dict.fromkeys(n for s in [call, *after] for n in s.parts))
        about = (call.name, *(n for s in after for n in s.nodes)), call.origin, parts

        def launch(p: PlannedLaunch) -> Launch:
            subject.pads.update((b.name, b) for b in p.pads)
            return Launch(self.table.add(p, self.device), p.args, p.sizes, *about, p.grid, p.attributes)

        forms = subject.forms = {"library": [call, *after]}
        every = list(dict.fromkeys([*mm.buffers, *(a for s in after for a in s.args)]))
        if not all(n.is_const for b in every for n in (*buffers[b].shape, *buffers[b].strides)):
            return False
        subject.short = f"matmul of {' and '.join('x'.join(map(str, r.shape)) for r in mm.refs[:2])}"
        lines, body = [f"{every.index(r.buffer)} {replace(r, buffer='')}" for r in mm.refs], None
        for s in after:
            results |= touched(s, self.kernels)[1]
            kernel = self.kernels[s.kernel]
            body = renamed(kernel.body, {p.name: a for p, a in zip(kernel.params, s.args, strict=True)}, {})
            subject.short += f", then {kernel.name.partition('_')[2]}"
            lines += [self.target.kernel(kernel, "reader"), str([every.index(a) for a in s.args])]
        kinds = {n: "const" if buffers[n].kind in ("const", "derived") else "input" for n in every}
        lines += [f"{replace(buffers[n], name='', kind=kinds[n])} {n in results}" for n in every]
        subject.text, device = "\n".join(lines), buffers[mm.out].device
        for tile in tiles_of(mm, self.card):
            form = str(tile)
            stores = None if body is None else _epilogue(mm, tile, body)
            if tile.parts > 1:
                forms[form] = [launch(p) for p in _in_parts(subject, tile, body, device, self.card)]
            elif body is None or stores is None:
                forms[form] = [launch(launch_of(mm, tile, (mm.plain(tile),))), *after]
            else:
                stores += [mm.plain(tile)] * subject.kept
                forms[form] = [launch(launch_of(mm, tile, stores, wide=body.wide))]
        sources = {n: kinds[n] for n in every if n not in results and n != mm.out}
        subject.program = lambda form: self._program(forms[form], sources, results, {**buffers, **subject.pads})
        return True

    def _program(self, steps: list[Any], sources: dict[str, str], results: set[str], buffers: Any) -> Schedule:
        """A program of a form alone: weights are its constants, what else it reads its inputs."""
        names = dict.fromkeys([*sources, *sorted(results), *(n for s in steps for n in names_in(s))])
        mine = tuple([replace(buffers[n], kind=sources.get(n, "output" if n in results else "temp")) for n in names])
        inputs, consts = (tuple([n for n in sources if sources[n] == kind]) for kind in ("input", "const"))
        outs = tuple([Ref(n, buffers[n].shape, buffers[n].strides, ZERO) for n in sorted(results)])
        places = tuple([Place(n, "given" if n in sources else "fresh") for n in names])
        used = tuple([k for k in self.table.kernels() if any(getattr(s, "kernel", "") == k.name for s in steps)])
        return Schedule(LoopProgram("form", mine, (), inputs, consts, outs), used, tuple(steps), places, 0, ())


def _epilogue(mm: Matmul, tile: Tile, body: Body) -> list[Store] | None:
    """The stores of a kernel that reads each result once, in a tile's terms; None where they have no such form."""
    part, reads = body.parts[0], {v for v in loads_of(*items_of(body)) if v.buffer == mm.out}
    if len(body.parts) > 1 or part.inner or len(reads) != 1:
        return None
    (read,) = reads
    place, sizes = mm.place(tile), {d.var: d.size for d in part.grid}
    steps = {v: read.index.coeff(v) for v in sizes}
    if read.binds or not all(s is not None and s.is_const for s in (*steps.values(), *sizes.values())):
        return None
    there, step, flat = dict[Any, Any](), 1, mm.flat(place)
    for v in sorted(sizes, key=lambda v: (steps[v].const, sizes[v].const)):  # type: ignore[union-attr]
        there[v] = (flat // step) % sizes[v]
        step *= sizes[v].const
    # Loops go through a dense result, through each element once, if their terms are the element's place.
    if step != product(mm.sizes).const or read.index.subs(there) - flat is not ZERO:
        return None
    return list(items_of(renamed(body, {}, there, {read: mm.finish(TOTAL, place)})))  # type: ignore[arg-type]


def _in_parts(subject: Subject, tile: Tile, body: Body | None, device: str, card: CardFacts) -> Iterator[PlannedLaunch]:
    """The sums of parts of the depth, and what reads them."""
    mm, count, name = subject.mm, product(subject.mm.sizes), f"{subject.mm.out}_parts{tile.parts}"
    subject.pads[name] = Buffer(name, "f32", (count * tile.parts,), (ONE,), "temp", device)
    index = var("part", 0, tile.parts - 1) * count + mm.flat(mm.place(tile))
    yield launch_of(mm, tile, (Store(name, index, TOTAL),))

    def element(index: Expr) -> Value:
        value: Value = Load("f32", name, index)
        for k in range(1, tile.parts):
            value = op("add", value, Load("f32", name, index + count * k))
        _, m, n = mm.sizes
        return mm.finish(value, (index // (m * n), index // n % m, index % n))

    if subject.kept:
        x = var("i0", 0, count.const - 1, count)
        work = Work((Statement(frozenset(), Store(mm.out, x, element(x))),), (x,), {x: count})
        yield plan_group(work, card).launches[0]
    if body is not None:
        reads: list[Any] = [] if subject.kept else [v for v in loads_of(*items_of(body)) if v.buffer == mm.out]
        yield canonical(renamed(body, {}, {}, {v: element(v.index) for v in reads}))


def tiles_of(mm: Matmul, card: CardFacts) -> list[Tile]:
    """The twelve of the least cost by a model, in cycles: for a step of a tile a multiprocessor multiplies (2,048 times
    in 16 bits, half of what it can), loads from the level 2 cache (48 bytes each) and waits (150); a program begins and
    ends in 500, a second launch takes as long as 3,000 and moves the parts. Large ones may take tiles in turn."""
    (batch, rows, columns), nbytes = (int(n.const) for n in mm.sizes), DTYPES[mm.dtype].nbytes
    exact, costs = nbytes > 2, dict[Tile, float]()
    for r, c, s, parts in itertools.product((16, 32, 64, 128), (32, 64, 128, 256), (32, 64, 128), (1, 2, 4, 8)):
        fits = r <= max(16, 2 * rows - 1) and c <= max(32, 2 * columns - 1) and s * parts <= max(mm.depth, 32)
        fits = fits and (s == 32 if exact else s == 64 or (s == 128 and r <= 32)) and r * c <= (1 << 15) >> 2 * exact
        programs, stage = batch * -(-rows // r) * -(-columns // c) * parts, (r + c) * s * nbytes
        # Two programs side by side hide each other's waits, unless that leaves too few steps ahead.
        ahead = min(5, card.shared_bytes // (2 * stage))
        ahead = ahead if ahead > 2 else min(4, card.shared_bytes // stage)
        if not fits or ahead < 2 or (parts > 1 and programs > 4 * card.multiprocessors):
            continue
        step = max(max(r, 64) * c * s / (128 if exact else 2048), stage / 48, 150)
        more = (3000 + batch * rows * columns * parts / 250) * (parts > 1)
        cycles = -(-programs // card.multiprocessors) * (-(-mm.depth // (s * parts)) * step + 500) + more
        costs[Tile(r, c, s, ahead, 8 if r * c >= 1 << 14 else 4, parts)] = cycles
    turns = [in_turn(mm, t, card) for t in LARGE if takes_turns(mm, t, card)]
    return sorted(costs, key=costs.__getitem__)[: 12 - len(turns)] + turns
