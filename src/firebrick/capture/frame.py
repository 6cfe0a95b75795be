"""From a frame to guarded new code: the callback of the frame hook.

A frame is executed symbolically from its start. Where that can't go on, the capture starts again and
ends just before the instruction of the frame that led there; the new code then runs the graph so far,
replays side effects, restores the machine's state, runs that instruction natively and goes on in a
continuation, which is captured when it is called.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import fx

from firebrick import _native
from firebrick.capture import library, semantics
from firebrick.capture.breaks.catalogue import Break, SkipFrame
from firebrick.capture.breaks.continuation import is_rest, origin
from firebrick.capture.breaks.regions import last_on_numbers
from firebrick.capture.breaks.resume import can_break, emit_break, emit_plain
from firebrick.capture.bytecode.assemble import Handler, Label
from firebrick.capture.bytecode.control_flow import flow, live_slots
from firebrick.capture.bytecode.instructions import decode
from firebrick.capture.emit.materialize import ValueEmitter
from firebrick.capture.entry import is_entry
from firebrick.capture.graph import LeavesEscape, arguments, examples
from firebrick.capture.guards.alias_guards import guard_aliases
from firebrick.capture.guards.guard_plan import Plan, build_plan
from firebrick.capture.guards.recheck import Recheck
from firebrick.capture.guards.sources import Cell, Local, Source
from firebrick.capture.guards.torch_state import is_watched, recording, restoring_modes, set_hooks, starts_recording
from firebrick.capture.history import History
from firebrick.capture.hook import SKIP, SKIP_SCOPE, Wrapped, entries
from firebrick.capture.interpreter.frame_tracer import Tracer, is_library
from firebrick.capture.interpreter.interpreter import BreakHere, Interpreter
from firebrick.capture.plain import may_have_tensors, run_plain
from firebrick.capture.stance import LATER, current
from firebrick.capture.values.base import NULL, LazyValue, Raised, Value
from firebrick.capture.values.constant import LITERAL_TYPES, ConstantValue
from firebrick.capture.values.function import CellValue
from firebrick.capture.values.iterator import GeneratorValue
from firebrick.capture.values.made import MadeTensor, NumberValue
from firebrick.config import Config
from firebrick.errors import BackendError, FirebrickError, InternalError, RecompileError, SizesRefused, WrapperRefused
from firebrick.fakes.mode import hooks_paused
from firebrick.fakes.node_values import release
from firebrick.gc_pause import collector_paused
from firebrick.ir.index.sizes import Sizes
from firebrick.report import recorder
from firebrick.runtime import ConstantsChanged

if TYPE_CHECKING:
    from firebrick._native import Frame

Backend = Callable[[fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]

_GENERATOR_OR_ASYNC = 0x20 | 0x80 | 0x200
_MOST_FLOATS = 3
"""Captures of a continuation for different floats, before Python runs what uses them."""
_MOST_DISPROVED = 3
"""Calls in which what was guessed of data does not hold, before it is guessed no more."""
_MAX_ATTEMPTS = 12
_MAX_ENTRIES = 256  # of one code object, for all modules that run it
_MAX_VERSIONS = 4  # tensors whose versions are looked at before a graph that changes them
_MOST_COPIED = 65536  # bytes of such tensors that are copied, where it matters how far the graph came
_NO_MISTAKE = (FirebrickError, torch.utils.checkpoint._StopRecomputationError)  # plain Python would not raise these
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_FRAMES = ("_getframe", "currentframe")
_LOOKS = frozenset(("eval", "exec", "locals", "vars", "dir", *_FRAMES))
_PACKAGE = str(Path(__file__).resolve().parent.parent)
_DYNAMO = getattr(getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None), "get_eval_frame_callback", None)
_ = (library, semantics)


@dataclass(slots=True)
class FrameReport:
    """What became of one captured frame."""

    name: str
    file: str
    line: int
    graph: fx.GraphModule | None = None
    op_count: int = 0
    guards: tuple[str, ...] = ()
    break_: Break | None = None
    recompile: str = ""
    code: CodeType | None = None
    attempts: int = 1
    effects: tuple[tuple[str, Any], ...] = ()

    def as_data(self) -> dict[str, Any]:
        """What tools that listen are told."""
        why = None if self.break_ is None else str(self.break_)
        place = {"name": self.name, "file": self.file, "line": self.line}
        return {**place, "ops": self.op_count, "guards": list(self.guards), "break": why}

    def show(self, level: str) -> str:
        """What the levels `capture` and `guards` of `FIREBRICK_DEBUG` print."""
        lines = [f"{level} {self.name}  {Path(self.file).name}:{self.line}"]
        if level == "guards":
            return "\n  ".join([*lines, *self.guards])
        lines[0] += f"  {self.op_count} ops" + ("" if self.graph is None else " in a graph")
        return "\n  ".join([*lines, *([f"break: {self.break_}"] if self.break_ is not None else [])])


class Capture:
    """The callback that the frame hook asks.

    Args:
        backend: `(gm, example_inputs) -> callable`. With an attribute `reads_nodes_only` that is true, it gets a
          module whose Python source is made when it is asked for; with `takes_symbols`, graphs with sizes that vary.
        config: settings of this compile.
        on_frame: is given a report of each captured frame.
        scope: what the hook was given with this callback; only its entries count as recompiles.
    """

    def __init__(
        self,
        backend: Backend,
        config: Config,
        *,
        on_frame: Callable[[FrameReport], None] | None = None,
        scope: object = None,
    ) -> None:
        self.backend, self.config, self.on_frame, self.scope = backend, config, on_frame, scope
        self.tries: int | None = None
        """Captures left once a frame has come to the limit: the same values vary in the frames that it calls."""
        self.history = History()
        self.recheck = Recheck() if "guards" in config.check else None
        self.skipped: WeakKeyDictionary[CodeType, int] = WeakKeyDictionary()

    def __call__(self, frame: Frame) -> Any:
        """Capture a frame: None to run it as it is, SKIP never to ask again, or plan and code."""
        code = frame.code
        if _DYNAMO is not None and _DYNAMO() not in (None, False):
            return None  # torch.compile has been called in plain Python, and looks at each frame that runs, ours too
        if not is_capturable(code, frame.globals):
            return run_plain(frame)
        place = f"{Path(code.co_filename).name}:{code.co_firstlineno}" if self.config.skip_frames else ""
        if self.config.stages == "none" or not self.config.skip_frames.isdisjoint((place, code.co_qualname)):
            return SKIP_SCOPE
        if is_watched():
            return None
        for entry in entries(code) if self.recheck is not None else ():
            if entry.scope is self.scope:
                entry.remove()
        stance = current().name
        if stance != "default" and self._is_left_plain(frame, stance):
            return None
        if self._over_limit(frame):
            return SKIP_SCOPE
        with recorder.timed("capture"), collector_paused(), hooks_paused():
            try:
                return self._capture(frame)
            except SkipFrame as skipped:
                recorder.reason("skip", skipped.why)
                times = self.skipped[code] = self.skipped.get(code, 0) + 1
                again = times < self.config.recompile_limit  # what is looked at in vain each time costs each time
                return SKIP if skipped.always else None if again else SKIP_SCOPE
            except FirebrickError:
                raise
            except Exception as error:  # noqa: BLE001  the frame falls back to plain Python, and says so
                return self._failed(code, error)

    def _is_left_plain(self, frame: Frame, stance: str) -> bool:
        """Whether the stance leaves a frame that fits no entry alone; raises RecompileError: it forbids this."""
        if stance in LATER:
            return self.history.is_first(frame)
        if stance == "fail_on_recompile" and frame.code not in self.skipped and may_have_tensors(frame):
            older = [entry for entry in entries(frame.code) if entry.scope is self.scope]
            place = _place_of(frame.code)
            why = older[0].plan.explain_failure(frame) if older else "nothing was compiled for it"
            raise RecompileError(f"{place} would be compiled under the stance fail_on_recompile: {why}")
        return True

    def _failed(self, code: CodeType, error: Exception) -> Any:
        what = f"capture of {code.co_qualname} failed: {type(error).__name__}: {error}"
        if self.config.strict:
            raise InternalError(what) from error
        recorder.count("capture.failed")
        recorder.warn_once(f"capture {code.co_filename} {code.co_firstlineno}", f"{what}; it runs as plain Python")
        return SKIP

    def _over_limit(self, frame: Frame) -> bool:
        if self.tries == 0:
            return True
        every = [entry for entry in entries(frame.code) if entry.scope is self.scope]
        compared = every if len(every) >= _MAX_ENTRIES else [entry for entry in every if entry.plan.is_about(frame)]
        if not compared:
            return False
        why, guard = compared[0].plan.explain_failure(frame), compared[0].plan.failing_guard(frame)
        why += self.history.note(frame, compared)
        recorder.reason("recompile", why)
        name, line = frame.code.co_qualname, frame.code.co_firstlineno
        recorder.event("recompile", name=name, file=frame.code.co_filename, line=line, why=why, guard=str(guard or ""))
        place = _place_of(frame.code)
        recorder.show(self.config, "recompiles", name, f"recompile {place}: {why}")
        if len(compared) < self.config.recompile_limit:
            return False
        self.tries = self.config.recompile_limit if self.tries is None else self.tries
        remedy = "" if guard is None else f"{guard.remedy()}, or "
        text = (
            f"{place} was compiled {len(compared)} times and now runs as plain Python where nothing that was compiled "
            f"fits; the last time because {why}. Fix: {remedy}raise recompile_limit"
        )
        recorder.warn_once(f"limit {frame.code.co_filename} {frame.code.co_firstlineno}", text)
        return True

    def _capture(self, frame: Frame) -> Any:
        recorder.count("frames")
        break_step: int | None = None
        reason: Break | None = None
        absent: list[tuple[Any, Any]] = []
        history, code, reading, through, leaves_before = self.history, frame.code, 0, -1, False
        takes = self.config.dynamic is not False and getattr(self.backend, "takes_symbols", False)
        symbols = takes and not history.is_static(code)
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            one = Attempt(frame, break_step, through)
            one.tracer.symbols.dynamic = self.config.dynamic if symbols else False
            history.tell(one.tracer, code)
            # behind a break a float may be another at each call: Python runs what needs to know it
            one.tracer.pins = origin(code) is None or self.config.fullgraph or len(entries(code)) < _MOST_FLOATS
            one.tracer.graph.keeps_sizes = getattr(self.backend, "keeps_sizes", False)
            one.tracer.graph.is_whole = self.config.fullgraph
            data = symbols and getattr(self.backend, "checks_data", True)
            one.tracer.symbols.sizes.takes_data, one.tracer.early.on = data, reading > 0
            one.tracer.early.truths_alone, one.tracer.graph.leaves_before = reading == 1, leaves_before
            try:
                one.run()
                if one.tracer.symbols.sizes.guessed and not one._can_start_again():
                    history.of(code).guesses = False  # nothing could be done in a call that does not agree
                    continue
                if history.note_effects(code, one.tracer.effects) and symbols and attempt == 1:
                    continue
                one.tracer.symbols.sizes.takes_data = False
                one.tracer.symbols.check_marks()
                for key, guard in absent:
                    one.tracer.guards.put(key, guard)
                entry = self._finish(frame, one, reason, attempt)
                history.note_reads(code, one.tracer)
                return entry
            except SizesRefused as error:
                symbols = history.try_again(code, error, one.tracer.symbols)
            except LeavesEscape:
                leaves_before = True
            except WrapperRefused as error:
                refused = Break(error.kind, str(error))
                if self.config.fullgraph:
                    raise refused.unsupported() from error
                raise SkipFrame(str(refused), always=True) from error
            except SkipFrame:
                raise
            except Break as error:
                retry = error.kind.name == "fake-tensor-failed" or (self.config.fullgraph and not error.is_of_data())
                if one.tracer.symbols.in_use() and retry:
                    symbols = history.try_again(code, error, one.tracer.symbols)
                    continue
                if reading in (0, 1) and reason is None and history.may_read_early(code, error, self.config):
                    reading = 1 if reading == 0 and error.kind.name == "data-dependent-branch" else 2
                    forget_places(error)
                    continue
                reading = reading if one.tracer.early.count else -1
                if reason is None:  # what is made at the first call, and broke it, is there in the next
                    reason, absent = error, one.tracer.guards.absent_attributes()
                if self.config.fullgraph and reason is error and not error.raises():
                    raise error.unsupported() from error
                error.raises = bool  # nobody asks any more, and nothing is held for it
                if looks_at_frame(frame.code):
                    raise SkipFrame("a function that looks at the frame's locals is called", always=True) from error
                if one.is_at_break() and one.abandoned is None:
                    through = max(through, one.root.index)
                early = error.step if reason is error and break_step is None else None
                break_step = one.step_to_break_at() if early is None else early
                forget_places(error)
            except Exception as error:
                if isinstance(error, FirebrickError) or not one.tracer.symbols.in_use():
                    raise
                symbols = history.give_up_symbols(code, error, one.tracer.symbols)
            finally:
                one.release()
        raise SkipFrame(f"{frame.code.co_qualname} could not be broken anywhere", always=True)

    def _finish(self, frame: Frame, one: Attempt, reason: Break | None, attempts: int) -> Any:
        graph, module = one.tracer.graph, one.module
        if reason is None and self.config.fullgraph and is_rest(frame.code):
            raise Break("exception-escapes", "an exception that was to leave the function did not").unsupported()
        if module is None and reason is None:
            raise SkipFrame("nothing to capture", always=not one.tracer.early.count)
        if module is None and (frame.code.co_name in _COMPREHENSIONS or not may_have_tensors(frame)):
            raise SkipFrame("no tensors before the first break", always=True)
        guard_aliases(one.tracer)
        compiled = None
        if module is not None:
            compiled = self._compile(module, examples(graph), graph.switches)
            recorder.count("graphs")
            recorder.count("ops", graph.op_count)
            if self.tries is not None:
                self.tries -= 1
            made = graph.inference.as_made(graph, arguments(graph), compiled)
            compiled = compiled if made is compiled else Wrapped(made, None)
        if reason is not None:
            recorder.count("breaks")
            recorder.reason("break", str(reason))
        for value in one.tracer.found:
            if isinstance(value, LazyValue) and value._real is None and value.source is not None:
                one.tracer.guards.type(value.source, type(value.obj))
        outdated = _Outdated(frame.code, one.tracer.symbols.sizes, self.history)
        code = one.assemble(compiled, outdated)
        guards = one.tracer.guards
        for guard in one.tracer.symbols.guards():
            guards.put((guard.kind, guard.payload), guard)
        if not isinstance(compiled, _native.Executable):  # that one looks at its constants itself
            for source, tensor, _ in graph.constants():
                guards.tensor(source, tensor)
        plan = outdated.plan = build_plan(guards.all(), frame.code)
        if self.recheck is not None:
            lines = [] if module is None else [str(node.format_node()) for node in module.graph.nodes]
            plan = outdated.plan = self.recheck.used_once(frame, plan, lines, code)
        levels = [level for level in ("capture", "guards") if recorder.wants(self.config, level)]
        if self.on_frame is not None or levels or recorder.listeners:
            report = FrameReport(frame.code.co_qualname, frame.code.co_filename, frame.code.co_firstlineno)
            report.graph, report.op_count, report.break_ = module, graph.op_count, reason
            report.guards = tuple(str(guard) for guard in guards.user())
            report.code, report.attempts = code, attempts
            report.effects = (*one.tracer.effects.show(frame.code), *one.tracer.prelude.show())
            for level in levels:
                recorder.show(self.config, level, report.name, report.show(level))
            if self.on_frame is not None:
                self.on_frame(report)
            recorder.event("capture", **report.as_data())
        elif isinstance(compiled, _native.Executable) and getattr(self.backend, "reads_nodes_only", False):
            release(graph.graph)
        return plan, code

    def _compile(self, module: fx.GraphModule, inputs: list[Any], switches: set[Any]) -> Callable[..., Any]:
        records = starts_recording(module.graph)
        if not getattr(self.backend, "reads_nodes_only", False):
            meta, module = module.meta, fx.GraphModule(module, module.graph)
            module.meta.update(meta)
        try:
            # where the program has torch functions off, FX could trace nothing
            with torch._C._EnableTorchFunction(), torch.set_grad_enabled(records or torch.is_grad_enabled()):
                compiled = self.backend(module, inputs)
        except FirebrickError:
            raise
        except Exception as error:
            name = getattr(self.backend, "__name__", str(self.backend))
            if self.config.strict:
                raise BackendError(f"backend {name} failed: {type(error).__name__}: {error}") from error
            recorder.warn_once(f"backend {name} {error}", f"backend {name} failed ({error}); the graph runs eagerly")
            compiled = module.forward
        if not callable(compiled):
            raise BackendError(f"backend returned {type(compiled).__name__}, which can't be called")
        if records:
            return Wrapped(recording(restoring_modes(compiled, switches)), None)  # type: ignore[no-any-return]
        # what a backend runs in Python is not captured again, nor are operators written in Python
        if isinstance(compiled, _native.Executable) and all(route == "direct" for _, route in compiled.routes()):
            return compiled  # type: ignore[no-any-return]
        return Wrapped(restoring_modes(compiled, switches), None)  # type: ignore[no-any-return]


class _Outdated:
    """Called by new code whose graph says that a tensor it holds is no longer like what was compiled."""

    __slots__ = ("code", "history", "plan", "sizes")
    plan: Plan

    def __init__(self, code: CodeType, sizes: Sizes, history: History) -> None:
        self.code, self.sizes, self.history = code, sizes, history

    def __call__(self, why: str = "the dtype, device, shape or strides of a parameter or buffer changed") -> None:
        for entry in entries(self.code):
            if entry.plan is self.plan:
                entry.remove()
        recorder.reason("recompile", why)

    def count_disproved(self) -> None:
        """Guess no more what was guessed in vain in several calls."""
        if self.sizes.disproved >= _MOST_DISPROVED:
            self.history.of(self.code).guesses = False
            self("what data decide was taken not to be empty, and often is")


def forget_places(error: BaseException | None) -> None:
    """Drop the tracebacks of an error that is kept: they hold every frame up to the user's, and all that is in them."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def is_capturable(code: CodeType, variables: dict[str, Any]) -> bool:
    """Whether frames of the code are looked at: not those of libraries, except torch's module classes."""
    if is_entry(code):
        return True
    module = variables.get("__name__")
    if code.co_flags & _GENERATOR_OR_ASYNC or (code.co_filename.startswith((_PACKAGE, "<frozen"))):
        return False
    if code.co_name == "<module>":
        return False
    if isinstance(module, str) and is_library(module):
        inside = module.startswith(("torch.nn.modules", "torch.nn.functional")) and module != "torch.nn.modules.module"
        return inside and code.co_name not in ("__init__", "__getattr__", "__setattr__", "extra_repr")
    return True


