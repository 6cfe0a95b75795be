"""The table of contents: a torch-level graph goes in, something that can be called comes out.

This is the only module that imports the stages. Every stage is timed, its result is printed at its
level, and what goes wrong in any of them is dealt with here and nowhere else: the graph then runs on
eager kernels, with one warning that names the cause.
"""

from __future__ import annotations

import copy
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from firebrick import fuse, host, lower, passes, runtime, trace
from firebrick.artifact import SCHEMA, Artifact
from firebrick.backends.aten import results_of, run_aten, with_views
from firebrick.capture.wrappers import Unwrap, Wrap
from firebrick.config import Config
from firebrick.eager_graph import run_eagerly
from firebrick.errors import (
    CompileError,
    DataDecides,
    FirebrickError,
    InternalError,
    PassError,
    RefusedBackward,
    SizesDecided,
    SizesRefused,
    WrapperRefused,
)
from firebrick.extend import PassReport
from firebrick.extend.claimed_group import CompiledGroup, groups_in
from firebrick.extend.pass_runner import copy_graph
from firebrick.fakes.mutation import tells_views
from firebrick.fakes.node_values import number_nodes, release, values_for
from firebrick.fakes.segments import Segments, is_cut, of_data, segments
from firebrick.gc_pause import collector_paused
from firebrick.ir.graph.aten import AtenGraph
from firebrick.ir.graph.equal_layers import NotAlike, Repeat, find_repeat, shortened
from firebrick.ir.graph.labels import library_of, step_labels
from firebrick.ir.graph.nested import Body, Nested
from firebrick.ir.index.expr import NeedsNumber
from firebrick.ir.index.index_text import parse
from firebrick.ir.index.sizes import Sizes, has_symbols
from firebrick.ir.kernels.schedule import Launch, Schedule
from firebrick.ir.loops.check import check as check_loops
from firebrick.ir.loops.program import LoopProgram
from firebrick.ir.loops.show import show as show_loops
from firebrick.passes import branches, cuda_search, tuning
from firebrick.passes.alone import subject_of
from firebrick.report import recorder
from firebrick.runtime.unwatched import as_written, unwatched
from firebrick.targets.by_device import division_of, find_targets, measures
from firebrick.trace import cpu_part, graph_key, literals
from firebrick.trace.inference_trace import TracingState, fakes_of
from firebrick.version import VERSION

Traced = Callable[[], tuple[AtenGraph, Repeat | None]]

_NOT_IN_KEY = {
    *("strict", "check", "stages", "skip_frames", "debug", "dump", "recompile_limit", "dynamic", "fullgraph", "graphs"),
    *("background", "compiled_backward", "cache", "cache_dir", "cache_size_mb", "remote_cache", "remote_cache_key"),
    *("keep_memory", "build_workers", "build_timeout"),
}
"""Settings that change nothing in what is generated."""

_BEHIND_THE_CACHE = ("joint", "aten", "loops", "schedule", "code")
"""Levels of which an entry of the disk cache has no text: to be printed they are made anew, for all layers."""


