"""Numerical checks of a changed graph against the one before, and the blame when they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from firebrick.errors import UserLocation

_TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Largest accepted error of an output by dtype, relative to the output's largest element."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Why two graphs are not the same function, and the node where it starts."""

    text: str
    error: float = float("inf")
    node: str = ""
    where: UserLocation | None = None

    def __str__(self) -> str:
        start = f"; first at {self.node}" if self.node else ""
        place = f" ({self.where})" if self.where else ""
        return self.text + start + place


def tolerance_of(dtype: torch.dtype) -> float:
    """The relative error that rounding in another order may bring at this dtype."""
    return _TOLERANCE.get(dtype, 0.0)


def example_tensors(values: Sequence[Any], *, seed: int = 0) -> list[Any]:
    """Real tensors like the (fake) `values`: normal floats, small whole numbers that are safe as indices."""
    generator = torch.Generator().manual_seed(seed)
    return [_example(value, generator) for value in values]


def _example(value: Any, generator: torch.Generator) -> Any:
    if not isinstance(value, torch.Tensor):
        return int(value) if isinstance(value, torch.SymInt) else value
    shape = tuple(int(size) for size in value.shape)
    if value.dtype.is_floating_point or value.dtype.is_complex:
        example = torch.randn(shape, generator=generator, dtype=torch.float64).to(value.dtype)
    elif value.dtype == torch.bool:
        example = torch.rand(shape, generator=generator) > 0.5
    else:
        example = torch.randint(0, 2, shape, generator=generator).to(value.dtype)
    strides = tuple(int(stride) for stride in value.stride())
    if strides != example.stride() and 0 not in strides and example.numel():
        example = torch.empty_strided(shape, strides, dtype=value.dtype).copy_(example)
    return example.to(value.device)