def looks_at_frame(code: CodeType) -> bool:
    """Whether code asks for its own frame or locals by name, which a continuation does not have as they were."""
    if not _LOOKS.intersection(code.co_names):
        return False
    instructions = [i for i in decode(code) if i.opname != "PRECALL"]
    return any(
        before.argval in _FRAMES
        or (before.opname == "LOAD_GLOBAL" and before.argval in ("eval", "exec", "locals"))
        or (before.opname == "LOAD_GLOBAL" and before.argval in _LOOKS and after.opname == "CALL" and not after.arg)
        for before, after in itertools.pairwise(instructions)
    )


class Attempt:
    """One symbolic execution of a frame, up to its end or to `break_step`."""

    def __init__(self, frame: Frame, break_step: int | None, through: int = -1) -> None:
        self.frame, self.break_step, self.code = frame, break_step, frame.code
        self.through = through  # instructions up to this one can't be left
        self.tracer = Tracer(frame.globals)
        slots: dict[str, Value] = {
            name: LazyValue(self.tracer, value, Local(name)) for name, value in frame.locals.items()
        }
        self.free = [
            self._free_cell(name, cell) for name, cell in zip(self.code.co_freevars, frame.closure or (), strict=True)
        ]
        self.root = Interpreter(self.tracer, self.code, frame.globals, slots, closure=self.free)
        self.tracer.current = self.root
        self.arguments = dict(slots)
        self.result: Value | None = None
        self.module: fx.GraphModule | None = None
        self.emitter: ValueEmitter | None = None
        self.recorded = torch.is_grad_enabled()  # whether gradients are, where the tail has got to
        self.abandoned: int | None = None  # the step that made a generator which this place would give up

    def _free_cell(self, name: str, cell: Any) -> CellValue:
        try:
            content: Value | None = LazyValue(self.tracer, cell.cell_contents, Cell(name))
        except ValueError:
            content = None
        cell_value = CellValue(content, name, Cell(name), cell)
        self.tracer._cells[id(cell)] = cell_value
        return cell_value

    def release(self) -> None:
        """Let go of the user's objects now: values, interpreters and the tracer refer to each other."""
        vars(self.root).clear()
        vars(self.tracer.graph).clear()
        vars(self.tracer).clear()
        vars(self).clear()

    # -- execution ----------------------------------------------------------------

    def run(self) -> None:
        """Execute, then write the new code's tail, so that a break there still finds another place.

        Raises:
            Break: this place can't be reached or left.
        """
        with _modes_kept(self.tracer):
            try:
                self.result = self.root.run_root(self.break_step)
            except BreakHere:
                pass
            except Raised as raised:
                escapes = Break("exception-escapes", f"{raised.value.python_type().__name__} is raised")
                raise self.root.located(escapes) from None
            try:
                self._write_tail()
            except Break as error:
                raise self.root.located(error) from error.__cause__

    def step_to_break_at(self) -> int:
        """The step at which the next attempt is to end."""
        root = self.root
        limit = root.steps if self.break_step is None else min(self.break_step, root.steps)
        if self.abandoned is not None:
            return self.abandoned
        if self.is_at_break():
            # where an exception came from, if this is its handler, else the start of a statement
            steps = [*root.statement_steps, *self.tracer.raise_steps]
            earlier = max((step for step in steps if step < limit), default=None)
            if earlier is None:
                raise SkipFrame(f"{self.code.co_qualname} could not be broken anywhere", always=True)
            return earlier
        return limit

    def is_at_break(self) -> bool:
        """Whether the execution came to `break_step`, so that it is this place that can't be left."""
        return self.root.steps == self.break_step or self.abandoned is not None

    # -- new code -------------------------------------------------------------------

    def _closes_quietly(self, generator: GeneratorValue) -> bool:
        """Whether closing a generator that is given up has no effect."""
        before = (self.tracer.graph.op_count, self.tracer.effects.count)
        try:
            generator.frame.close_generator(self.root)
        except (Raised, Break):
            return False
        return before == (self.tracer.graph.op_count, self.tracer.effects.count)

    def _write_tail(self) -> None:
        root, code = self.root, self.code
        for step, generator in self.tracer.generators:
            if generator.is_paused_in_block() and not self._closes_quietly(generator):
                self.abandoned = step
                raise Break("generator-escapes", f"{generator.describe()} is given up before its end")
        own_cells = {id(cell): cell.name for cell in self.free}
        for name, value in root.slots.items():
            if isinstance(value, CellValue) and name in code.co_cellvars:
                own_cells[id(value)] = name
        emitter = self.emitter = ValueEmitter(code, None, self.tracer.graph, own_cells)
        emitter.prologue()
        self.mark = emitter.mark()
        recorded = self.tracer.graph.grad_at_start
        for context in self.tracer.graph.open_modes:  # entered again, the outermost first
            _switch_grad(emitter, recorded, context.grad[0])
            emitter.load(context)
            emitter.pop()
            recorded = context.grad[1]
        self.recorded = recorded
        if self.result is not None:
            temp = emitter.load_to_temp(self.result)
            self._replay(emitter, every_cell=False)
            emitter.load_fast(temp)
            emitter.return_value()
        else:
            self._write_break(emitter)
        self.tracer.graph.close(self.root)
        self.module = self.tracer.graph.finish()

    def _write_break(self, emitter: ValueEmitter) -> None:
        root, code, index = self.root, self.code, self.root.index
        nulls = [value is NULL for value in root.stack]
        if not can_break(code, index, nulls):
            raise Break("unsupported-instruction", "a graph break is not possible here")
        graph = flow(code)
        live = live_slots(code)[index]
        names = [name for name, bit in graph.slots.items() if live & bit and name not in code.co_freevars]
        receiver = code.co_varnames[0] if "__class__" in code.co_freevars and code.co_argcount else None
        if receiver is not None and receiver not in names:
            names.append(receiver)
        moved: dict[str, str] = {}
        for name in names:
            value = root.slots.get(name)
            if value is None or isinstance(value, CellValue) or value is self.arguments.get(name):
                continue
            moved[name] = emitter.load_to_temp(value)
        stack = [None if value is NULL else emitter.load_to_temp(value) for value in root.stack]
        self._replay(emitter, every_cell=True)
        for name, temp in moved.items():
            emitter.load_fast(temp)
            emitter.store_fast(name)
        lost = {name for name, value in self.arguments.items() if root.slots.get(name) is not value} - {*moved}
        for name in lost - {*code.co_cellvars}:
            emitter.delete_fast(name)
        for item in stack:
            if item is None:
                emitter.push_null()
            else:
                emitter.load_fast(item)
        emitter.clear_temps()
        bound = {*self.arguments, *moved} - lost
        bound |= {name for name, v in root.slots.items() if isinstance(v, CellValue) and v.content is not None}
        last, changing = self._last_on_numbers()
        emit_break(emitter, code, index, nulls, bound, max(self.through, last), changing)

    def _last_on_numbers(self) -> tuple[int, frozenset[str]]:
        """Where Python may go on to in a round of a loop, before it comes to tensors, and what changes with it."""
        root, source = self.root, origin(self.code)
        if source is None or source.region is None:
            return -1, frozenset()
        names = [name for name, value in root.slots.items() if _is_number(value)]
        return last_on_numbers(flow(self.code), root.index, map(_is_number, root.stack), names, self.frame.globals)

    def _replay(self, emitter: ValueEmitter, *, every_cell: bool) -> None:
        for hooks in self.tracer.hooks:
            hooks.check(self.root)
        for mode in self.tracer.function_modes:
            self.tracer.effects.later(torch.overrides._push_mode, [mode], {})
        for hooks in self.tracer.saving:
            self.tracer.effects.later(set_hooks, [hooks.pack, hooks.unpack], {})
        stores = self.tracer.effects.load(emitter)
        self.tracer.function_modes = self.tracer.saving = []  # what closes the graph is no call of the program
        cells = {
            name: value
            for name, value in self.root.slots.items()
            if isinstance(value, CellValue) and name in self.code.co_cellvars
        }
        filled: dict[str, str] = {}
        while True:
            names = [
                name
                for name, cell in cells.items()
                if name not in filled and cell.content is not None and (every_cell or name in emitter.used_cells)
            ]
            if not names:
                break
            for name in names:
                content = cells[name].content
                assert content is not None
                filled[name] = emitter.load_to_temp(content)
        for store in stores:
            store()
        for name, temp in filled.items():
            emitter.load_fast(temp)
            emitter.store_deref(name)
        _switch_grad(emitter, self.recorded, torch.is_grad_enabled())

    def assemble(self, compiled: Callable[..., Any] | None, outdated: _Outdated) -> CodeType:
        """The new code, with the call of the compiled graph at its start."""
        emitter, graph, prelude = self.emitter, self.tracer.graph, self.tracer.prelude
        assert emitter is not None
        head = ValueEmitter(self.code, emitter, graph, {})
        if compiled is not None:
            again = self._can_start_again()
            checks_constants = isinstance(compiled, (_native.Executable, Wrapped))
            saved = self._keep(head) if again else {}
            states = prelude.keep_states(head) if again or checks_constants else []
            prelude.emit(head)
            head.load_callable(compiled)
            for value in arguments(graph):
                if isinstance(value, MadeTensor):
                    value.load(head)
                else:
                    assert value.source is not None
                    head.load_source(value.source)
            caught = Label()
            if again or checks_constants:
                head.handler = Handler(caught, 0, False)
            head.call(len(arguments(graph)))
            head.handler = None
            if graph.outputs:
                count = len(graph.outputs) + graph.unread
                head.unpack_sequence(count)
                for index in range(count):
                    temp = emitter.output_temps.get(index)
                    if temp is None:
                        head.pop()
                    else:
                        head.store_fast(temp)
            else:
                head.pop()
            emitter.splice(self.mark, head)
            if again or checks_constants:
                emitter.place(caught)
                self._start_again(emitter, saved, states, outdated if checks_constants else None)
        elif prelude:
            prelude.emit(head)
            emitter.splice(self.mark, head)
        return emitter.assemble()

    def _can_start_again(self) -> bool:
        """Whether plain Python can start afresh if the graph raises: nothing has happened then, or can be undone."""
        graph = self.tracer.graph
        changed = graph.changed()
        if graph.changed_blindly or any(value.obj is None or value.obj.is_inference() for value in changed):
            return False  # there is no version to look at
        return (len(changed) <= _MAX_VERSIONS and not graph.uncounted()) or self._can_undo()

    def _can_undo(self) -> bool:
        """Whether copies of what the graph writes to are wanted, and cost little."""
        graph = self.tracer.graph
        changed = graph.changed()
        size = sum(value.fake.numel() * value.fake.element_size() for value in changed)
        needed = graph.watched or bool(graph.uncounted())
        return needed and size <= _MOST_COPIED and all(value.differs_in_data() for value in changed)

    def _keep(self, head: ValueEmitter) -> dict[str, Source | Callable[..., Any]]:
        """Keep what tells whether the graph has written to tensors, their versions by source, or what undoes it."""
        saved: dict[str, Source | Callable[..., Any]] = {}
        changed = self.tracer.graph.changed()
        if changed and self._can_undo():
            head.load_callable(_copies)
            for value in changed:
                assert value.source is not None
                head.load_source(value.source)
            head.call(len(changed))
            saved[head.store_temp()] = _put_back
            changed = []
        for value in changed:
            assert value.source is not None
            head.load_source(value.source)
            head.load_attr("_version")
            saved[head.store_temp()] = value.source
        if getattr(self.tracer.graph.mode, "has_drawn", False):  # the last, for it undoes what the others only look at
            head.load_call(torch.get_rng_state)
            saved[head.store_temp()] = torch.set_rng_state
        return saved

    def _start_again(
        self,
        emitter: ValueEmitter,
        saved: dict[str, Source | Callable[..., Any]],
        states: list[str],
        outdated: _Outdated | None,
    ) -> None:
        """The graph raised: plain Python raises the same, with the effects and the traceback that it should have.

        A graph whose constants have changed has done nothing; it is not used again.
        """
        leave, again, other = Label(), Label(), Label()
        emitter.handler, emitter.position = None, (self.code.co_firstlineno,) * 2 + (None, None)
        plain = ValueEmitter(self.code, emitter, self.tracer.graph, {})
        start = emit_plain(plain, self.code)
        if outdated is not None:
            emitter.check_exception(ConstantsChanged)
            emitter.emit("POP_JUMP_IF_FALSE", other)
            emitter.run_call(outdated)
            emitter.jump(again)
            emitter.place(other)
        emitter.check_exception(Exception if self._can_start_again() else ())
        emitter.emit("POP_JUMP_IF_FALSE", leave)
        emitter.check_exception(_NO_MISTAKE)
        emitter.emit("POP_JUMP_IF_TRUE", leave)
        for temp, source in saved.items():
            if callable(source):
                emitter.run_call(source, temps=[temp])
                continue
            emitter.load_source(source)
            emitter.load_attr("_version")
            emitter.load_fast(temp)
            emitter.compare_op("==")
            emitter.emit("POP_JUMP_IF_FALSE", leave)
        if outdated is not None and outdated.sizes.guessed:
            emitter.run_call(outdated.count_disproved)
        emitter.place(again)
        self.tracer.prelude.put_back(emitter, states)
        emitter.pop()
        emitter.jump(start)
        emitter.place(leave)
        emitter.emit("RERAISE", 0)
        emitter.items.extend(plain.items)


def _place_of(code: CodeType) -> str:
    return f"{code.co_qualname} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def _is_number(value: Value) -> bool:
    """Whether a value is a number or text; it is not looked at."""
    kind = type(value.obj) if isinstance(value, LazyValue) else None
    return kind in LITERAL_TYPES if kind is not None else isinstance(value, (ConstantValue, NumberValue))


def _switch_grad(emitter: ValueEmitter, now: bool, wanted: bool) -> None:
    """Switch the recording of gradients, if it is not as wanted."""
    if now != wanted:
        emitter.run_call(torch._C._set_grad_enabled, wanted)


def _copies(*tensors: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(tensor, tensor.detach().clone()) for tensor in tensors]


def _put_back(copies: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Undo writes; not counted as one, for plain Python is about to make those that count."""
    for tensor, copy in copies:
        tensor.data.copy_(copy)


@contextlib.contextmanager
def _modes_kept(tracer: Tracer) -> Iterator[None]:
    """Leaves the thread's modes as they were before the capture."""
    grad = torch.is_grad_enabled()
    try:
        yield
    finally:
        tracer.graph.close(tracer.current)
        torch._C._set_grad_enabled(grad)
