"""The stretches of a graph that were left out (`firebrick.ir.graph.equal_layers`), from what the others became."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from firebrick.errors import LoweringError
from firebrick.fuse.dependencies import extern_reads, extern_writes
from firebrick.ir.kernels.schedule import Launch
from firebrick.ir.loops.program import Extern, LoopProgram, Recipe, Ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from firebrick.ir.graph.equal_layers import Repeat
    from firebrick.ir.kernels.schedule import Kernel

    Step = Launch | Extern

__all__ = ["NotAlike", "unroll"]


class NotAlike(LoweringError):
    """The second and third stretch became different things; the whole graph is to be compiled."""


def unroll(
    program: LoopProgram, steps: Sequence[Step], kernels: tuple[Kernel, ...], repeat: Repeat
) -> tuple[LoopProgram, list[Step]]:
    """The program and steps of the whole graph, given those of its shortened copy.

    Raises:
        NotAlike: the third stretch is not the second one with other buffers.
    """
    return _Unroller(program, steps, kernels, repeat).run()


class _Unroller:
    def __init__(
        self, program: LoopProgram, steps: Sequence[Step], kernels: tuple[Kernel, ...], repeat: Repeat
    ) -> None:
        self.program, self.repeat = program, repeat
        self.count = len(repeat.numbers)
        self.written = {k.name: [i for i, p in enumerate(k.params) if p.written] for k in kernels}
        self.buffers = {b.name: b for b in program.buffers}
        self.stretch_of = {number: k for k, numbers in enumerate(repeat.numbers) for number in numbers}
        self.first, self.last = repeat.numbers[0][0], repeat.numbers[-1][-1]
        self.own = {name: (k, j) for k, names in enumerate(repeat.own) for j, name in enumerate(names)}
        self.parts: dict[int, list[Step]] = self._split(steps)
        self.home = self._homes()
        self.derived, self.calls = self._recipes()

    def run(self) -> tuple[LoopProgram, list[Step]]:
        """Copy the third stretch for each that was left out."""
        self._match()
        steps = [step for k in range(-1, 3) for step in self.parts[k]]
        before: Mapping[str, str] = {}
        buffers = list(self.program.buffers)
        consts, recipe = list(self.program.consts), list(self.program.recipe.calls)
        names = dict.fromkeys(self.buffers)
        for k in range(3, self.count - 1):
            here: dict[str, str] = {}
            for name in self.made:
                here[name] = f"{name}_{k}"
            for j, name in enumerate(self.repeat.own[2]):
                if name in self.buffers:
                    here[name] = self.repeat.own[k][j]
                    consts.append(here[name])
            for call in self.calls[2]:
                here.update((name, f"{name}_{k}") for name in call.outs if name is not None)
            for old, new in here.items():
                if new in names:
                    raise NotAlike(f"two buffers would be {new}")
                names[new] = None
                buffers.append(replace(self.buffers[old], name=new))
            # what the third reads of the second, this one reads of the one before it
            table = {**{old: before.get(new, new) for old, new in self.next.items()}, **here}
            recipe += [_renamed(call, table.get, f"_{k}") for call in self.calls[2]]  # type: ignore[misc]
            number = self._numbers(k)
            for step in self.parts[2]:
                moved = _renamed(step, lambda name, t=table: t.get(name, name), f"_{k}")  # type: ignore[misc]
                steps.append(replace(moved, parts=tuple([number.get(n, n) for n in step.parts])))
            before = here
        end = lambda name: before.get(name, name)  # noqa: E731
        steps += [_renamed(step, end, "") for k in (self.count - 1, self.count) for step in self.parts[k]]
        outputs = tuple([_rename_arg(value, end) for value in self.program.outputs])
        program = replace(
            self.program,
            buffers=tuple(buffers),
            consts=tuple(consts),
            outputs=outputs,
            recipe=Recipe(tuple(recipe)),
        )
        return program, steps

    # ------------------------------------------------------------ what belongs where

    def _split(self, steps: Sequence[Step]) -> dict[int, list[Step]]:
        """The steps of each stretch: -1 for what comes before the first, their count for what follows the last."""
        parts: dict[int, list[Step]] = defaultdict(list)
        at = -1
        for step in steps:
            if step.parts:
                within = set(map(self._stretch, step.parts)) - {-1}
                at = max(within, default=-1)
                order = [{self.count - 1: 3, self.count: 4}.get(k, k) for k in within]
                if order and max(order) - min(order) > 1:
                    raise NotAlike("a kernel spans three stretches")
            parts[at].append(step)
        made: set[str] = set()
        writers = {name for step in steps for name in self._writes(step)}
        for k in sorted(parts):
            for step in parts[k]:
                if any(name in writers and name not in made for name in self._reads(step)):
                    raise NotAlike("a stretch reads what a later one makes")
                made.update(self._writes(step))
        return parts

    def _stretch(self, number: int) -> int:
        found = self.stretch_of.get(number)
        if found is not None:
            return found
        return self.count if number > self.last else -1

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
            found = {self.own[name][0] for name in _names(call) if name in self.own}
            found |= {derived[name] for name in _names(call) if derived.get(name, -1) >= 0}
            if len(found) > 1:
                raise NotAlike("a constant is derived from those of two stretches")
            k = found.pop() if found else -1
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
            for a, b in zip(_names(one), _names(two), strict=False):
                if pairs.setdefault(a, b) != b:
                    raise NotAlike(f"{a} stands for two buffers")
            if not _alike(_renamed(one, pairs.get, ""), two):  # type: ignore[arg-type]
                raise NotAlike(f"{one.name if isinstance(one, Extern) else one.kernel} differs between stretches")
        if len(set(pairs.values())) != len(pairs):
            raise NotAlike("two buffers stand for one")
        self.made = [name for name, k in self.home.items() if k == 2 and name in self.buffers]
        for a, b in pairs.items():
            follows = self._belongs(a) >= 0 and self._belongs(a) + 1 == self._belongs(b)
            if a != b and not follows and not self._is_literal(a, b):
                raise NotAlike(f"{b} does not stand for {a}")
            if a != b and a in self.own and self.own[a][1] != self.own[b][1]:
                raise NotAlike(f"{b} is not {a} of the next stretch")
            if a == b and self._belongs(a) > 0:
                raise NotAlike(f"{a} is used by two stretches")
        for k in (self.count - 1, self.count):
            for step in self.parts[k]:
                if any(self._belongs(name) == 1 for name in _names(step)):
                    raise NotAlike("the last stretch uses the second")
        kinds = {self.buffers[name].kind for name, k in self.home.items() if k in (1, 2) and name in self.buffers}
        if not kinds <= {"temp"}:
            raise NotAlike("a stretch makes an output")
        # what the third uses of the second, the fourth uses of the third
        self.next = {a: b for a, b in pairs.items() if self._belongs(a) == 1 and self._belongs(b) == 2}
        for name in {name for step in third for name in _names(step) if self._belongs(name) == 1}:
            if name not in self.next:
                raise NotAlike(f"nothing stands for {name}")

    def _belongs(self, name: str) -> int:
        """The stretch that a buffer belongs to; -1 where all may use it."""
        if name in self.own:
            return self.own[name][0]
        return self.derived.get(name, self.home.get(name, -1))

    def _is_literal(self, a: str, b: str) -> bool:
        """Whether two constants were written in the code of two equal calls."""
        consts = set(self.program.consts) - set(self.own)
        return a in consts and b in consts

    def _numbers(self, k: int) -> dict[int, int]:
        """Numbers of nodes of the second and third stretch -> those of stretch k and the one before."""
        numbers = self.repeat.numbers
        found = dict(zip(numbers[1], numbers[k - 1], strict=True))
        found.update(zip(numbers[2], numbers[k], strict=True))
        return found


def _names(step: Step) -> list[str]:
    """The buffers of a step, by place."""
    if isinstance(step, Launch):
        return list(step.args)
    return [*_in_args((step.args, step.kwargs)), *[name for name in (*step.outs, *step.writes) if name is not None]]


def _in_args(value: Any) -> Iterator[str]:
    if isinstance(value, Ref):
        yield value.buffer
    elif isinstance(value, tuple):
        for item in value:
            yield from _in_args(item)


def _rename_arg(value: Any, name: Callable[[str], Any]) -> Any:
    if isinstance(value, Ref):
        new = name(value.buffer)
        return value if new is None or new == value.buffer else replace(value, buffer=new)
    if isinstance(value, tuple):
        return tuple([_rename_arg(item, name) for item in value])
    return value


def _renamed(step: Step, name: Callable[[str], Any], suffix: str) -> Any:
    """A step on other buffers."""
    if isinstance(step, Launch):
        return replace(step, args=tuple([name(a) or a for a in step.args]))
    return replace(
        step,
        name=step.name + suffix,
        args=_rename_arg(step.args, name),
        kwargs=_rename_arg(step.kwargs, name),
        outs=tuple([None if o is None else name(o) or o for o in step.outs]),
        writes=tuple([name(w) or w for w in step.writes]),
    )


def _alike(one: Step, two: Step) -> bool:
    if isinstance(one, Launch) and isinstance(two, Launch):
        return (one.kernel, one.args, one.sizes) == (two.kernel, two.args, two.sizes)
    return isinstance(one, Extern) and isinstance(two, Extern) and replace(one, name="") == replace(two, name="")