def compile_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    config: Config,
    user_passes: Sequence[Any] = (),
    buckets: bool = True,
) -> Callable[..., tuple[Any, ...]]:
    """Compile a torch-level graph; the result takes its tensor inputs and returns the tuple of its outputs.

    A graph that can't be compiled runs on eager kernels instead; `config.strict` raises. `buckets`: it may be cut where
    DistributedDataParallel's buckets of gradients are full.
    """
    after = trace.mode_at_end(gm)
    if after is not None:
        with torch.no_grad():
            inner = compile_graph(trace.without_switches(gm), example_inputs, config, user_passes)
        return trace.GradOff(inner, after)
    if "meta" in _device_types(gm, example_inputs):
        recorder.count("graphs run eagerly: meta device")  # nothing is computed, so there is nothing to compile
        return run_eagerly(gm)
    compiler = _Training if trace.needs_grad(gm, example_inputs) else _Inference
    try:
        starts = _bucket_starts(gm) if buckets and compiler is _Training else frozenset()
        starts |= cpu_part.part_on_cpu(gm, config)
        if starts or is_cut(gm):
            return _compile_segments(gm, config, user_passes, starts)
        with collector_paused(), unwatched():
            if config.background and (deferred := compiler(gm, example_inputs, config, user_passes).deferred()):
                return deferred
            start = time.perf_counter()
            compiled = _with_symbols(gm, lambda: compiler(gm, example_inputs, config, user_passes).run())
            if config.autotune and compiler is _Inference and _device_types(gm, example_inputs) == {"cpu"}:
                compiled = _with_hot_sizes(gm, compiled, time.perf_counter() - start, config, user_passes)
    except RefusedBackward as error:
        recorder.count("graphs run eagerly: backward raises")
        recorder.reason("fallback", str(error))
        return run_eagerly(gm)
    except SizesRefused:
        raise
    except DataDecides as error:
        if is_cut(gm) and of_data(gm):  # nobody would look whether the sizes are as they were taken to be
            raise SizesRefused(str(error)) from error
        recorder.count("graphs run eagerly: sizes that data decide")
        recorder.reason("size that data decide", str(error))
        return run_eagerly(gm)
    except Exception as error:
        if any(isinstance(node.target, (Wrap, Unwrap)) for node in gm.graph.nodes):
            raise WrapperRefused(f"{type(error).__name__}: {error}") from error
        if config.strict:
            raise
        _note_fallback(gm, error)
        if is_cut(gm) and of_data(gm):
            raise SizesRefused(str(error)) from error
        return run_eagerly(gm)
    recorder.count("graphs compiled")
    return with_views(compiled, gm)


_refused: dict[str, str] = {}
"""Graphs whose symbols a compile in the background has refused, and why."""


class _Again(Exception):
    """What was decided about sizes meanwhile changes what was made before."""


def _with_symbols(gm: fx.GraphModule, run: Callable[[], Any]) -> Any:
    """Compile a graph whose sizes may be symbols; those that something needs as numbers become numbers.

    Raises:
        SizesRefused: it has to be captured again with numbers for all sizes.
    """
    sizes = _sizes_of(gm)
    if sizes is None:
        return run()
    with sizes.asked("ones"):
        why: Exception | str = "all sizes are decided"
        while sizes.are_open():
            try:
                return run()
            except _Again:
                continue
            except NeedsNumber as error:
                why = error
                sizes.fix(error.expr)
                recorder.count("sizes compiled as numbers")
                recorder.reason("size as a number", str(error))
            except (SizesRefused, DataDecides):
                raise
            except Exception as error:  # whatever it is, numbers may do
                if of_data(gm):
                    raise DataDecides(f"{type(error).__name__}: {error}") from error
                raise SizesRefused(f"{type(error).__name__}: {error}") from error
    raise SizesDecided(str(why))


def _with_hot_sizes(gm: fx.GraphModule, many: Any, seconds: float, config: Config, user_passes: Sequence[Any]) -> Any:
    """What was compiled for many sizes in so many seconds, with versions for single ones, which may give other bits."""
    state = TracingState()

    def compile(inputs: Sequence[Any]) -> Callable[..., Any]:
        with state.restored(), collector_paused(), unwatched():
            alone = values_for(gm, inputs)
            alone.meta.update(name=_name(gm), uncounted=gm.meta.get("uncounted", ()))
            return _Inference(alone, inputs, config, user_passes).run()

    same = config.deterministic or torch.are_deterministic_algorithms_enabled()
    none = same or of_data(gm) or _sizes_of(gm) is None
    return many if none else runtime.Hot(_name(gm), many, seconds, compile)


def _sizes_of(gm: fx.GraphModule) -> Sizes | None:
    """The symbols of a graph; None if it has none."""
    sizes: Sizes | None = getattr(gm.meta.get("fake_mode"), "sizes", None)
    return sizes if sizes is not None and sizes.symbols else None


@contextmanager
def _own_errors() -> Iterator[None]:
    """Whatever else is raised in the block is a broken invariant."""
    try:
        yield
    except FirebrickError:
        raise
    except Exception as error:
        raise InternalError(f"{type(error).__name__}: {error}") from error


def compile_ahead(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config
) -> tuple[Artifact, dict[str, torch.Tensor]]:
    """Compile a torch-level graph to its artifact and the captured tensors that it reads.

    Raises:
        FirebrickError: it can't be compiled.
    """
    with _own_errors(), collector_paused():
        if is_cut(gm):
            raise CompileError("a graph with branches or loops can't be compiled ahead of time")
        one = _Inference(gm, example_inputs, config, ())
        one.begin()
        artifact, consts = _with_symbols(gm, lambda: one.built("inference", one.trace_alone))
    return artifact, {name: one.captured[name] for name in artifact.table["consts"] if name not in consts}


