"""The stretches of a graph that were left out (`firebrick.ir.graph.equal_layers`), from what the others became."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from firebrick.fuse.dependencies import extern_reads, extern_writes
from firebrick.ir.graph.equal_layers import NotAlike, Repeat
from firebrick.ir.kernels.schedule import Kernel, Launch, alike, names_in, rename_arg, renamed
from firebrick.ir.loops.program import Extern, LoopProgram, Recipe, Ref

Step = Launch | Extern


def unroll(
    program: LoopProgram, steps: Sequence[Step], kernels: tuple[Kernel, ...], repeat: Repeat
) -> tuple[LoopProgram, list[Step]]:
    """The program and steps of the whole graph, given those of its shortened copy.

    Raises:
        NotAlike: the third stretch is not the second one with other buffers.
    """
    unroller = _Unroller(program, steps, kernels, repeat)
    try:
        return unroller.run()
    except KeyError as error:
        raise NotAlike(f"a stretch has nothing in the place of {error}") from error


class _Unroller:
    """Numbers stretches in the order in which they run: a backward's begin with the last of the graph.

    named: names of what each stretch alone takes, constants and what a forward saved, by stretch and key. label: the
    inverse.
    """

    def __init__(
        self, program: LoopProgram, steps: Sequence[Step], kernels: tuple[Kernel, ...], repeat: Repeat
    ) -> None:
        self.repeat, self.count = repeat, len(repeat.numbers)
        self.written = {k.name: [i for i, p in enumerate(k.params) if p.written] for k in kernels}
        self.named: dict[tuple[int, Any], str] = {}
        for k, names in enumerate(() if repeat.backward else repeat.own):
            self.named.update(((k, key), name) for key, name in enumerate(names))
        self.inputs = [*program.inputs]
        self.program, steps = self._turned(program, steps) if repeat.backward else (program, steps)
        self.label = {name: at for at, name in self.named.items()}
        self.buffers = {b.name: b for b in self.program.buffers}
        numbers = repeat.numbers
        self.stretch_of = {number: self._turn(k) for k, row in enumerate(numbers) for number in row}
        self.first, self.last = numbers[0][0], numbers[-1][-1]
        self.parts: dict[int, list[Step]] = self._split(steps)
        self.home = self._homes()
        self.derived, self.calls = self._recipes()

    def _turn(self, k: int) -> int:
        """The number of a stretch in running order, or in the graph's."""
        return self.count - 1 - k if self.repeat.backward else k

    def _turned(self, program: LoopProgram, steps: Sequence[Step]) -> tuple[LoopProgram, list[Step]]:
        """Let a backward's second and third stretch be the second and third to run of the whole graph.

        Those of the shortened graph are the third and second of its forward: whatever they save is called by the
        name that the stretches before the last have for it.
        """
        rows = [(name, *at) for name, at in zip(program.inputs, self.repeat.inputs, strict=False) if at is not None]
        copies = []
        for k in range(3, self.count - 1):
            for name, h, key in rows:
                if h == 2:
                    copies.append(f"{name}_{k}")
                    self.named[self._turn(k), key] = copies[-1]
        self.named.update(((self._turn(h), key), name) for name, h, key in rows)
        count = len(self.repeat.inputs)
        self.inputs = [*program.inputs[:count], *copies, *program.inputs[count:]]
        table = {old: self.named[3 - h, key] for old, h, key in rows if h in (1, 2)}
        number = self._numbers({1: self.count - 3, 2: self.count - 2})
        buffers = tuple([replace(b, name=table.get(b.name, b.name)) for b in program.buffers])
        turned = [renamed(step, table.get, "") for step in steps]
        return replace(program, buffers=buffers), [_renumbered(step, number) for step in turned]

    def run(self) -> tuple[LoopProgram, list[Step]]:
        """Copy the third stretch for each that was left out."""
        self._match()
        consts, recipe = list(self.program.consts), list(self.program.recipe.calls)
        row = [(name, key) for (k, key), name in self.named.items() if k == 2 and name in self.buffers]
        names = dict.fromkeys(self.buffers)
        buffers = list(self.program.buffers)
        moved = self._shifted(2)
        steps = [step for k in (0, 1) for step in self.parts[k]]
        steps += [renamed(step, moved.get, "") for step in self.parts[2]]
        self.here: dict[int, dict[str, str]] = {2: {}}
        for k in range(3, self.count - 1):
            here = {name: f"{name}_{k}" for name in self.own_buffers}
            for name, key in row:
                here[name] = self.named[k, key]
                if not self.repeat.backward:
                    consts.append(here[name])
            for call in self.calls[2]:
                here.update((name, f"{name}_{k}") for name in call.outs if name is not None)
            for old, new in here.items():
                if new in names:
                    raise NotAlike(f"two buffers would be {new}")
                names[new] = None
                buffers.append(replace(self.buffers[old], name=new))
            # what the third reads of the second, this one reads of the one before it
            before = self.here[k - 1]
            table = {**{old: before.get(new, new) for old, new in self.next.items()}, **here, **self._shifted(k)}
            recipe += [renamed(call, table.get, f"_{k}") for call in self.calls[2]]
            number = self._numbers({self._turn(1): self._turn(k - 1), self._turn(2): self._turn(k)})
            steps += [_renumbered(renamed(step, table.get, f"_{k}"), number) for step in self.parts[2]]
            self.here[k] = here
        end = self.here[self.count - 2].get
        steps += [renamed(step, end, "") for step in self.parts[self.count - 1]]
        program = replace(
            self.program,
            buffers=tuple(buffers),
            inputs=tuple(self.inputs),
            consts=tuple(consts),
            outputs=self._outputs(end),
            recipe=Recipe(tuple(recipe)),
        )
        return program, steps

    def _shifted(self, k: int) -> dict[str, str]:
        """What stretch k takes in the places of what the third one does."""
        return {name: self.named[at + k - 1, key] for name, (at, key) in self.shift.items()}

    def _outputs(self, end: Callable[[str], str | None]) -> tuple[Any, ...]:
        """The results, then those of the stretches left out, in the graph's order."""
        rows: dict[Any, dict[int, Any]] = defaultdict(dict)
        marked = [*zip(self.program.outputs, self.repeat.outputs, strict=True)] if self.repeat.outputs else []
        for value, at in marked:
            if at is not None:
                k = self._turn(at[0])
                rows[at[1]][k if k in (0, self.count - 1) else 3 - at[0] if self.repeat.backward else k] = value
        used = {ref.buffer for row in rows.values() for ref in row.values()}
        shown = {name for name, b in self.buffers.items() if b.kind != "temp"} - used
        if any(self.home.get(name) in (1, 2) for name in shown):
            raise NotAlike("a stretch makes an output")
        copies = {key: self._every(row) for key, row in rows.items()}
        results = [
            rename_arg(value, end) if at is None else copies[at[1]][self._turn(at[0])] for value, at in marked
        ] or [rename_arg(value, end) for value in self.program.outputs]
        keys = [at[1] for _, at in marked if at is not None and at[0] == 2]
        return (*results, *[copies[key][self._turn(k)] for k in range(3, self.count - 1) for key in keys])

    def _every(self, row: Mapping[int, Ref]) -> dict[int, Ref]:
        """A result of each stretch, given those that the shortened graph has: it makes them there or one later."""
        if row.keys() <= {0, self.count - 1}:
            return dict(row)
        late = self.home[row[1].buffer] - 1
        one, two = (row[1], row[2]) if late == 0 else (row[0], row[1])
        if late not in (0, 1) or self.home[row[2].buffer] != (self.count - 1 if late else 2):
            raise NotAlike("a stretch makes a result of another")
        if replace(one, buffer=two.buffer) != two or self.pairs[one.buffer] != two.buffer:
            raise NotAlike("a stretch makes another result")
        every = {k: row[k] for k in (0, 1, 2, self.count - 1) if k in row}
        for k in range(2 + (not late), self.count - 1 - late):
            every[k] = replace(two, buffer=self.here[k + late][two.buffer])
        if late:
            every[self.count - 2] = row[2]
        return every

    # ------------------------------------------------------------ what belongs where

    def _split(self, steps: Sequence[Step]) -> dict[int, list[Step]]:
        """The steps of each stretch; the first has what comes before it, the last what follows."""
        parts: dict[int, list[Step]] = defaultdict(list)
        at = 0
        for step in steps:
            if step.parts:
                within = {min(self._stretch(number), self.count - 1) for number in step.parts} - {-1, 0}
                at = max(within, default=0)
                order = [3 if k == self.count - 1 else k for k in within]  # what all share is in 0
                if order and max(order) - min(order) > 1:
                    raise NotAlike("a kernel spans three stretches")
            parts[at].append(step)
        written: set[str] = set()
        writers = {name for step in steps for name in self._writes(step)}
        for k in sorted(parts):
            for step in parts[k]:
                if any(name in writers and name not in written for name in self._reads(step)):
                    raise NotAlike("a stretch reads what a later one makes")
                written.update(self._writes(step))
        return parts

    def _stretch(self, number: int) -> int:
        at = max(number, ~number)
        if at in self.stretch_of:
            return self.stretch_of[at]
        if self.repeat.backward:  # what it computes again comes before all
            return self.count if number < 0 and at < self.first else -1
        return self.count if at > self.last else -1

    def _writes(self, step: Step) -> list[str]:
        if isinstance(step, Extern):
            return list(extern_writes(step))
        return [step.args[i] for i in self.written[step.kernel]]

    def _reads(self, step: Step) -> list[str]:
        """What a step needs to be there; kernels read what they also write only if they made it."""
        if isinstance(step, Extern):
            return list(extern_reads(step))
        written = set(self.written[step.kernel])
        return [name for i, name in enumerate(step.args) if i not in written]

    def _homes(self) -> dict[str, int]:
        """The stretch that makes each buffer.

        Raises:
            NotAlike: several do.
        """
        home: dict[str, int] = {}
        for k, steps in self.parts.items():
            for step in steps:
                for name in self._writes(step):
                    other = home.setdefault(name, k)
                    if other != k and max(k, other) > 0 and min(k, other) < self.count - 1:
                        raise NotAlike(f"{name} is written in two stretches")
        return home

    def _recipes(self) -> tuple[dict[str, int], dict[int, list[Extern]]]:
        """The stretch of each derived constant, and the calls that make them."""
        derived: dict[str, int] = {}
        calls: dict[int, list[Extern]] = defaultdict(list)
        for call in self.program.recipe.calls:
            stretches = {self.label[name][0] for name in names_in(call) if name in self.label}
            stretches |= {derived[name] for name in names_in(call) if derived.get(name, -1) >= 0}
            if len(stretches) > 1:
                raise NotAlike("a constant is derived from those of two stretches")
            k = stretches.pop() if stretches else -1
            derived.update((name, k) for name in call.outs if name is not None)
            calls[k].append(call)
        return derived, calls

    # ------------------------------------------------------------ likeness

    def _match(self) -> None:
        """Find what the third stretch has in place of what the second has.

        Raises:
            NotAlike: they differ in more than buffers.
        """
        second = [*self.calls[1], *self.parts[1]]
        third = [*self.calls[2], *self.parts[2]]
        if not self.parts[1] or len(second) != len(third):
            raise NotAlike("two stretches have different numbers of steps")
        pairs: dict[str, str] = {}
        for one, two in zip(second, third, strict=True):
            if type(one) is not type(two):
                raise NotAlike("two stretches have different steps")
            for a, b in zip(names_in(one), names_in(two), strict=False):
                if pairs.setdefault(a, b) != b:
                    raise NotAlike(f"{a} stands for two buffers")
            if not alike(renamed(one, pairs.get, ""), two):  # type: ignore[arg-type]
                raise NotAlike(f"{one.name if isinstance(one, Extern) else one.kernel} differs between stretches")
        if len(set(pairs.values())) != len(pairs):
            raise NotAlike("two buffers stand for one")
        self.pairs = pairs
        self.own_buffers = [name for name, k in self.home.items() if k == 2 and name in self.buffers]
        self.shift: dict[str, tuple[int, Any]] = {}
        ends = (0, self.count - 1)
        for a, b in pairs.items():
            here, next_ = self.label.get(a), self.label.get(b)
            if a == b:
                if self._belongs(a) > 0 and not (here and here[0] in ends):
                    raise NotAlike(f"{a} is used by two stretches")
            elif here and next_:
                # the last stretch to run also stands for the one behind the third
                if here[1] != next_[1] or here[0] + 1 != (3 if here[0] == 2 and next_[0] == ends[1] else next_[0]):
                    raise NotAlike(f"{b} is not {a} of the next stretch")
                self.shift[b] = here
            elif not (0 <= self._belongs(a) == self._belongs(b) - 1) and not self._is_literal(a, b):
                raise NotAlike(f"{b} does not stand for {a}")
        for k, other in ((self.count - 1, 1), (0, 2)):
            for step in self.parts[k]:
                if any(self._belongs(name) == other for name in names_in(step)):
                    raise NotAlike("stretches use others than those next to them")
        # what the third uses of the second, the fourth uses of the third
        mine = {a: b for a, b in pairs.items() if a not in self.label}
        self.next = {a: b for a, b in mine.items() if self._belongs(a) == 1 and self._belongs(b) == 2}
        for name in {name for step in third for name in names_in(step) if self._belongs(name) == 1}:
            if name not in self.next and name not in self.shift:
                raise NotAlike(f"nothing stands for {name}")

    def _belongs(self, name: str) -> int:
        """The stretch that a buffer belongs to; -1 where all may use it."""
        if name in self.label:
            return self.label[name][0]
        return self.derived.get(name, self.home.get(name, -1))

    def _is_literal(self, a: str, b: str) -> bool:
        """Whether two constants were written in the code of two equal calls."""
        consts = set(self.program.consts) - set(self.label)
        return a in consts and b in consts

    def _numbers(self, stretches: Mapping[int, int]) -> dict[int, int]:
        """Numbers of nodes of some stretches -> those of others."""
        rows = self.repeat.numbers
        numbers: dict[int, int] = {}
        for k, to in stretches.items():
            numbers.update(zip(rows[k], rows[to], strict=True))
        return {**numbers, **{~a: ~b for a, b in numbers.items()}}


def _renumbered(step: Step, number: Mapping[int, int]) -> Any:
    return replace(step, parts=tuple([number.get(n, n) for n in step.parts]))
