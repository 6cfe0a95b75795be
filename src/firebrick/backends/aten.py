"""Runs an AtenGraph on eager kernels: write-backs and aliases as the graph asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from firebrick import runtime, trace
from firebrick.errors import LoweringError
from firebrick.ir.graph.aten import Alias, AtenGraph
from firebrick.ir.index.expr import Expr
from firebrick.ir.index.sizes import float_of, size_of
from firebrick.trace import graph_key
from firebrick.trace.inference_trace import fakes_of
from firebrick.trace.joint_split import symbol_places

Compiler = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]


def run_aten(aten: AtenGraph, forward: Callable[..., Any] | None = None) -> Callable[..., tuple[Any, ...]]:
    """Return a callable of the graph's tensor inputs; `forward` computes the flat outputs (default: eager ops)."""
    sizes = _SizesOf(aten.gm)
    call = (sizes.run if sizes.places else aten.gm.forward) if forward is None else forward
    names = [n.name for n in aten.gm.graph.nodes if n.op == "placeholder"]
    written: list[int | str] = [names.index(n) if n in names else n for n in aten.mutated]
    first, last = len(written), len(written) + len(aten.outputs)
    bits = aten.bits_by_place()
    if bits["consts"]:
        raise LoweringError("a captured tensor has a negative or conjugate bit")

    def run(*inputs: torch.Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            flat = call(*[t.detach() if t.requires_grad else t for t in inputs])  # some kernels ask, even here

            def base(alias: Alias) -> torch.Tensor:
                if alias.base == "input":
                    return inputs[int(alias.index)]
                return aten.constants[str(alias.index)] if alias.base == "const" else flat[alias.index]

            for target, value in zip(written, flat, strict=False):
                (inputs[target] if isinstance(target, int) else aten.constants[target]).copy_(value)
            numbers, rows = sizes.numbers(inputs), zip(aten.outputs, flat[first:last], strict=True)
            results = [v if alias is None else seen_as(base(alias), alias, numbers) for alias, v in rows]
            # What is no view in the program is none here.
            return tuple([v.detach() if isinstance(v, torch.Tensor) and v._is_view() else v for v in results])

    inputs, outputs = ({int(i): pair for i, pair in bits[kind].items()} for kind in ("inputs", "outputs"))
    return runtime.WithBits(run, inputs, outputs) if aten.bits else run


def run_joint(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    partition: Callable[[trace.JointGraph], Iterable[fx.Node]] | None = None,
    forward_compiler: Compiler | None = None,
    backward_compiler: Compiler | None = None,
    above: tuple[tuple[int, ...], ...] = (),
    entered: Sequence[int] | None = None,
    hidden: Sequence[str] = (),
) -> runtime.Training:
    """Trace a graph and its gradients, and return one that records a node; a compiler may take over each half.

    Compilers get a functional graph and its inputs; a backward's are fake tensors, since none has been computed.
    The backward is one then, which knows nothing of results that are made of others. above, entered: see `trace_joint`.
    """
    whole = backward_compiler is not None
    joint = trace.trace_joint(gm, example_inputs, above=above, entered=() if whole else entered, hidden=hidden)
    division = trace.divide(joint, (partition or trace.min_cut)(joint))
    division = division if whole else trace.parted(division, joint.groups, joint.behind)

    def run(aten: AtenGraph, compiler: Compiler | None, inputs: list[Any]) -> Callable[..., tuple[Any, ...]]:
        return run_aten(aten, None if compiler is None else compiler(aten.gm, inputs))

    def backward(present: tuple[int, ...]) -> tuple[Callable[..., Any], Sequence[int | None]]:
        part = trace.backward_given(division, present)
        inputs = [n.meta["val"] for n in part.backward.gm.graph.nodes if n.op == "placeholder"]
        return run(part.backward, backward_compiler, inputs), part.order

    def again(
        present: tuple[int, ...], begun: Sequence[int], tangents: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> runtime.Training:
        examples = [*examples_of_inputs, *fakes_of([*inputs[len(examples_of_inputs) :], *tangents])]
        enters, names = entered if above else begun, hidden or division.plan.hidden
        return run_joint(gm, examples, partition, forward_compiler, backward_compiler, (*above, present), enters, names)

    def traced(positions: tuple[int, ...]) -> tuple[AtenGraph, Callable[..., Any], Sequence[int | None]]:
        part = trace.backward_given(division, positions)
        return part.backward, run_aten(part.backward), part.order

    examples_of_inputs = fakes_of(example_inputs)
    forward = run(division.forward, forward_compiler, list(example_inputs))
    constants = {**graph_key.constants_of(gm), **joint.constants}
    return runtime.Training(division.plan, forward, constants, backward, again, traced)


def results_of(gm: fx.GraphModule) -> list[Any]:
    """What capture knows of each result."""
    results: Any = gm.graph.output_node().args[0]
    returned = results if isinstance(results, (tuple, list)) else [results]
    return [r.meta.get("val") if isinstance(r, fx.Node) else None for r in returned]


def with_views(run: Callable[..., tuple[Any, ...]], gm: fx.GraphModule) -> Callable[..., tuple[Any, ...]]:
    """A compiled graph whose results that are views to autograd know what they are views of, and how they may be
    written to."""
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return run
    inputs = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    rows, vals, bases = [], results_of(gm), {id(val): ("input", i) for i, val in enumerate(inputs)}
    bases |= {id(val): ("result", i) for i, val in enumerate(vals) if val is not None}
    for i, val in enumerate(vals):
        if isinstance(val, torch.Tensor) and val._is_view() and bases.get(id(val)) == ("result", i):
            creation = torch._C._autograd._get_creation_meta(val)  # type: ignore[attr-defined]
            rows.append(runtime.ViewRow(i, *bases.get(id(val._base), ("result", i)), creation))
    return runtime.AutogradViews(run, rows) if rows else run


class _SizesOf:
    """The symbols in the sizes of a graph's inputs, and the graph as a function of the numbers that they are."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm = gm
        self.places = symbol_places(n for n in gm.graph.nodes if n.op == "placeholder")

    def numbers(self, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
        """The numbers."""
        return {name: inputs[i].shape[dim] for name, (i, dim) in self.places.items()}

    def run(self, *inputs: torch.Tensor) -> Any:
        """Run the graph's nodes."""
        numbers, arguments, values = self.numbers(inputs), iter(inputs), dict[fx.Node, Any]()
        results: Any = ()

        def number(value: Any) -> Any:
            if isinstance(value, fx.Node):
                return values[value]
            if isinstance(value, torch.SymFloat):
                return float_of(value.node.formula, lambda e: e.evaluate(numbers))
            return _number(size_of(value), numbers) if isinstance(value, torch.SymInt) else value

        for node in self.gm.graph.nodes:
            args: Any = map_aggregate(node.args, number)
            if node.op == "call_function":
                values[node] = node.target(*args, **map_aggregate(node.kwargs, number))
            elif node.op == "output":
                results = args[0]
            else:
                values[node] = next(arguments) if node.op == "placeholder" else getattr(self.gm, node.target)
        return results


def _number(size: Any, numbers: Mapping[str, int]) -> int:
    return size.evaluate(numbers) if isinstance(size, Expr) else size  # type: ignore[no-any-return]


def seen_as(base: torch.Tensor, alias: Alias, sizes: Mapping[str, int]) -> torch.Tensor:
    """Return a tensor on the memory of `base`, as `alias` describes it."""
    shape, strides = (tuple([_number(size, sizes) for size in row]) for row in (alias.shape, alias.strides))
    base = base.detach()  # a tensor of its own, which has no history where no gradient is asked for
    return runtime.seen(base, (shape, strides, _number(alias.offset, sizes)), {})