def _bucket_starts(gm: fx.GraphModule) -> frozenset[fx.Node]:
    """Where to cut a graph so that what takes gradients sees them."""
    limits = trace.bucket_bytes()
    starts = trace.bucket_starts(gm, *limits) if limits is not None and _sizes_of(gm) is None else frozenset()
    if starts:
        recorder.count("graphs cut at buckets of gradients")
        recorder.reason("buckets of gradients", f"{_name(gm)} has {len(starts) + 1} backward graphs")
    return starts | trace.shared_starts(gm)


def _compile_segments(
    gm: fx.GraphModule, config: Config, user_passes: Sequence[Any], starts: frozenset[fx.Node]
) -> Segments:
    """Compile what is before, in and behind branches and loops, and what begins at `starts`, each on its own."""

    def compiled(graph: fx.GraphModule) -> Callable[..., Any]:
        examples = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        return compile_graph(graph, examples, config, user_passes, buckets=False)

    sizes = _sizes_of(gm)
    if sizes is not None:
        sizes.undecided = DataDecides
    parts = segments(gm, starts)
    for part in parts:
        for node in part.apart:
            if isinstance(node.target, Nested) and node.target.splits:
                bodies = [Body(body.graph, body.leaves, body.spec) for body in node.target.bodies]
                for body in bodies:
                    body.run = compiled(body.graph)
                node.target = copy.copy(node.target)
                node.target.bodies = tuple(bodies)
    return Segments(gm, parts, [None if part.graph is None else compiled(part.graph) for part in parts])


def graphs_compiled() -> int:
    """Return how many graphs this process has compiled with the firebrick backend."""
    return recorder.counts["graphs compiled"]


def _note_fallback(gm: fx.GraphModule, error: Exception) -> None:
    recorder.count("graphs run eagerly: failed")
    recorder.reason("fallback", f"{type(error).__name__}: {error}")
    own = isinstance(error, FirebrickError) and not isinstance(error, InternalError)
    text = f"firebrick: {_name(gm)} runs on eager kernels, since it could not be compiled: "
    recorder.warn_once(f"fallback {error}", text + ("" if own else f"{type(error).__name__}: ") + str(error))


def _name(gm: fx.GraphModule) -> str:
    return str(gm.meta.get("name") or "graph")


@dataclass(frozen=True, slots=True)
class Stages:
    """What became of a captured graph before code was generated.

    reports: what the passes of level torch and aten did, one each.
    """

    gm: fx.GraphModule
    aten: AtenGraph
    program: LoopProgram
    schedule: Schedule
    reports: tuple[PassReport, ...]


def inspect_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config, user_passes: Sequence[Any] = ()
) -> Stages:
    """Run the stages on a torch-level graph up to its schedule, for tools that look at them.

    Raises:
        FirebrickError: the graph can't be compiled.
    """
    with _own_errors():
        return _Inference(gm, example_inputs, config, user_passes).stages()


