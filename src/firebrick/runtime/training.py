"""Calls a forward and a backward executable as one node of the autograd engine's graph."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

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


class Place(NamedTuple):
    """Where a tensor is found: an input or result by position, or a constant by name; `layout` is a view of it."""

    kind: str  # input, const, result
    at: int | str
    layout: tuple[tuple[int, ...], tuple[int, ...], int] | None = None  # shape, strides, offset from the first element


class Tangent(NamedTuple):
    """The gradient of a result, as the backward wants it."""

    of: Place
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How forward and backward are joined; plain data that is kept with the forward's artifact.

    results: how many of the forward's results are the user's; the others are only saved.
    outputs: the user's outputs, each with whether it requires a gradient, None for a leaf that does.
    dirty: tensors of the caller whose new value has a gradient. wrt: tensors that gradients are for.
    bytes_saved: held from forward to backward, not counting what the caller holds anyway.
    """

    results: int
    outputs: tuple[tuple[Place, bool | None], ...]
    saved: tuple[Place, ...]
    tangents: tuple[Tangent, ...]
    dirty: tuple[Place, ...]
    wrt: tuple[Place, ...]
    bytes_saved: int

    def to_json(self) -> dict[str, Any]:
        """Inverse of `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrainingPlan:
        """Read what `to_json` gave, also after a round trip through a file."""
        found = {k: _tuples(v) for k, v in data.items()}
        return cls(
            results=found["results"],
            outputs=tuple((Place(*place), grad) for place, grad in found["outputs"]),
            saved=tuple(Place(*row) for row in found["saved"]),
            tangents=tuple(Tangent(Place(*of), *rest) for of, *rest in found["tangents"]),
            dirty=tuple(Place(*row) for row in found["dirty"]),
            wrt=tuple(Place(*row) for row in found["wrt"]),
            bytes_saved=found["bytes_saved"],
        )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, (list, tuple)) else value


Backward: TypeAlias = "tuple[Callable[..., Sequence[torch.Tensor]], Sequence[int | None], Sequence[int]]"


class Training:
    """A compiled graph that records one node where gradients are recorded; called with the graph's inputs.

    backward: which tangents are given -> a function of the saved tensors and those tangents, which of its results is
    the gradient of each of the plan's `wrt` (None: no result depends on it), and which saved tensors it does not read.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        forward: Callable[..., Sequence[Any]],
        constants: Mapping[str, torch.Tensor],
        backward: Callable[[tuple[int, ...]], Backward],
    ) -> None:
        self.plan, self.forward = plan, forward
        self._backward = _native.Wrapped(backward, None)  # a training loop that is captured must not capture this
        self._backwards: dict[tuple[int, ...], Backward] = {}
        names = [p.at for p in (*plan.wrt, *plan.dirty) if p.kind == "const"]
        self.names = {name: i for i, name in enumerate(dict.fromkeys(names))}
        self.constants = [constants[str(name)] for name in self.names]
        self.others = {p.at: constants[str(p.at)] for p in self._places() if p.kind == "const"}
        self.differentiable = frozenset(t.of.at for t in plan.tangents if t.of.kind == "result")

    def _places(self) -> list[Place]:
        return [*self.plan.saved, *(place for place, _ in self.plan.outputs)]

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        """Run the forward; gradients flow through what it returns."""
        found = _Node.apply(self, len(inputs), *inputs, *self.constants)
        return tuple([self._output(place, grad, inputs, found) for place, grad in self.plan.outputs])

    def _output(self, place: Place, grad: bool | None, inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> Any:
        value = self.fetch(place, inputs, results)
        if grad is None:
            return _severed(seen(value, place.layout), value)
        if isinstance(value, torch.Tensor):
            if value.requires_grad and not grad:
                value = value.detach()
            found = seen(value, place.layout)
            given = place.kind != "result" and found is self.fetch(place, inputs, ())
            return found.view_as(found) if given else found  # a tensor of its own, as what gives it in plain Python
        return value

    def fetch(self, place: Place, inputs: Sequence[torch.Tensor], found: Sequence[Any]) -> Any:
        """Return the tensor that a place names, without its layout."""
        if place.kind == "result":
            return found[place.at]  # type: ignore[index]
        return inputs[place.at] if place.kind == "input" else self.others[place.at]  # type: ignore[index]

    def backward(self, given: tuple[int, ...]) -> Backward:
        """The backward for these tangents, which is compiled when it is first asked for."""
        known = self._backwards.get(given)
        if known is None:
            with recorder.timed("backward"), torch.no_grad():
                run, *rest = self._backward(given)
            known = self._backwards[given] = (_native.Wrapped(run, None), *rest)
        return known


def seen(base: torch.Tensor, layout: tuple[Any, Any, int] | None) -> torch.Tensor:
    """Return `base`, or the view of it that `layout` describes."""
    if layout is None:
        return base
    shape, strides, offset = layout
    if offset == 0 and tuple(base.shape) == shape and base.stride() == strides:
        return base
    return base.as_strided(shape, strides, base.storage_offset() + offset)


def _severed(found: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Return a leaf that requires gradients: a view of what requires them, or of what does not."""
    if not base.requires_grad:
        base = base.detach().requires_grad_()
    with torch.no_grad():
        return base.as_strided(found.shape, found.stride(), found.storage_offset())


class _Node(torch.autograd.Function):
    """The one node that the engine sees."""

    @staticmethod
    def forward(ctx: Any, run: Training, count: int, *tensors: torch.Tensor) -> tuple[Any, ...]:
        inputs, plan = tensors[:count], run.plan
        found = run.forward(*inputs)
        ctx.run, ctx.count, ctx.size = run, count, len(tensors)
        dirty = [inputs[p.at] if p.kind == "input" else tensors[count + run.names[p.at]] for p in plan.dirty]  # type: ignore[index]
        token = _NOTHING.new_empty(0)  # by it, gradients of these gradients lead back here, and to an error
        saved = [run.fetch(place, inputs, found) for place in plan.saved]
        ctx.save_for_backward(*saved, token)
        several = len(plan.tangents) > 1 and not any(t.is_inference() for t in saved)
        ctx.versions = [t._version for t in saved] if several else ()
        ctx.mark_dirty(*dirty)
        results = found[: plan.results]
        others = [r for i, r in enumerate(results) if i not in run.differentiable]
        ctx.mark_non_differentiable(*[r for r in others if isinstance(r, torch.Tensor)])
        ctx.set_materialize_grads(False)
        return (*results, *dirty, token)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        run, plan = ctx.run, ctx.run.plan
        batch = Batch.of(gradients)
        if batch is not None:
            return batch.map(lambda *one: _Node.backward(ctx, *one), gradients)
        dirty = {place: plan.results + i for i, place in enumerate(plan.dirty)}
        tangents, given = [], []
        for i, tangent in enumerate(plan.tangents):
            position = tangent.of.at if tangent.of.kind == "result" else dirty[tangent.of]
            gradient = gradients[position]
            if gradient is not None:
                given.append(i)
                tangents.append(_conform(gradient.detach(), tangent))
        *kept, token = _kept(ctx, tuple(given))
        saved = [seen(t, p.layout) for t, p in zip(kept, plan.saved, strict=True)]
        rows: list[torch.Tensor | None] = [None] * (2 + ctx.size)
        if given:
            with torch.no_grad():
                function, order, _ = run.backward(tuple(given))
                found = function(*saved, *tangents)
            for place, index in zip(plan.wrt, order, strict=True):
                gradient = None if index is None else found[index]
                position = place.at if place.kind == "input" else ctx.count + run.names[place.at]
                rows[2 + position] = gradient
        if torch.is_grad_enabled():
            sloped = (p.kind == "result" and _has_slope(t) for t, p in zip(saved, plan.saved, strict=True))
            if any(sloped) or any(t is not None and t.requires_grad for t in (*gradients, *saved)):
                _refuse_double_backward(rows, token)
        return tuple(rows)


def _kept(ctx: Any, given: tuple[int, ...]) -> Sequence[torch.Tensor]:
    """What was saved; the caller may have written to what the backward for these tangents does not read."""
    try:
        return ctx.saved_tensors  # type: ignore[no-any-return]
    except RuntimeError:
        held = ctx._raw_saved_tensors if given and ctx.versions else ()
        if not held or any(s.unpack_hook is not None for s in held):
            raise
        kept = [s.data for s in held]
        written = {i for i, version in enumerate(ctx.versions) if kept[i]._version != version}
        if not written or not written.issubset(ctx.run.backward(given)[2]):
            raise
        return kept


def _has_slope(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _conform(gradient: torch.Tensor, tangent: Tangent) -> torch.Tensor:
    """Give a gradient the layout that the backward was compiled for."""
    gradient = gradient.resolve_conj().resolve_neg()
    dtype = getattr(torch, tangent.dtype)
    if gradient.dtype == dtype and gradient.stride() == tangent.strides and type(gradient) is torch.Tensor:
        return gradient
    made = torch.empty_strided(tangent.shape, tangent.strides, dtype=dtype, device=gradient.device)
    return made.copy_(gradient)


def _refuse_double_backward(rows: list[torch.Tensor | None], token: torch.Tensor) -> None:
    """Make gradients of these gradients an error, where eager PyTorch would have them."""
    places = [i for i, row in enumerate(rows) if row is not None]
    error = torch._C._functions.DelayedError(_TWICE, len(places) + 1)
    refused = error(*[rows[i].detach().requires_grad_() for i in places], token)  # type: ignore[union-attr]
    for i, row in zip(places, refused, strict=False):
        rows[i] = row
