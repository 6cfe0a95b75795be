"""What earlier captures of a code object tell the next one: what varies from call to call, and what was in vain."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.breaks.continuation import origin
from firebrick.capture.emit.effects import Effects
from firebrick.capture.guards.guard_kinds import Guard
from firebrick.capture.guards.guard_plan import Plan
from firebrick.capture.guards.size_symbols import Symbols, changed_sizes, vary_together
from firebrick.capture.guards.sources import InstanceAttr, Local, Source
from firebrick.capture.interpreter.frame_tracer import Tracer
from firebrick.capture.values.object import ObjectValue
from firebrick.capture.values.tensor import TensorValue
from firebrick.config import Config
from firebrick.errors import SizesDecided
from firebrick.ir.index.sizes import now as size_now
from firebrick.report import recorder

if TYPE_CHECKING:
    from firebrick._native import Entry, Frame

_MOST_EARLY = 4
"""Captures of a frame for different truths that its integers decide; those for numbers count twice."""
_MOST_IN_VAIN = 4
"""Captures with symbols that came out as numbers, before none are tried any more."""


class _Notes:
    """On one code object.

    inputs: tensors of modules that are inputs now; outdated: parameters that were other ones once; changed: what was
    another constant in an earlier round of a loop; floats, integers: those that were others; numbers: integers that
    had to be known; sizes: dimensions that had another size; together: others of
    such tensors that may vary too; first: arguments of a call that ran plain; in_vain: how
    often symbols could not be compiled, with and without gradients recorded; ones: whether a size of 1 may be a symbol;
    written: objects that calls change; begins_anew: whether it fills state that it is handed, such as a cache;
    guesses: whether sizes that data decide may be taken not to be 0; early: captures that read data in their guards;
    places: size, integer or decision about them -> where the program needed it.
    """

    def __init__(self) -> None:
        self.inputs: set[Source] = set()
        self.outdated: set[Source] = set()
        self.changed: set[Source] = set()
        self.floats: set[Source] = set()
        self.integers: set[Source] = set()
        self.numbers: set[Source] = set()
        self.sizes: set[tuple[Source, int]] = set()
        self.together: set[tuple[Source, int]] = set()
        self.first: dict[str, Any] | None = None
        self.in_vain = [0, 0]
        self.ones = True
        self.written: set[Source] = set()
        self.begins_anew = False
        self.guesses = True
        self.early = 0
        self.places: dict[Any, str] = {}


def _resized(value: ObjectValue, source: Source) -> Iterator[tuple[Source, int]]:
    """The dimensions of tensors that an object gets in the place of others, and of which these had another size."""
    for name in value.changed:
        before, now = getattr(value.obj, "__dict__", {}).get(name), value.fields[name]
        if type(before) is torch.Tensor and isinstance(now, TensorValue) and before.dim() == now.fake.dim():
            for d, (old, new) in enumerate(zip(before.shape, now.fake.shape, strict=True)):
                if size_now(new) != old:
                    yield InstanceAttr(source, name), d


def _is_of_module(source: Source | None, frame: Frame) -> bool:
    """Whether a module is on the way to a value, or it is reached in another way than by an argument."""
    while source is not None and not isinstance(source, Local):
        with contextlib.suppress(LookupError, AttributeError, TypeError):
            if isinstance(source.evaluate(frame), torch.nn.Module):
                return True
        source = getattr(source, "base", None)
    return source is None or isinstance(source.evaluate(frame), torch.nn.Module)


class History:
    """What one `Capture` remembers of code objects."""

    def __init__(self) -> None:
        self._notes: WeakKeyDictionary[CodeType, _Notes] = WeakKeyDictionary()

    def of(self, code: CodeType) -> _Notes:
        """What is remembered of a code object; parts of loops share that on their rounds."""
        notes = self._notes.get(code)
        if notes is None:
            notes = self._notes[code] = _Notes()
        return notes

    def note(self, frame: Frame, older: list[Entry]) -> str:
        """Remember why a frame fits none of the entries: what keeps it from the nearest, or only sizes from others.
        Where the program needed what has changed, if it is known to."""
        self._note_replaced(frame, older)
        failing = [(entry.plan, [g for g in entry.plan.guards if not g.holds(frame)]) for entry in older]
        nearest = min((guards for _, guards in failing), key=len)
        self._note_state(frame, nearest)
        for plan, guards in failing:
            if len(guards) == len(nearest):
                self._note_changing(frame, plan, guards)
            if guards is nearest or all(guard.kind in ("TENSOR", "SHAPE") for guard in guards):
                sizes = {*changed_sizes(frame, guards)}
                self.of(frame.code).sizes |= sizes
                self.of(frame.code).together.update(vary_together(frame, sizes))
        every = [guard for _, guards in failing for guard in guards]
        keys: list[Any] = [("size", *dim) for dim in changed_sizes(frame, every)]
        keys += [g.payload if g.kind == "SHAPE" else ("int", g.source) for g in every]
        where = next((place for key in keys if (place := self.of(frame.code).places.get(key))), "")
        return where and f", which is decided at {where.rpartition('/')[2]}"

    def is_first(self, frame: Frame) -> bool:
        """Whether a frame is the first of its code, which may run plain; what its arguments were tells what varies."""
        notes = self.of(frame.code)
        now = {n: v.shape if type(v) is torch.Tensor else v for n, v in frame.locals.items()}
        now = {n: v for n, v in now.items() if type(v) in (torch.Size, int, float)}
        first, notes.first = notes.first, now
        if first is None:
            return True
        for name, value in now.items():
            before, source = first.get(name), Local(name)
            if isinstance(value, torch.Size) and isinstance(before, torch.Size) and len(value) == len(before):
                notes.sizes |= {(source, d) for d, (a, b) in enumerate(zip(value, before, strict=True)) if a != b}
            elif type(value) is type(before) and value != before:
                (notes.integers if type(value) is int else notes.floats).add(source)
        return False

    def tell(self, tracer: Tracer, code: CodeType) -> None:
        """Tell a capture what varies."""
        notes = self.of(code)
        tracer.replaced, tracer.symbols.varying = frozenset(notes.inputs), frozenset(notes.sizes | notes.together)
        tracer.symbols.written = frozenset(notes.written)
        tracer.symbols.ones, tracer.symbols.sizes.guesses = notes.ones, notes.guesses
        if notes.begins_anew and tracer.symbols.dynamic is None:
            tracer.symbols.dynamic = True
        tracer.numbers = frozenset(notes.floats)
        tracer.integers = frozenset(notes.integers - notes.numbers)
        source = origin(code)
        if source is not None and source.region is not None:
            tracer.changed = frozenset(self.of(source.code).changed)
            tracer.changing = tracer.changed | {Local(name) for name in source.region.changing}

    def is_static(self, code: CodeType) -> bool:
        """Whether symbols were tried in vain: what does so once costs a capture each time."""
        return self.of(code).in_vain[torch.is_grad_enabled()] >= _MOST_IN_VAIN

    def note_numbers(self, code: CodeType, symbols: Symbols) -> bool:
        """Integers that had to be known are numbers from now on; whether there are new ones."""
        notes, decided = self.of(code), symbols.decided_integers()
        new = bool(decided - notes.numbers)
        notes.numbers |= decided
        return new

    def note_effects(self, code: CodeType, effects: Effects) -> bool:
        """Remember what a capture changes; whether that shows new sizes that vary: of tensors replaced by larger
        or smaller ones, as in a cache that grows."""
        notes = self.of(code)
        before = len(notes.sizes)
        notes.floats |= effects.floats
        for value in effects.roots():
            if value.source is not None and isinstance(value, ObjectValue):
                notes.written.add(value.source)
                notes.sizes.update(_resized(value, value.source))
        return len(notes.sizes) > before

    def note_reads(self, code: CodeType, tracer: Tracer) -> None:
        """Remember what a capture had to know."""
        self._note_places(code, tracer.symbols)
        self.note_numbers(code, tracer.symbols)
        self.of(code).early += tracer.early.cost

    def may_read_early(self, code: CodeType, error: Break, config: Config) -> bool:
        """Whether what would end the graph may be read in the guards."""
        return error.is_of_data() and (config.fullgraph or self.of(code).early < _MOST_EARLY)

    def try_again(self, code: CodeType, error: Exception, symbols: Symbols) -> bool:
        """Whether the next capture has symbols too: with numbers for integers that had to be known."""
        self._note_places(code, symbols)
        return self.note_numbers(code, symbols) or self.give_up_symbols(code, error, symbols)

    def give_up_symbols(self, code: CodeType, error: Exception, symbols: Symbols) -> bool:
        """Symbols were tried in vain; where all sizes became numbers, that may be by chance. Whether there is another
        try: without symbols of 1, and of sizes that did not vary."""
        notes = self.of(code)
        if symbols.has_ones or not notes.together <= notes.sizes:
            notes.ones, notes.together = notes.ones and not symbols.has_ones, set()
            return True
        lasting = not isinstance(error, SizesDecided)
        notes.in_vain[torch.is_grad_enabled()] += _MOST_IN_VAIN if lasting else 1
        recorder.count("sizes compiled as numbers")
        recorder.reason("size as a number", str(error))
        return False

    def _note_places(self, code: CodeType, symbols: Symbols) -> None:
        symbols.note_places()
        self.of(code).places |= symbols.places

    def _note_replaced(self, frame: Frame, older: list[Entry]) -> None:
        """A module's tensor that was replaced (a recurrent state, say) is an input of the next capture.

        A parameter is from the second time on; until then the entry for the one before goes, with all it holds.
        """
        notes = self.of(frame.code)
        again = frozenset(notes.outdated)
        for entry in older:
            for guard in entry.plan.guards:
                if guard.kind == "ID" and guard.source is not None and not guard.holds(frame):
                    with contextlib.suppress(LookupError, AttributeError, TypeError):
                        value = guard.source.evaluate(frame)
                        if isinstance(value, torch.nn.Parameter) and guard.source not in again:
                            notes.outdated.add(guard.source)
                        elif isinstance(value, torch.Tensor):
                            notes.inputs.add(guard.source)
                        if isinstance(value, torch.nn.Parameter) and entry.plan.is_about(frame):
                            entry.remove()

    def _note_state(self, frame: Frame, failing: list[Guard]) -> None:
        """A call that fits no entry because an earlier one changed an argument's object is a step of a loop, which will
        begin anew with other sizes; a module's state lasts."""
        notes = self.of(frame.code)
        for guard in failing:
            owner = getattr(guard.source, "base", None)
            if guard.kind not in ("TENSOR", "SHAPE") and owner in notes.written and not _is_of_module(owner, frame):
                notes.begins_anew = True

    def _note_changing(self, frame: Frame, plan: Plan, failing: list[Guard]) -> None:
        """A constant that was another in an earlier round of a loop is none, nor is a float that was another."""
        source = origin(frame.code)
        failed = [g for g in failing if g.kind in ("EQUALS", "ID") and g not in plan.modules]
        if source is not None and source.region is not None:
            self.of(source.code).changed.update(guard.source for guard in failed if guard.source is not None)
        else:
            notes = self.of(frame.code)
            for kind, numbers in ((float, notes.floats), (int, notes.integers)):
                numbers.update(g.source for g in failed if g.source is not None and type(g.payload) is kind)