class _Compile:
    """One compile of one graph: what every part of it needs, and the stages from ATen down.

    traces_again: nothing needs an ATen graph once it is lowered, since what goes wrong is traced anew.
    few: four of many equal layers are traced, from which the others follow. first: the part that is kept first.
    """

    traces_again, few = False, True
    first: str

    def __init__(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config, user_passes: Sequence[Any]
    ) -> None:
        self.gm, self.example_inputs, self.config = gm, example_inputs, config
        self.user_passes = user_passes
        self.captured = graph_key.constants_of(gm)
        self.targets = find_targets(_device_types(gm, [*example_inputs, *self.captured.values()]), config)
        self.placing = passes.placing(user_passes, config)
        self.targets |= {c.target.name: c.target for c in self.placing}
        self.driven: dict[str, Any] = {}
        self.reports: list[PassReport] = []
        self.groups: list[CompiledGroup] = []
        """Groups of plug-ins that what was compiled calls; it keeps them."""
        self.content: dict[str, str] | None = None
        self.repeat: Repeat | None = None

    def begin(self) -> None:
        """Show the graph and name its content."""
        self.show("graph", lambda: f"graph {_name(self.gm)}\n{trace.show_nodes(self.gm.graph)}")
        with recorder.timed("key"):
            self.content = self.find_content()

    def built(
        self, part: str, trace: Traced, extra: Callable[[], dict[str, Any]] = dict
    ) -> tuple[Artifact, dict[str, torch.Tensor]]:
        """Fetch or make the artifact of one part, and read the constants that its trace made."""

        sizes = _sizes_of(self.gm)

        def make() -> Artifact:
            before = 0 if sizes is None else len(sizes.facts)
            artifact, consts = self.generated(trace)
            more: dict[str, Any] = {"literals": literals.write(consts)} if consts else {}
            if sizes is not None:
                if tells_views(self.gm.graph):
                    sizes.enforce()  # what eager has as a view where a size is 1
                more["facts"] = sizes.to_json(before)
                more["nonempty"] = [e.show() for e in sizes.nonempty]
            return artifact.with_extra(**more, **extra())

        if self.content is None or any(recorder.wants(self.config, level) for level in _BEHIND_THE_CACHE):
            artifact = make()
        else:
            content, cache = {**self.content, "part": part}, runtime.DiskCache(self.config)
            content |= {} if sizes is None else {"sizes": sizes.key()}  # a forward's facts hold of its backward
            artifact = cache.fetch(runtime.make_key(content, _name(self.gm)), make)
            if sizes is not None and not sizes.take(artifact.extra.get("facts", ())):  # it was made for other sizes
                content["values"] = repr(sizes.hints)
                artifact = cache.fetch(runtime.make_key(content, _name(self.gm)), make)
                sizes.take(artifact.extra.get("facts", ()))
            if sizes is not None:
                sizes.nonempty |= {parse(text, sizes.symbols): None for text in artifact.extra.get("nonempty", ())}
        return artifact, literals.read(artifact.extra.get("literals", {}))

    def deferred(self) -> runtime.Deferred | None:
        """A thread compiles it; None where that is done already, or where it can't be kept for later."""
        gm, config, sizes, content = self.gm, self.config, _sizes_of(self.gm), self.find_content()
        if content is None or (sizes is not None and not config.cache):
            return None
        content |= {"part": self.first} | ({} if sizes is None else {"sizes": sizes.key()})
        key = runtime.make_key(content, _name(gm))
        if key.digest in _refused:
            raise SizesRefused(_refused[key.digest])
        if config.cache and runtime.DiskCache(config).load(key) is not None:
            return None
        state, now = TracingState(), replace(config, background=False)

        def compile() -> Callable[..., tuple[Any, ...]]:
            facts = 0 if sizes is None else len(sizes.facts)
            with state.restored():
                try:
                    if sizes is not None:
                        sizes.frozen = False  # nobody else asks any more
                    compiled = compile_graph(gm, self.example_inputs, now, self.user_passes)
                except SizesRefused as error:
                    _refused[key.digest] = str(error)
                    raise runtime.OutOfDate from error
            if sizes is not None and len(sizes.facts) > facts:
                raise runtime.OutOfDate
            return compiled

        return runtime.Deferred(run_eagerly(gm), compile)

    def load(self, artifact: Artifact, consts: dict[str, torch.Tensor], frees: bool = False) -> Callable[..., Any]:
        """Bind an artifact's constants; profilers show its steps by where this graph's nodes were made."""
        origins = artifact.extra.get("origins")
        labels = None if origins is None else step_labels(self.gm.graph, origins)
        uncounted = self.gm.meta.get("uncounted", ())
        inputs = [node.name for node in self.gm.graph.nodes if node.op == "placeholder"] if uncounted else []
        places = {inputs.index(name) if name in inputs else name for name in uncounted}
        tensors, config = {**self.captured, **consts}, self.config
        memory, graphs = config.keep_memory, config.graphs
        return runtime.load(artifact, tensors, labels, places, self.groups, memory, self.driven, graphs, frees)

    def rewritten(self) -> fx.GraphModule:
        """Run the passes of level torch, on a copy."""
        gm, config = self.gm, self.config
        number_nodes(gm.graph)
        looked_at = config.debug or config.dump is not None or "ir" in config.check or config.verify_passes
        # layers, in what is saved or goes back
        differ = config.memory_budget < 1 or config.offload or trace.gradients_in(gm.graph)
        if self.few and not (looked_at or differ) and passes.are_shipped(self.user_passes, config):
            with recorder.timed("repeats"):
                self.repeat = find_repeat(gm.graph)
        if self.repeat is not None:
            gm = shortened(gm, self.repeat)
        if passes.active_passes("torch", self.user_passes, config):
            meta, gm = gm.meta, _LazyGraphModule(gm, copy_graph(gm.graph))
            gm.meta.update(meta)
            self.reports += passes.run_graph_passes(
                gm, "torch", config, passes=self.user_passes, example_inputs=self.example_inputs
            )
        return gm

    def generated(self, trace: Traced) -> tuple[Artifact, dict[str, torch.Tensor]]:
        """Generate what is traced; where layers prove not to be alike, again for all of them."""
        try:
            aten, repeat = trace()
            if repeat is not None and (aten.mutated or aten.bits):
                raise NotAlike("the graph changes its arguments, or they have negative bits")
            generated = self.generate(aten, repeat)
        except NotAlike as error:
            recorder.reason("repeats compiled one by one", str(error))
            self.take_all()
            return self.generate(*trace())
        if repeat is not None:
            recorder.count("repeats", len(repeat.numbers))
        return generated

    def take_all(self) -> None:
        """Trace all layers from now on."""
        self.few, self.repeat = False, None
        self.reports.clear()

    def lowered(
        self, aten: AtenGraph, repeat: Repeat | None = None, *, last: bool = False
    ) -> tuple[AtenGraph, LoopProgram, Schedule]:
        """Run the stages from an ATen graph to its schedule; the `last` to read the graph empty it."""
        sizes = _sizes_of(self.gm) or Sizes()
        version = sizes.version
        with sizes.asked("loosely"), as_written():
            lowered = self._lowered(aten, repeat, last)
        if sizes.version != version:
            raise _Again
        return lowered

    def _lowered(self, aten: AtenGraph, repeat: Repeat | None, last: bool) -> tuple[AtenGraph, LoopProgram, Schedule]:
        config, tuner = self.config, self.tuner(aten, repeat) if measures(self.config) else None
        with recorder.timed("passes"):
            hooks: Any = {"trace": trace.trace_function, "on_report": self.reports.append, "choose": tuner}
            aten = passes.run_passes(aten, self.targets, config, passes=self.user_passes, **hooks)
        self.groups += groups_in(aten.gm.graph)
        if "ir" in config.check:
            passes.check_layouts(aten.gm)
        self.show("aten", lambda: trace.show(aten))
        with recorder.timed("lowering"):
            program = lower.lower(aten, self.targets, config)
        if last:
            release(aten.gm.graph)
        if "ir" in config.check:
            check_loops(program)
        self.show("loops", lambda: show_loops(program))
        with recorder.timed("scheduling"):
            search = config.autotune and cuda_search.StepSearch(tuner, host.generate, self.targets, config)
            schedule = fuse.schedule(program, self.targets, config, repeat, tuner and search)
        self.show("schedule", lambda: fuse.show(schedule))
        return aten, program, schedule

    def generate(self, aten: AtenGraph, repeat: Repeat | None) -> tuple[Artifact, dict[str, torch.Tensor]]:
        """Return the built artifact of an ATen graph and the constants that the trace made itself."""
        bits = {"bits": aten.bits_by_place()} if aten.bits else {}
        aten, _, schedule = self.lowered(aten, repeat, last=self.traces_again)
        recorder.count("kernels", len(schedule.kernels))
        recorder.count("launches", sum(isinstance(step, Launch) for step in schedule.steps))
        with recorder.timed("codegen"):
            artifact = host.generate(schedule, self.targets, self.config)
            self.driven = {c.device: c.machine.load(schedule, self.config) for c in self.placing}
        artifact = artifact.with_extra(
            origins=[[[max(n, ~n) for n in step.parts], library_of(step)] for step in schedule.steps],
            branches=branches.branches_of(schedule) if isinstance(self, _Inference) else [],  # training gains little
            **bits,
        )
        self.show("code", lambda: "\n".join([host.show_table({**artifact.table}), *(u.text for u in artifact.units)]))
        artifact = runtime.build(artifact, self.config)
        return artifact, {n: t for n, t in aten.constants.items() if n not in self.captured}

    def find_content(self) -> dict[str, str] | None:
        """Name the content of this compile; None if it has no stable content."""
        graph = graph_key.graph_text(self.gm)
        active = passes.passes_key(self.user_passes, self.config)
        if graph is None or active is None:
            return None
        constants = list(self.captured.values())
        options = {f.name: getattr(self.config, f.name) for f in fields(self.config) if f.name not in _NOT_IN_KEY}
        options = {k: sorted(v) if isinstance(v, frozenset) else v for k, v in options.items()}
        return {
            "graph": graph, "inputs": graph_key.metas_text(self.metas()),
            "constants": graph_key.metas_text(constants),
            "sharing": graph_key.sharing_text([*self.example_inputs, *constants]),
            "state": graph_key.state_text(torch.cuda.is_initialized()),
            "values": repr(getattr(_sizes_of(self.gm), "hints", "")) if self.config.offload else "",
            "options": repr(sorted(options.items(), key=str)), "passes": active, **self.ground(),
        }  # fmt: skip

    def metas(self) -> list[Any]:
        """The inputs, those that have symbols as fake tensors."""
        nodes = [node for node in self.gm.graph.nodes if node.op == "placeholder"]
        fakes = [node.meta.get("val") for node in nodes]
        pairs = zip(self.example_inputs, fakes, strict=True) if len(fakes) == len(self.example_inputs) else ()
        return [f if isinstance(f, torch.Tensor) and has_symbols(f) else t for t, f in pairs] or [*self.example_inputs]

    def ground(self) -> dict[str, str]:
        """What every artifact depends on."""
        return {
            "source": runtime.source_digest(self.config.cache_dir) if self.config.cache else "",
            "versions": f"firebrick {VERSION}\nschema {SCHEMA}\ntorch {torch.__version__} {torch.version.git_version}",
            "target": "\n".join([platform.system(), *(target.key() for target in self.targets.values())]),
            "model": "\n".join(target.model() for target in self.targets.values()) if measures(self.config) else "",
        }

    def tuner(self, aten: AtenGraph, repeat: Repeat | None) -> tuning.Tuner:
        """What chooses among forms of a part of this graph by measurement."""
        config, ground = self.config, self.ground()

        def build(aten: AtenGraph) -> Artifact:
            schedule = fuse.schedule(lower.lower(aten, self.targets, config), self.targets, config)
            return runtime.build(host.generate(schedule, self.targets, config), config)

        def fetch(parts: Mapping[str, str], make: Callable[[], Artifact]) -> Artifact:
            return runtime.DiskCache(config).fetch(runtime.make_key({**parts, **ground}, "choice of a kernel"), make)

        def measured(op: str, args: tuple[Any, ...], forms: Mapping[str, int]) -> Mapping[str, float]:
            return self.targets[args[0].device.type].measured(op, args, forms, config)

        place = str(config.cache_dir) if config.cache else ""
        whole = "\n".join([place, *ground.values()])
        if config.autotune:
            return tuning.Tuner(build, runtime.load, fetch, whole)
        subjects = [subject for node in aten.gm.graph.nodes if (subject := subject_of(node)) is not None]
        calls, rest = division_of(subjects, len(repeat.numbers) if repeat is not None else 4)
        kept = [t.prepare([c for c in calls if c[1][0].device.type == n], config) for n, t in self.targets.items()]
        return tuning.Tuner(build, runtime.load, fetch, whole, measured, rest, kept)

    def show(self, level: str, text: Callable[[], str]) -> None:
        """Make and print the text of a level, if anyone wants it."""
        if recorder.wants(self.config, level):
            recorder.show(self.config, level, _name(self.gm), text())


