"""Calls a forward and a backward executable as one node of the autograd engine's graph."""

from __future__ import annotations

import operator
from dataclasses import asdict, dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from firebrick import _native
from firebrick.report import recorder
from firebrick.runtime.batches import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TWICE = (
    "firebrick: a compiled graph has no gradients of its gradients; "
    "compile with backend='eager', or call what needs double backward uncompiled"
)


_NOTHING = torch.empty(0, device="cpu")


_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
}


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
    """A node of the engine's graph for some of the results: positions in the plan's `tangents` and `saved`."""

    tangents: tuple[int, ...]
    saved: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How forward and backward are joined; plain data that is kept with the forward's artifact.

    results: how many of the forward's results are the user's; the others are only saved.
    outputs: the user's outputs, each with whether it requires a gradient, None for a leaf that does.
    dirty: tensors of the caller whose new value has a gradient. wrt: tensors that gradients are for.
    reach: for each of `wrt`, the tangents that its gradient is made of.
    parts: nodes that know nothing of each other; none: one has all tangents.
    bytes_saved: held from forward to backward, not counting what the caller holds anyway.
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
    parts: tuple[Part, ...] = ()
    symbols: tuple[tuple[str, int, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Inverse of `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrainingPlan:
        """Read what `to_json` gave, also after a round trip through a file."""
        fields = {k: _tuples(v) for k, v in data.items()}
        return cls(
            results=fields["results"],
            outputs=tuple((Place(*place), grad) for place, grad in fields["outputs"]),
            saved=tuple(Place(*row) for row in fields["saved"]),
            tangents=tuple(Tangent(Place(*of), *rest) for of, *rest in fields["tangents"]),
            dirty=tuple(Place(*row) for row in fields["dirty"]),
            wrt=tuple(Place(*row) for row in fields["wrt"]),
            bytes_saved=fields["bytes_saved"],
            reach=fields["reach"],
            parts=tuple(Part(*row) for row in fields["parts"]),
            symbols=fields["symbols"],
        )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, (list, tuple)) else value


class Training:
    """A compiled graph that records one node where gradients are recorded; called with the graph's inputs.

    backward: which tangents are given -> a function of the saved tensors and those tangents, and which of its results
    is the gradient of each of the plan's `wrt` (None: no result depends on it).
    """

    def __init__(
        self,
        plan: TrainingPlan,
        forward: Callable[..., Sequence[Any]],
        constants: Mapping[str, torch.Tensor],
        backward: Callable[[tuple[int, ...]], tuple[Callable[..., Sequence[torch.Tensor]], Sequence[int | None]]],
    ) -> None:
        self.plan, self.forward = plan, forward
        self._backward = _native.Wrapped(backward, None)  # a training loop that is captured must not capture this
        self._backwards: dict[tuple[int, ...], tuple[Callable[..., Sequence[torch.Tensor]], Sequence[int | None]]] = {}
        names = [p.at for p in (*plan.wrt, *plan.dirty) if p.kind == "const"]
        self.names = {name: i for i, name in enumerate(dict.fromkeys(names))}
        self.constants = [constants[str(name)] for name in self.names]
        self.others = {p.at: constants[str(p.at)] for p in self._places() if p.kind == "const"}
        self.differentiable = frozenset(t.of.at for t in plan.tangents if t.of.kind == "result")
        self.whole = Part(tuple(range(len(plan.tangents))), tuple(range(len(plan.saved))))
        self.leaves = [self._leaves(set(part.tangents)) for part in plan.parts]
        everything = self._leaves(set(self.whole.tangents)) | {self.position(place) for place in plan.dirty}
        self.apart = {self.position(place) for place in plan.wrt} - everything  # nodes behind them must not run

    def _leaves(self, tangents: set[int]) -> set[int]:
        """Positions, among constants and inputs, of what the gradients of these tangents are for."""
        rows = zip(self.plan.wrt, self.plan.reach, strict=True)
        return {self.position(place) for place, reach in rows if not tangents.isdisjoint(reach)}

    def position(self, place: Place) -> int:
        """Where a tensor that gradients are for is among constants and, behind them, inputs."""
        return len(self.names) + int(place.at) if place.kind == "input" else self.names[str(place.at)]

    def _places(self) -> list[Place]:
        return [*self.plan.saved, *(place for place, _ in self.plan.outputs)]

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        """Run the forward; gradients flow through what it returns."""
        tensors: list[torch.Tensor | None] = [*self.constants, *inputs]
        if self.plan.parts:
            with torch.no_grad():
                results = list(self.forward(*inputs))
            for part, leaves in zip(self.plan.parts, self.leaves, strict=True):
                near: list[torch.Tensor | None] = [None] * len(tensors)
                for i in leaves:
                    near[i] = tensors[i]
                places = [self.plan.tangents[i].of.at for i in part.tangents]
                for at, value in zip(places, _Node.apply(self, part, (inputs, results, places), *near), strict=False):
                    results[at] = value  # type: ignore[index]
        else:
            for i in self.apart:
                tensors[i] = None
            results = _Node.apply(self, self.whole, (inputs, None, None), *tensors)
        sizes = self.sizes(inputs)
        return tuple([self._output(place, grad, inputs, results, sizes) for place, grad in self.plan.outputs])

    def sizes(self, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
        """The values of the plan's symbols."""
        return {name: inputs[at].shape[dim] for name, at, dim in self.plan.symbols}

    def _output(
        self,
        place: Place,
        grad: bool | None,
        inputs: Sequence[torch.Tensor],
        results: Sequence[Any],
        sizes: Mapping[str, int],
    ) -> Any:
        value = self.fetch(place, inputs, results)
        if grad is None:
            return _severed(seen(value, place.layout, sizes), value)
        if isinstance(value, torch.Tensor):
            if value.requires_grad and not grad:
                value = value.detach()
            shown = seen(value, place.layout, sizes)
            is_argument = place.kind != "result" and shown is self.fetch(place, inputs, ())
            return (
                shown.view_as(shown) if is_argument else shown
            )  # a tensor of its own, as what gives it in plain Python
        return value

    def fetch(self, place: Place, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> Any:
        """Return the tensor that a place names, without its layout."""
        if place.kind == "result":
            return results[place.at]  # type: ignore[index]
        return inputs[place.at] if place.kind == "input" else self.others[place.at]  # type: ignore[index]

    def gradients(self, given: tuple[int, ...], *tensors: torch.Tensor) -> list[torch.Tensor | None]:
        """Return the gradient of each of `wrt`; the backward for these tangents is compiled when first asked for."""
        compiled = self._backwards.get(given)
        if compiled is None:
            with recorder.timed("backward"):
                run, order = self._backward(given)
            compiled = self._backwards[given] = _native.Wrapped(run, None), order
        computed = compiled[0](*tensors)
        return [None if i is None else computed[i] for i in compiled[1]]


def seen(base: torch.Tensor, layout: tuple[Any, Any, Any] | None, sizes: Mapping[str, int]) -> torch.Tensor:
    """Return `base`, or the view of it that `layout` describes."""
    if layout is None:
        return base
    shape, strides, offset = _number(layout, sizes) if sizes else layout
    if offset == 0 and tuple(base.shape) == shape and base.stride() == strides:
        return base
    return base.as_strided(shape, strides, base.storage_offset() + offset)


def _severed(view: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Return a leaf that requires gradients: a view of what requires them, or of what does not."""
    if not base.requires_grad:
        base = base.detach().requires_grad_()
    with torch.no_grad():
        return base.as_strided(view.shape, view.stride(), view.storage_offset())


class _Node(torch.autograd.Function):
    """A node that the engine sees: the only one, or one of the plan's parts."""

    @staticmethod
    def forward(ctx: Any, run: Training, part: Part, begun: tuple[Any, Any, Any], *tensors: torch.Tensor) -> Any:
        (inputs, results, places), plan = begun, run.plan
        if results is None:
            results = run.forward(*inputs)
            places = range(plan.results)
        ctx.run, ctx.part, ctx.places, ctx.size, ctx.sizes = run, part, places, len(tensors), run.sizes(inputs)
        dirty = [tensors[run.position(p)] for p in plan.dirty]
        token = _NOTHING.new_empty(0)  # by it, gradients of these gradients lead back here, and to an error
        ctx.save_for_backward(*[run.fetch(plan.saved[i], inputs, results) for i in part.saved], token)
        ctx.mark_dirty(*dirty)
        others = [results[i] for i in places if i not in run.differentiable]
        ctx.mark_non_differentiable(*[r for r in others if isinstance(r, torch.Tensor)])
        ctx.set_materialize_grads(False)
        return (*[results[i] for i in places], *dirty, token)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        run, plan, part = ctx.run, ctx.run.plan, ctx.part
        batch = Batch.of(gradients)
        if batch is not None:
            return batch.map(lambda *one: _Node.backward(ctx, *one), gradients)
        *kept, token = ctx.saved_tensors
        places = [plan.saved[i] for i in part.saved]
        saved = [seen(t, p.layout, ctx.sizes) for t, p in zip(kept, places, strict=True)]
        positions = {Place("result", place): i for i, place in enumerate(ctx.places)}
        positions |= {place: len(ctx.places) + i for i, place in enumerate(plan.dirty)}
        tangents, given = [], []
        for i in part.tangents:
            gradient = gradients[positions[plan.tangents[i].of]]
            if gradient is not None:
                given.append(i)
                tangents.append(_conform(gradient.detach(), plan.tangents[i], ctx.sizes))
        rows: list[torch.Tensor | None] = [None] * ctx.size
        if given:
            with torch.no_grad():
                computed = run.gradients(tuple(given), *saved, *tangents)
            for place, gradient in zip(plan.wrt, computed, strict=True):
                if gradient is not None:
                    rows[run.position(place)] = gradient
        if torch.is_grad_enabled():
            sloped = (p.kind == "result" and _has_slope(t) for t, p in zip(saved, places, strict=True))
            if any(sloped) or any(t is not None and t.requires_grad for t in (*gradients, *saved)):
                _refuse_double_backward(rows, token)
        return (None, None, None, *rows)


def _has_slope(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _conform(gradient: torch.Tensor, tangent: Tangent, sizes: Mapping[str, int]) -> torch.Tensor:
    """Give a gradient the layout that the backward was compiled for."""
    gradient = gradient.resolve_conj().resolve_neg()
    dtype, layout = getattr(torch, tangent.dtype), (tangent.shape, tangent.strides)
    shape, strides = _number(layout, sizes) if sizes else layout
    if gradient.dtype == dtype and gradient.stride() == strides and type(gradient) is torch.Tensor:
        return gradient
    laid_out = torch.empty_strided(shape, strides, dtype=dtype, device=gradient.device)
    return laid_out.copy_(gradient)


def _refuse_double_backward(rows: list[torch.Tensor | None], token: torch.Tensor) -> None:
    """Make gradients of these gradients an error, where eager PyTorch would have them."""
    places = [i for i, row in enumerate(rows) if row is not None]
    error = torch._C._functions.DelayedError(_TWICE, len(places) + 1)
    refused = error(*[rows[i].detach().requires_grad_() for i in places], token)  # type: ignore[union-attr]
    for i, row in zip(places, refused, strict=False):
        rows[i] = row
