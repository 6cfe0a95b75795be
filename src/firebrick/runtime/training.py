"""Calls a forward and a backward executable as one node of the autograd engine's graph."""

from __future__ import annotations

import functools
import itertools
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from firebrick import _native
from firebrick.report import recorder
from firebrick.runtime.unwatched import has_watchers, unwatched

if TYPE_CHECKING:
    from firebrick.ir.graph.aten import AtenGraph

Tensors = Sequence[torch.Tensor]

_numbers = itertools.count()


@functools.cache
def _key_of(*parts: int) -> int:
    """A number for a kind of node, which no Function has."""
    return next(torch.autograd.function.AUTOGRAD_FUNCTION_COUNTER)


_REFUSED = (
    "firebrick: a compiled graph that writes to a tensor with gradients has no gradients of its gradients; "
    "compile with backend='eager', or call what needs double backward uncompiled"
)

_FREED = "firebrick: trying to go backward through the graph a second time, after its saved tensors were freed"

_TWISTED = (
    "firebrick: gradients of gradients through a custom autograd.Function or a hook that is not linear in the gradient "
    "that it is given, in the midst of a compiled graph; call what has it uncompiled (firebrick.disable)"
)

_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "min": min, "max": max,
}  # fmt: skip


def _number(size: Any, sizes: Mapping[str, int]) -> Any:
    """The value of a size: a number, a symbol by name, an operator and its operands, or a tuple of sizes."""
    if not isinstance(size, tuple):
        return sizes[size] if isinstance(size, str) else size
    if size and size[0] in _OPERATORS:
        return reduce(_OPERATORS[size[0]], [_number(part, sizes) for part in size[1:]])
    return tuple([_number(part, sizes) for part in size])


class Place(NamedTuple):
    """Where a tensor is found: an input or result by position, or a constant by name; `layout` is a view of it."""

    kind: str  # input, const, result
    at: int | str
    layout: tuple[tuple[Any, ...], tuple[Any, ...], Any] | None = None  # shape, strides, offset from the first element


class Tangent(NamedTuple):
    """The gradient of a result, as the backward wants it."""

    of: Place
    dtype: str
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]