def _device_types(gm: fx.GraphModule, tensors: Sequence[Any]) -> set[str]:
    """The types of the devices that a graph's tensors lie on."""
    values = [*tensors, *(node.meta.get("val") for node in gm.graph.nodes)]
    return {value.device.type for value in values if isinstance(value, torch.Tensor)}


def _views_of_one_another(results: Sequence[Any]) -> list[tuple[int, int]]:
    """(position of a view, position of what it is seen through) of two results on all of the same memory."""
    vals = [(i, val) for i, val in enumerate(results) if isinstance(val, torch.Tensor) and val.layout == torch.strided]
    vals.sort(key=lambda row: row[1]._is_view())  # what is no view stays the tensor that it is
    return [
        (i, j)
        for n, (i, one) in enumerate(vals)
        for j, other in vals[:n]
        if one is not other and one.untyped_storage()._cdata == other.untyped_storage()._cdata
        and (one.shape, one.stride()) == (other.shape, other.stride())
    ]  # fmt: skip


class _Inference(_Compile):
    """A graph that needs no gradients."""

    traces_again, first = True, "inference"

    def run(self) -> Callable[..., tuple[Any, ...]]:
        self.begin()
        artifact, consts = self.built(self.first, self.trace_alone)
        run = self.load(artifact, consts)
        results = results_of(self.gm)
        leaves = {i for i, val in enumerate(results) if isinstance(val, torch.Tensor) and val.requires_grad}
        constants = {**self.captured, **consts}
        return runtime.TorchViews.of(
            run, artifact, self.example_inputs, constants, leaves, _views_of_one_another(results)
        )

    def trace_alone(self) -> tuple[AtenGraph, Repeat | None]:
        """Trace, and keep nothing of the copy that was traced."""
        gm, aten = self.trace()
        if gm is not self.gm:
            release(gm.graph)
        return aten, self.repeat

    def trace(self) -> tuple[fx.GraphModule, AtenGraph]:
        gm = self.rewritten()
        with recorder.timed("autodiff"):
            aten = trace.trace_inference(gm, self.example_inputs, self.config, self.targets)
        aten.name = _name(gm)
        return gm, aten

    def stages(self) -> Stages:
        self.few = False
        gm, aten = self.trace()
        return Stages(gm, *self.lowered(aten), tuple(self.reports))