def relative_error(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """Largest difference divided by the largest expected element; 0 for equal tensors, inf for other NaNs or infs."""
    if expected.numel() == 0 or torch.equal(expected, actual):
        return 0.0
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return float("inf")
    wide = torch.complex128 if expected.dtype.is_complex else torch.float64
    a, b = expected.detach().to(wide), actual.detach().to(wide)
    odd = ~torch.isfinite(a)
    if not torch.equal(odd, ~torch.isfinite(b)) or not torch.equal(torch.nan_to_num(a[odd]), torch.nan_to_num(b[odd])):
        return float("inf")
    a, b = a[~odd], b[~odd]
    if a.numel() == 0:
        return 0.0
    return float((a - b).abs().max() / a.abs().max().clamp_min(torch.finfo(expected.dtype).tiny))


def shared_memory(tensors: Sequence[Any], others: Sequence[Any]) -> set[tuple[int, int]]:
    """Which of the first share bytes with which of the others, by position."""
    pairs = set()
    for i, a in enumerate(tensors):
        for j, b in enumerate(others):
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and _overlap(a, b):
                pairs.add((i, j))
    return pairs


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether some byte belongs to both; columns of one matrix share a storage, but no byte."""
    if not a.numel() or not b.numel() or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    if a is b or a.element_size() != b.element_size():
        return True
    covered = torch.zeros(a.untyped_storage().nbytes() // a.element_size(), dtype=torch.bool)
    covered[_places(a)] = True
    return bool(covered[_places(b)].any())


def _places(t: torch.Tensor) -> torch.Tensor:
    """Which elements of its storage a tensor consists of."""
    places = torch.tensor(t.storage_offset())
    for size, stride in zip(t.shape, t.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return places


def _flat(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in _flat(item)] if isinstance(value, (tuple, list)) else [value]


def compare(
    reference: Callable[..., Any],
    changed: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    tolerance: float | None = None,
    aliasing: bool = True,
) -> Difference | float:
    """Run both on copies of `inputs`; the largest relative error, or the first difference that is not rounding.

    Shapes, dtypes, devices, what is written to the inputs and (with `aliasing`) which outputs share memory with
    inputs or with each other must agree exactly; values up to `tolerance`.
    """
    state = torch.random.get_rng_state()
    sides = []
    for call in (reference, changed):
        copies = copies_of(inputs)
        torch.random.set_rng_state(state)
        with torch.no_grad():
            sides.append((copies, _flat(call(*copies))))
    (ins, expected), (other_ins, results) = sides
    if len(expected) != len(results):
        return Difference(f"{len(results)} outputs instead of {len(expected)}")
    worst = 0.0
    named = [(f"output {i}", a, b) for i, (a, b) in enumerate(zip(expected, results, strict=True))]
    named += [(f"input {i} after the call", a, b) for i, (a, b) in enumerate(zip(ins, other_ins, strict=True))]
    for name, a, b in named:
        result = _compare_values(name, a, b, tolerance)
        if isinstance(result, Difference):
            return result
        worst = max(worst, result)
    if aliasing:
        if shared_memory(expected, ins) != shared_memory(results, other_ins):
            return Difference("an output shares memory with an input in one graph only")
        if shared_memory(expected, expected) != shared_memory(results, results):
            return Difference("outputs share memory with each other in one graph only")
    return worst


def _compare_values(name: str, a: Any, b: Any, tolerance: float | None) -> Difference | float:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return 0.0 if type(a) is type(b) and a == b else Difference(f"{name} is {b!r} instead of {a!r}")
    for what in ("dtype", "shape", "device", "layout"):
        if getattr(a, what) != getattr(b, what):
            old, new = getattr(a, what), getattr(b, what)
            old, new = (tuple(old), tuple(new)) if what == "shape" else (old, new)
            return Difference(f"{name} has {what} {new} instead of {old}")
    error = relative_error(a, b)
    limit = tolerance_of(a.dtype) if tolerance is None else tolerance
    if error > limit:
        return Difference(f"{name} is off by {error:.1e} of its largest element (at most {limit:.0e})", error)
    return error


def copies_of(inputs: Iterable[Any]) -> list[Any]:
    """The inputs of a call that may write to them."""
    return [i.detach().clone() if isinstance(i, torch.Tensor) else i for i in inputs]


class ValueRecorder(fx.Interpreter):
    """Runs a graph and keeps the value of each node as it was before later calls wrote to it."""

    def __init__(self, gm: fx.GraphModule, graph: fx.Graph | None = None) -> None:
        super().__init__(gm, garbage_collect_values=False, graph=graph)
        self.values: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run and keep it."""
        value = super().run_node(n)
        self.values[n.name] = value.detach().clone() if isinstance(value, torch.Tensor) else value
        return value


def compare_graphs(
    gm: fx.GraphModule, reference: fx.Graph, inputs: Sequence[Any], *, tolerance: float | None = None
) -> Difference | float:
    """Compare `gm.graph` with `reference`, the graph before a pass; a difference names the node where it starts."""
    result = compare(
        lambda *args: fx.Interpreter(gm, graph=reference).run(*args),
        lambda *args: fx.Interpreter(gm, graph=gm.graph).run(*args),
        inputs,
        tolerance=tolerance,
    )
    if isinstance(result, Difference):
        return blame(gm, reference, inputs, result, tolerance=tolerance)
    return result


def blame(
    gm: fx.GraphModule,
    reference: fx.Graph,
    inputs: Sequence[Any],
    difference: Difference,
    *,
    tolerance: float | None = None,
) -> Difference:
    """Add to `difference` the first node of `gm.graph` whose value differs from the same node's before."""
    sides = []
    state = torch.random.get_rng_state()
    for graph in (reference, gm.graph):
        recorder = ValueRecorder(gm, graph)
        torch.random.set_rng_state(state)
        with torch.no_grad():
            recorder.run(*copies_of(inputs))
        sides.append(recorder.values)
    old, new = sides
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or not isinstance(old.get(node.name), torch.Tensor):
            continue
        if isinstance(_compare_values(node.name, old[node.name], new[node.name], tolerance), Difference):
            stack = node.meta.get("stack") or ()
            return Difference(difference.text, difference.error, node.name, stack[-1] if stack else None)
    return difference