class Part(NamedTuple):
    """A node of the engine's graph for some of the results: positions in the plan's `tangents` and `saved`.

    entered: the numbers of the results that come in, and that these are made of.
    link: it is a node of one result more, behind that of its part, so that the engine sees which results it is made of
      though other values go past them. Where they want no gradient, it passes its own on to the part; else all that it
      leads to is computed from the graph's inputs, and the part gets nothing of it.
    """

    tangents: tuple[int, ...]
    saved: tuple[int, ...]
    entered: tuple[int, ...] = ()
    link: bool = False


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How forward and backward are joined; plain data that is kept with the forward's artifact.

    results: how many of the forward's results are the user's; the others are only saved.
    outputs: the user's outputs, each with whether it requires a gradient, None for a leaf that does.
    dirty: tensors of the caller whose new value has a gradient. wrt: tensors that gradients are for; results among
    them are what other results are made of. of: the same of the graph below, whose gradients the results are.
    reach: for each of `wrt`, the tangents that its gradient is made of.
    reads: inputs and constants that the forward reads. draws: devices that it draws random numbers on.
    parts: nodes, each behind those whose results it takes; none: one has all tangents.
    uses: for each tangent, the saved tensors that gradients made of it read; empty: not told.
    bytes_saved: held from forward to backward, not counting what the caller holds anyway.
    offloaded: device and bytes of each saved tensor that waits on the CPU.
    hidden, twisted, own: as the JointGraph's. cuts: results at which a history can begin, each behind its number.
    symbols: those in the sizes of places and tangents, and a dimension of an input that each is the size of.
    """

    results: int
    outputs: tuple[tuple[Place, bool | None], ...]
    saved: tuple[Place, ...]
    tangents: tuple[Tangent, ...]
    dirty: tuple[Place, ...]
    wrt: tuple[Place, ...]
    bytes_saved: int
    reach: tuple[tuple[int, ...], ...]
    reads: tuple[int | str, ...] = ()
    draws: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    uses: tuple[tuple[int, ...], ...] = ()
    symbols: tuple[tuple[str, int, int], ...] = ()
    of: tuple[Place, ...] = ()
    hidden: tuple[str, ...] = ()
    twisted: bool = False
    own: tuple[int, ...] = ()
    cuts: tuple[tuple[int, int], ...] = ()
    offloaded: tuple[tuple[str, int], ...] = ()

    def entered(self, part: Part) -> list[Place]:
        """The results that come in to a node."""
        return [Place("result", at) for number, at in self.cuts if number in part.entered]

    def to_json(self) -> dict[str, Any]:
        """Inverse of `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrainingPlan:
        """Read what `to_json` gave, also after a round trip through a file."""
        values = {name: _tuples(value) for name, value in data.items()}
        for name in ("saved", "dirty", "wrt", "of"):
            values[name] = tuple([Place(*row) for row in values[name]])
        values["outputs"] = tuple([(Place(*place), grad) for place, grad in values["outputs"]])
        values["tangents"] = tuple([Tangent(Place(*of), *rest) for of, *rest in values["tangents"]])
        return cls(**{**values, "parts": tuple([Part(*row) for row in values["parts"]])})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True, slots=True)
class Before:
    """What a graph was called with, from which the gradients of its gradients are computed: inputs, versions of these
    and of constants, and the states of random number generators."""

    inputs: Sequence[torch.Tensor]
    versions: Mapping[int | str, int]
    states: Mapping[str, torch.Tensor]

    def entered(self, results: Tensors) -> Before:
        """The same where results come in behind the inputs."""
        versions: dict[int | str, int] = {len(self.inputs) + i: t._version for i, t in enumerate(results)}
        return Before((*self.inputs, *results), {**self.versions, **versions}, self.states)


def random_states(devices: Iterable[str]) -> dict[str, torch.Tensor]:
    """The state of each device's generator."""
    return {d: torch.get_rng_state() if d == "cpu" else torch.get_device_module(d).get_rng_state(d) for d in devices}


@contextmanager
def random_states_as(states: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Draw the numbers that were drawn in these states, and none of those that come next."""
    now = random_states(states)

    def switch(states: Mapping[str, torch.Tensor]) -> None:
        for device, state in states.items():
            module, place = (torch, ()) if device == "cpu" else (torch.get_device_module(device), (device,))
            module.set_rng_state(state, *place)

    switch(states)
    try:
        yield
    finally:
        switch(now)


class Training:
    """A compiled graph that records one node where gradients are recorded; called with the graph's inputs.

    backward: which tangents are given -> a function of the saved tensors and those tangents, and which of its results
    is the gradient of each of the plan's `wrt` (None: no result depends on it).
    again: which tangents are given, the numbers of results that are inputs, they and the inputs -> a function of inputs
    and tangents that returns the gradient of each of `wrt` and of these results, itself one of these.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        forward: Callable[..., Sequence[Any]],
        constants: Mapping[str, torch.Tensor],
        backward: Callable[[tuple[int, ...]], tuple[Callable[..., Sequence[torch.Tensor]], Sequence[int | None]]],
        again: Callable[[tuple[int, ...], tuple[int, ...], Tensors, Tensors], Training],
        traced: Callable[[tuple[int, ...]], tuple[AtenGraph, Callable[..., Any], Sequence[int | None]]],
    ) -> None:
        self.plan, self.number = plan, next(_numbers)
        self.forward = partial(_arrived, forward, dict(plan.offloaded)) if plan.offloaded else forward
        self.traced = functools.cache(traced)
        self._backward = _native.Wrapped(backward, None)  # a training loop that is captured must not capture this
        self._backwards: dict[tuple[int, ...], tuple[Callable[..., Tensors], Sequence[int | None], bool]] = {}
        self._again = _native.Wrapped(again, None)
        self._higher: dict[Any, Training] = {}
        self.watched = {name: t for name, t in constants.items() if not t.is_inference()}
        self.entered = [plan.entered(part) for part in plan.parts]
        names = [p.at for p in (*plan.wrt, *plan.dirty, *itertools.chain(*self.entered)) if p.kind != "input"]
        self.names = {name: i for i, name in enumerate(dict.fromkeys(names))}
        self.constants = [constants[name] if isinstance(name, str) else None for name in self.names]
        places = *plan.saved, *(place for place, _ in plan.outputs)
        self.others = {p.at: constants[str(p.at)] for p in places if p.kind == "const"}
        self.differentiable = frozenset(t.of.at for t in plan.tangents if t.of.kind == "result")
        self.whole = Part(tuple(range(len(plan.tangents))), tuple(range(len(plan.saved))))
        self.leaves = [self._leaves({*p.tangents}, {*row}) for p, row in zip(plan.parts, self.entered, strict=True)]
        self.linked = {plan.tangents[part.tangents[0]].of for part in plan.parts if part.link}
        self.views: set[int | str] = set()  # results that are views to autograd, and that others are made of
        everything = self._leaves({*self.whole.tangents}, set()) | {self.position(place) for place in plan.dirty}
        self.apart = {self.position(place) for place in plan.wrt} - everything  # nodes behind them must not run

    def _leaves(self, tangents: set[int], entered: set[Place]) -> set[int]:
        """Positions, among constants and inputs, of what the gradients of these tangents are for."""
        rows = zip(self.plan.wrt, self.plan.reach, strict=True)
        leaves = {p for p, reach in rows if p.kind != "result" and not tangents.isdisjoint(reach)}
        return {self.position(place) for place in leaves | entered}

    def position(self, place: Place) -> int:
        """Where a tensor that gradients are for is among constants and results and, behind them, inputs."""
        return len(self.names) + int(place.at) if place.kind == "input" else self.names[place.at]

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        """Run the forward; gradients flow through what it returns."""
        tensors: list[torch.Tensor | None] = [*self.constants, *inputs]
        before = Before(inputs, {}, random_states(self.plan.draws))
        if self.plan.parts:
            with torch.no_grad():
                results: Any = list(self.forward(*inputs))
            before = replace(before, versions=self._versions(inputs))  # of what the forward left
            values = {place.at: results[place.at] for place in self.linked}
            for at in values:  # a node for the memory, and one for the tensor that the caller sees
                results[at] = results[at].detach()
            for part, leaves, entered in zip(self.plan.parts, self.leaves, self.entered, strict=True):
                for place in entered:
                    tensors[self.position(place)] = results[place.at]
                near = [t if i in leaves else None for i, t in enumerate(tensors)]
                places = [self.plan.tangents[i].of.at for i in part.tangents]
                if part.link:
                    near += results[places[0]], _ANY
                    results[places[0]] = values[places[0]]
                begun = before.entered([results[place.at] for place in entered]) if entered else before
                for at, value in zip(places, _Node.apply(self, part, (begun, results, places), *near), strict=False):
                    is_seen = at in self.views and (part.link or at not in values)
                    results[at] = torch.ops.aten.alias(value) if is_seen else value
        else:
            for i in self.apart:
                tensors[i] = None
            written = [tensors[self.position(place)] for place in self.plan.dirty]
            views = [t for t in written if t is not None and t._is_view() and t.requires_grad]
            if self.plan.results + len(written) > 1 and views and torch.is_grad_enabled():
                raise RuntimeError("the engine takes no node that writes to a view and returns more")  # Python goes on
            results = _Node.apply(self, self.whole, (before, None, None), *tensors)
        sizes = self.sizes(inputs)
        return tuple([self._output(place, grad, inputs, results, sizes) for place, grad in self.plan.outputs])

    def sizes(self, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
        """The values of the plan's symbols."""
        return {name: inputs[at].shape[dim] for name, at, dim in self.plan.symbols}

    def _output(self, place: Place, grad: bool | None, inputs: Tensors, results: Any, sizes: Mapping[str, int]) -> Any:
        value = self.fetch(place, inputs, results)
        if grad is None:
            view, base = seen(value, place.layout, sizes), value if value.requires_grad else value.detach()
            with torch.no_grad():  # a leaf: a view of what requires gradients, or of what did not
                return base.requires_grad_().as_strided(view.shape, view.stride(), view.storage_offset())
        if isinstance(value, torch.Tensor):
            if value.requires_grad and not grad:
                value = value.detach()
            shown = seen(value, place.layout, sizes)
            is_argument = place.kind != "result" and shown is self.fetch(place, inputs, ())
            # A tensor of its own, as what gives it in plain Python.
            return shown.view_as(shown) if is_argument else shown
        return value

    def fetch(self, place: Place, inputs: Tensors, results: Any) -> Any:
        """Return the tensor that a place names, without its layout."""
        if place.kind == "result":
            return results[place.at]
        return inputs[place.at] if place.kind == "input" else self.others[place.at]  # type: ignore[index]

    def gradients(self, present: tuple[int, ...], tensors: list[torch.Tensor], given_up: bool) -> Sequence[Any]:
        """Return the gradient of each of `wrt`; the backward for these tangents is compiled when first asked for.

        given_up: the backward may empty the list, so that it frees each tensor behind its last use.
        """
        if torch._C._len_torch_dispatch_stack():  # a mode sees each operator, and may compute another result
            return self.traced_gradients(present, *tensors)
        compiled = self._backwards.get(present)
        if compiled is None:
            with recorder.timed("backward"):
                run, order = self._backward(present)
            compiled = self._backwards[present] = _native.Wrapped(run, None), order, type(run) is _native.Executable
        with unwatched() if has_watchers() else nullcontext():
            computed = compiled[0](tensors) if given_up and compiled[2] else compiled[0](*tensors)
        return [None if i is None else computed[i] for i in compiled[1]]

    def traced_gradients(self, present: tuple[int, ...], *tensors: torch.Tensor) -> list[torch.Tensor | None]:
        """As `gradients`, on eager kernels."""
        with unwatched():
            _, run, order = self.traced(present)
        computed = run(*tensors)
        return [None if i is None else computed[i] for i in order]

    def _versions(self, inputs: Sequence[torch.Tensor]) -> dict[int | str, int]:
        versions: dict[int | str, int] = {name: t._version for name, t in self.watched.items()}
        versions.update((i, t._version) for i, t in enumerate(inputs) if not t.is_inference())
        return versions

    def differentiable_gradients(
        self, part: Part, before: Before, inputs: Tensors, present: tuple[int, ...], tangents: Tensors
    ) -> dict[Place, torch.Tensor | None]:
        """The gradients, computed by a graph that has gradients of its own from the inputs and, behind them, results
        that come in and those that their own gradients read: these get a part of the second gradients."""
        if torch._C._len_torch_dispatch_stack():
            raise RuntimeError(
                "firebrick: gradients of gradients, or between results, of a compiled graph under a TorchDispatchMode, "
                "which would not see their operators; leave the mode, or call what needs them uncompiled"
            )
        if self.plan.twisted:
            raise RuntimeError(_TWISTED)
        key = part.entered, present, tuple([t.requires_grad for t in tangents]), *self.sizes(inputs).values()
        higher = self._higher.get(key)
        if higher is None:
            with recorder.timed("backward"), torch.enable_grad():
                higher = self._higher[key] = self._again(present, part.entered, tangents, inputs)
        now, packed = self._versions(inputs), not before.inputs  # inputs that hooks packed are other tensors
        reads = [at for at in higher.plan.reads if at in before.versions and not (packed and isinstance(at, int))]
        changed = [at for at in reads if before.versions[at] != now[at]]
        if changed:
            raise RuntimeError(
                "firebrick: what gradients are computed from was modified by an inplace operation since the forward: "
                f"{changed[0] if isinstance(changed[0], str) else f'input {changed[0]}'}"
            )
        with random_states_as(before.states):
            computed = dict(zip(higher.plan.of, higher(*inputs, *tangents), strict=True))
        entered = self.plan.entered(part)
        first = len(inputs) - len(entered) - len({*present} & {*self.plan.own})
        of = {place: Place("input", first + i) for i, place in enumerate(entered)}
        rows = {place: computed.pop(of.get(place, place), None) for place in {*self.plan.wrt, *entered}}
        if any(gradient is not None for gradient in computed.values()):
            raise RuntimeError("firebrick: a gradient that can be differentiated is for none of the graph's tensors")
        return rows


def _arrived(forward: Callable[..., Tensors], devices: Iterable[str], *inputs: torch.Tensor) -> Tensors:
    """What a forward gives once its copies on the CPU can be read, by whomever, on whatever stream."""
    results = forward(*inputs)
    for device in devices:
        torch.get_device_module(device).synchronize(device)
    return results


def seen(base: torch.Tensor, layout: tuple[Any, Any, Any] | None, sizes: Mapping[str, int]) -> torch.Tensor:
    """Return `base`, or the view of it that `layout` describes."""
    if layout is None:
        return base
    shape, strides, offset = _number(layout, sizes) if sizes else layout
    if offset == 0 and tuple(base.shape) == shape and base.stride() == strides:
        return base
    return base.as_strided(shape, strides, base.storage_offset() + offset)


with torch.inference_mode(False):
    _ANY = torch.zeros((), device="cpu", requires_grad=True)
    """A leaf of each link: `backward()` runs what accumulates its gradient, and `torch.autograd.grad` does not."""
    _ACCUMULATION = torch.autograd.graph.get_gradient_edge(_ANY).node


class _Node(torch.autograd.Function):
    """A node that the engine sees: the only one, one of the plan's parts, or behind such a one for a result."""

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[int, ...]:
        part = ctx.run.plan.parts.index(ctx.part) if ctx.part in ctx.run.plan.parts else -1
        return (_key_of(ctx.run.number, part, *ctx.sizes.values()),)

    @staticmethod
    def forward(ctx: Any, run: Training, part: Part, begun: tuple[Before, Any, Any], *tensors: torch.Tensor) -> Any:
        (before, results, places), plan, inputs = begun, run.plan, begun[0].inputs
        if results is None:
            results, places = run.forward(*inputs), range(plan.results)
            before = replace(before, versions=run._versions(inputs))
        ctx.run, ctx.part, ctx.places, ctx.size, ctx.sizes = run, part, places, len(tensors), run.sizes(inputs)
        dirty = [tensors[run.position(p)] for p in plan.dirty]
        hooked = not dirty and torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # type: ignore[attr-defined]
        # Of tensors that hooks pack, such as a checkpoint's, no other reference may stay.
        ctx.before = None if dirty else replace(before, inputs=()) if hooked else before
        saved_tensors = [run.fetch(plan.saved[i], inputs, results) for i in part.saved]
        own = [results[plan.tangents[i].of.at] for i in part.tangents if i in plan.own]
        ctx.save_for_backward(*saved_tensors, *own, *(inputs if hooked else ()))
        if len(part.tangents) > 1 and plan.uses and not dirty and not hooked:
            ctx.versions = [t._version for t in saved_tensors]
        ctx.made_of = {}  # nodes of links above this one -> their results
        for p in [p for p in plan.entered(part) if p in run.linked] if part.link else ():
            t, node = results[p.at], results[p.at].grad_fn
            below = node.next_functions[0][0] if p.at in run.views else node
            ctx.made_of |= {**getattr(below, "made_of", {}), node: weakref.ref(t)}
        ctx.mark_dirty(*dirty)
        others = [results[i] for i in places if i not in run.differentiable]
        ctx.mark_non_differentiable(*[r for r in others if isinstance(r, torch.Tensor)])
        ctx.set_materialize_grads(False)
        return (*[results[i] for i in places], *dirty)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if ctx.part.link and not (torch.is_grad_enabled() or is_wanted(ctx)):
            return (None, None, None, *[None] * (ctx.size - 2), *gradients, None)
        try:
            saved_tensors = ctx.saved_tensors  # to be unpacked once
        except RuntimeError:
            saved_tensors = _unchanged(ctx, gradients)
            if not saved_tensors:
                raise
        once = (saved_tensors or ctx.part.link) and not torch._C._autograd._get_current_graph_task_keep_graph()  # type: ignore[attr-defined]
        if once and not (ctx.part.link or torch.is_grad_enabled()):
            ctx.before, saved_tensors = None, [*saved_tensors]
            ctx.maybe_clear_saved_tensors()
        rows = _rows(ctx, saved_tensors, *gradients)
        if once:
            ctx.before = None  # goes with what is saved
        return (None, None, None, *rows)


def _noting(register: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, hook: (setattr(node, "hooked", True), register(node, hook))[1]  # type: ignore[func-returns-value]


for name in ("register_hook", "register_prehook"):
    setattr(_Node._backward_cls, name, _noting(getattr(_Node._backward_cls, name)))


def is_compiled_node(ctx: Any) -> bool:
    """Whether a node of the engine's graph is one of these."""
    return getattr(ctx, "_forward_cls", None) is _Node


def is_wanted(ctx: Any, accumulates: bool | None = None) -> bool:
    """Whether the results that a link's is made of may want gradients: they have hooks or keep their gradients, or not
    all leaves `accumulate` gradients, but some tensors are asked for."""
    if ctx.made_of and accumulates is None:
        accumulates = torch._C._will_engine_execute_node(_ACCUMULATION)
    results = [(ref(), hasattr(node, "hooked")) for node, ref in ctx.made_of.items()]
    wanted = any(hooked or t is None or t._backward_hooks or t.retains_grad for t, hooked in results)
    return bool(results) and (not accumulates or wanted)


@dataclass(frozen=True, slots=True)
class NodeBackward:
    """The backward of a node, of what it saved and the gradients of its results, as calls that can be traced."""

    run: Training
    part: Part
    places: Sequence[int]
    size: int
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, ctx: Any) -> NodeBackward:
        """The backward of a node of the engine's graph, without what it holds."""
        return cls(ctx.run, ctx.part, tuple(ctx.places), ctx.size, ctx.sizes)

    def __call__(self, kept: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
        """The gradient of each argument of the node."""
        return (None, None, None, *_rows(self, kept, *gradients))

    def gradients(self, positions: tuple[int, ...], tensors: list[torch.Tensor], _: bool) -> Sequence[Any]:
        """As `Training.gradients`, on eager kernels."""
        return self.run.traced_gradients(positions, *tensors)

    def text(self, text_of: Callable[[Any], str | None]) -> str | None:
        """What it does, where that has a stable text."""
        aten, _, order = self.run.traced(self.part.tangents)
        text = None if aten.constants else text_of(aten.gm)
        rest = self.run.plan, self.part, self.places, self.size, self.sizes
        return None if text is None else f"{text}{order}{aten.outputs}{aten.mutated}{aten.bits}{rest}"


def _unchanged(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor]:
    """What a node saved, if none of what these gradients read was written to; eager has a node for each of them."""
    plan, part, raw = ctx.run.plan, ctx.part, ctx._raw_saved_tensors[: len(ctx.part.saved)]
    if torch.is_grad_enabled() or not hasattr(ctx, "versions"):
        return ()
    shown = {plan.tangents[i].of.at: i for i in part.tangents}
    pairs = zip(ctx.places, gradients, strict=False)
    used = {at for place, gradient in pairs if gradient is not None for at in plan.uses[shown[place]]}
    saved_tensors = tuple([saved.data for saved in raw])
    rows = zip(part.saved, saved_tensors, ctx.versions, strict=True)
    return () if any(t._version != version for at, t, version in rows if at in used) else saved_tensors


def _rows(ctx: Any, kept: Sequence[torch.Tensor], *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """The gradient of each tensor that the node was called with; what is kept in a list is given up."""
    batch = Batch.of(gradients)
    if batch is not None:
        return batch.map(lambda *one: _rows(ctx, tuple(kept), *one), gradients)
    run, plan, part, saved = ctx.run, ctx.run.plan, ctx.part, kept
    own = dict(zip([i for i in part.tangents if i in plan.own], kept[len(part.saved) :], strict=False))
    kept, inputs = kept[: len(part.saved)], kept[len(part.saved) + len(own) :]
    again = torch.is_grad_enabled()
    positions = {p: i for i, p in enumerate([*[Place("result", at) for at in ctx.places], *plan.dirty])}
    tangents, present = [], []
    for i in part.tangents:
        gradient = gradients[positions[plan.tangents[i].of]]
        if gradient is not None:
            present.append(i)
            tangents.append(_conform(gradient if again else gradient.detach(), plan.tangents[i], ctx.sizes))
    rows: list[torch.Tensor | None] = [None] * ctx.size
    if not present:
        return tuple(rows)
    if again or part.link:
        if ctx.before is None:
            raise RuntimeError(_FREED if part.link else _REFUSED)
        inputs = [*(inputs or ctx.before.inputs), *[own[i] for i in present if i in own]]
        computed = run.differentiable_gradients(part, ctx.before, inputs, tuple(present), tangents)
    else:
        tensors = [seen(t, plan.saved[i].layout, ctx.sizes) for t, i in zip(kept, part.saved, strict=True)]
        tensors += tangents
        del kept, own, inputs, tangents
        if given_up := isinstance(saved, list):
            saved.clear()
        compute = ctx.gradients if isinstance(ctx, NodeBackward) else run.gradients
        computed = dict(zip(plan.wrt, compute(tuple(present), tensors, given_up), strict=True))
    for place, gradient in computed.items():
        if gradient is not None:
            rows[run.position(place)] = gradient
    return tuple(rows)


def _conform(gradient: torch.Tensor, tangent: Tangent, sizes: Mapping[str, int]) -> torch.Tensor:
    """Give a gradient the layout that the backward was compiled for."""
    gradient = gradient.resolve_conj().resolve_neg()
    dtype, layout = getattr(torch, tangent.dtype), (tangent.shape, tangent.strides)
    shape, strides = _number(layout, sizes) if sizes else layout
    if gradient.dtype == dtype and gradient.stride() == strides and type(gradient) in (torch.Tensor, FakeTensor):
        return gradient
    return torch.empty_strided(shape, strides, dtype=dtype, device=gradient.device).copy_(gradient)


_functorch: Any = torch._C._functorch


class Batch:
    """The outermost batch that some tensors are in; `legacy`: one of `torch.autograd.grad`, not of `torch.vmap`."""

    def __init__(self, legacy: bool, level: int) -> None:
        self.legacy, self.level = legacy, level

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor | None]) -> Batch | None:
        """The batch that was opened last, None if there is none."""
        present = [t for t in tensors if t is not None]
        levels = [_functorch.maybe_get_level(t) for t in present if _functorch.is_batchedtensor(t)]
        if levels:
            return cls(False, max(levels))
        if not any(_functorch.is_legacy_batchedtensor(t) for t in present):
            return None
        level = torch._C._vmapmode_increment_nesting()
        torch._C._vmapmode_decrement_nesting()
        while level > 1 and not any(cls(True, level)._holds(t) for t in present):
            level -= 1
        return cls(True, level)

    def _holds(self, tensor: torch.Tensor) -> bool:
        if not self.legacy:
            return bool(_functorch.is_batchedtensor(tensor)) and _functorch.maybe_get_level(tensor) == self.level
        one, two = (torch._remove_batch_dim(tensor, self.level, size, 0) for size in (1, 2))
        return one.shape == two.shape  # a tensor that is not in the batch is repeated as often as it is asked to be

    def _rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with the batch as its first dimension."""
        if self.legacy:
            return torch._remove_batch_dim(tensor, self.level, 1, 0)
        value, dim = _functorch._unwrap_batched(tensor, self.level)
        return value.movedim(dim, 0)  # type: ignore[no-any-return]

    def map(
        self, function: Callable[..., tuple[torch.Tensor | None, ...]], tensors: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """What a function gives for each of the batch, as a batch."""
        rows = {i: self._rows(t) for i, t in enumerate(tensors) if t is not None and self._holds(t)}
        size = len(next(iter(rows.values())))
        rows = rows if size else {i: row.new_zeros(1, *row.shape[1:]) for i, row in rows.items()}
        calls = [function(*[rows[k][i] if k in rows else t for k, t in enumerate(tensors)]) for i in range(size or 1)]
        add = torch._add_batch_dim if self.legacy else _functorch._add_batch_dim
        results = [None if column[0] is None else torch.stack(column)[:size] for column in zip(*calls, strict=True)]
        return tuple([None if r is None else add(r, 0, self.level) for r in results])