class _Training(_Compile):
    """A graph that needs gradients: its forward is compiled now, its backward when it is first needed."""

    first = "forward"
    division: trace.Division | None = None
    plan: Any = None
    ready: Mapping[tuple[int, ...], Any] = MappingProxyType({})
    saved: Sequence[Any] = ()  # keys of what the forward saves, where its backward is traced for all layers
    above: tuple[tuple[int, ...], ...] = ()  # the graph's forward is that of its gradients: see `trace_joint`
    entered: Sequence[int] | None = None
    hidden: Sequence[str] = ()

    def run(self) -> Callable[..., tuple[Any, ...]]:
        self.state = TracingState()
        run = self.training()
        if not run.plan.tangents and all(grad is False for _, grad in run.plan.outputs):  # nothing wants a gradient
            return _Inference(self.gm, self.example_inputs, self.config, self.user_passes).run()
        # The backward may be traced long after this call: only the metadata of the inputs is kept until then.
        self.example_inputs = fakes_of(self.example_inputs)
        if _sizes_of(self.gm) is not None:  # what it asks of sizes must be guarded
            every = [part.tangents for part in run.plan.parts] or [tuple(range(len(run.plan.tangents)))]
            self.ready = {constants: self.compiled_backward(constants) for constants in every}
        recorder.count("bytes saved for backward", run.plan.bytes_saved)
        recorder.count("tensors offloaded", len(run.plan.offloaded))
        recorder.count("bytes offloaded", sum(size for _, size in run.plan.offloaded))
        apart = _views_of_one_another(results_of(self.gm))
        return runtime.TorchViews(run, {}, apart) if apart else run

    def training(self) -> runtime.Training:
        """Compile the forward."""
        self.begin()
        artifact, consts = self.built(self.part(self.first), self.forward, self.plan_of_forward)
        self.plan, self.few = runtime.TrainingPlan.from_json(artifact.extra["training"]), artifact.extra["few"]
        run = self.load(artifact, consts)
        return runtime.Training(self.plan, run, self.captured, self.backward, self.again, self.traced)

    def part(self, name: str) -> str:
        return f"{name}, gradients {self.above} behind {self.entered}" if self.above else name

    def again(
        self, present: tuple[int, ...], entered: Sequence[int], tangents: Sequence[Any], inputs: Sequence[Any]
    ) -> runtime.Training:
        """Compile the gradients for the tangents that are given as a graph that has gradients of its own.

        Sizes that vary are numbers there, those of the inputs: all guards are written.
        """
        gm, count = self.gm, len(self.example_inputs)
        examples = [*self.example_inputs, *fakes_of(inputs[count:])]
        if _sizes_of(gm) is not None:
            examples = fakes_of(inputs)
            trace.keep_histories(gm.graph)
            gm = values_for(gm, examples[:count])
        higher = _Training(gm, [*examples, *fakes_of(tangents)], self.config, self.user_passes)
        higher.above, higher.few, higher.state = (*self.above, present), False, self.state
        higher.hidden = self.hidden or self.plan.hidden
        higher.entered = self.entered if self.above else entered
        with collector_paused(), unwatched():
            try:
                run = higher.training()
                recorder.count("gradients compiled to be differentiated")
                return run
            except Exception as error:
                if self.config.strict:
                    raise
                division = higher.divided()
                _note_fallback(self.gm, error)
        forward = run_aten(division.forward)
        return runtime.Training(division.plan, forward, self.captured, higher.backward, higher.again, higher.traced)

    def plan_of_forward(self) -> dict[str, Any]:
        return {"training": self.layer_plan.to_json(), "few": self.few}

    def forward(self) -> tuple[AtenGraph, Repeat | None]:
        division = self.divided()
        self.layer_plan = trace.layer_plan(division, self.repeat)
        return division.forward, trace.forward_layers(division, self.repeat)

    def take_all(self) -> None:
        """Trace all layers from now on; what the forward has saved of them stays."""
        if self.few and self.plan is not None:
            self.saved = trace.layer_keys(self.divided(), self.repeat)
        self.division = None
        super().take_all()

    def divided(self) -> trace.Division:
        """Trace forward and backward, and divide them, unless that is done."""
        if self.division is None:
            gm, config = self.rewritten(), self.config
            with recorder.timed("autodiff"), self.state.restored():
                joint = trace.trace_joint(
                    gm, self.example_inputs, config.numerics == "eager", self.above, self.entered, self.hidden
                )
            if joint.hidden and self.repeat is not None:
                raise NotAlike("gradients of custom Functions are added before they are taken on")
            joint.name = _name(gm)
            before = joint.signature()
            self.reports += passes.run_graph_passes(
                joint.gm, "joint", config, passes=self.user_passes, trace=trace.trace_function, frozen=frozenset()
            )
            if joint.signature() != before:
                raise PassError("a pass of level joint changed what the graph takes or returns")
            self.show("joint", lambda: trace.show_joint(joint))
            with recorder.timed("partition"):
                saved = () if self.saved else trace.min_cut(joint, config.memory_budget)
                division = trace.divide(joint, saved, self.saved, config.offload)
                self.division = trace.parted(division, joint.groups, joint.behind)
            if self.plan is not None and not self.few and self.division.plan.parts != self.plan.parts:
                raise PassError("the backward of the whole graph has other nodes than the forward was compiled for")
        return self.division

    def backward(self, present: tuple[int, ...]) -> tuple[Callable[..., Any], Sequence[int | None]]:
        """Compile the backward for the tangents that are given."""
        if present in self.ready:
            return self.ready[present]
        try:
            with collector_paused(), unwatched():
                return self.compiled_backward(present)
        except Exception as error:
            if self.config.strict and not isinstance(error, SizesRefused):
                raise
            _note_fallback(self.gm, error)
            return self.traced(present)[1:]

    def traced(self, present: tuple[int, ...]) -> tuple[AtenGraph, Callable[..., Any], Sequence[int | None]]:
        """The backward for these tangents, for eager kernels; asked for also while another graph is traced."""
        self.take_all()
        with unwatched(), (_sizes_of(self.gm) or Sizes()).asked("ones"):  # as when it was compiled
            backward, _, order = self.backward_given(present)
        return backward, run_aten(backward), order

    def compiled_backward(self, present: tuple[int, ...]) -> tuple[Callable[..., Any], Sequence[int | None]]:
        artifact, consts = self.built(
            self.part(f"backward {present}"),
            lambda: self.backward_given(present)[:2],
            lambda: {"order": self.backward_given(present)[2]},
        )
        run = self.load(artifact, consts, frees=True)
        recorder.count("backward graphs compiled")
        return run, artifact.extra["order"]

    def backward_given(self, present: tuple[int, ...]) -> tuple[AtenGraph, Repeat | None, Sequence[int | None]]:
        division = trace.backward_given(self.divided(), present)
        order = trace.layer_order(division, self.repeat, self.plan)
        return division.backward, trace.backward_layers(division, self.repeat), order
