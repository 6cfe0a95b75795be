"""Patterns: a plain PyTorch function, traced once, as a small immutable graph with captures."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from firebrick.errors import PassError
from firebrick.extend.pass_base import TraceFunction
from firebrick.ir.graph.calls import COMMUTATIVE, call_of, is_mutating, is_pointwise


@dataclass(frozen=True, slots=True)
class Capture:
    """A parameter of the pattern; a scalar one matches a number, the other kind a tensor."""

    name: str
    scalar: bool


@dataclass(frozen=True, slots=True)
class Ref:
    """A value that another node of the pattern computes."""

    index: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant that must be there as it is; `size` marks numbers that came from the example's shapes."""

    value: Any
    size: bool = False


Operand = Capture | Ref | Literal | tuple["Operand", ...]


@dataclass(frozen=True, slots=True)
class PatternNode:
    """One call of the pattern.

    sinks: every node from here to the pattern's one output is pointwise in this value alone, so that a view or a
      cast between the two can be moved behind the output.
    """

    name: str
    arguments: tuple[tuple[str, Operand], ...]
    commutes: bool
    sinks: bool


@dataclass(frozen=True, slots=True)
class Pattern:
    """Nodes in topological order; `outputs` are indices of nodes."""

    nodes: tuple[PatternNode, ...]
    outputs: tuple[int, ...]
    captures: tuple[Capture, ...]

    def __str__(self) -> str:
        lines = []
        for i, node in enumerate(self.nodes):
            arguments = ", ".join(f"{name}={_show(operand)}" for name, operand in node.arguments)
            lines.append(f"%{i} = {node.name}({arguments})")
        return "\n".join([*lines, f"return {', '.join(f'%{i}' for i in self.outputs)}"])


def _show(operand: Operand) -> str:
    if isinstance(operand, tuple):
        return f"[{', '.join(map(_show, operand))}]"
    if isinstance(operand, Ref):
        return f"%{operand.index}"
    if isinstance(operand, Capture):
        return operand.name
    return "_" if operand.size else repr(operand.value)


_SCALARS = {"int", "float", "bool", "complex", "Number", "numbers.Number", "int | float", "float | int"}


def parameters_of(function: Callable[..., Any]) -> tuple[Capture, ...]:
    """The pattern's parameters; those annotated as numbers capture scalars.

    Raises:
        PassError: the function takes `*args` or `**kwargs`.
    """
    captures = []
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise PassError(f"pattern {function.__name__} needs named parameters, not *{p.name}")
        note = p.annotation
        scalar = note in _SCALARS if isinstance(note, str) else note in (int, float, bool, complex, numbers.Number)
        captures.append(Capture(p.name, scalar))
    return tuple(captures)


def trace_pattern(
    function: Callable[..., Any], trace: TraceFunction | None = None, examples: Sequence[torch.Tensor] = ()
) -> Pattern:
    """Trace a pattern function: with `trace` on example tensors (ATen level), else symbolically (torch level).

    Raises:
        PassError: the function can't be traced, writes in place, returns something that is no tensor, or has an
            output that is one of its own inputs.
    """
    captures = parameters_of(function)
    if trace is None:
        gm = _trace_symbolically(function, captures)
        scalars: dict[str, Any] = {}
    else:
        gm, scalars = _trace_on_examples(function, captures, trace, examples)
    return _read(function.__name__, gm, captures, scalars)


def _trace_symbolically(function: Callable[..., Any], captures: tuple[Capture, ...]) -> fx.GraphModule:
    """`fx.symbolic_trace`, but that one patches all modules meanwhile, which other threads may be calling."""
    tracer = fx.Tracer()
    tracer.graph, tracer.root, tracer.tensor_attrs = fx.Graph(), torch.nn.Module(), {}
    try:
        proxies = [tracer.proxy(tracer.graph.placeholder(c.name)) for c in captures]
        tracer.graph.output(tracer.create_arg(function(*proxies)))
        return fx.GraphModule(tracer.root, tracer.graph)
    except Exception as error:
        raise PassError(f"pattern {function.__name__} can't be traced: {error}") from error


def _trace_on_examples(
    function: Callable[..., Any], captures: tuple[Capture, ...], trace: TraceFunction, examples: Sequence[torch.Tensor]
) -> tuple[fx.GraphModule, dict[str, Any]]:
    tensors = [c for c in captures if not c.scalar]
    if len(examples) != len(tensors):
        raise PassError(
            f"pattern {function.__name__} has {len(tensors)} tensors and {len(examples)} examples",
            fix="give rule(examples=...) one tensor for each tensor parameter, in order",
        )
    # Numbers that no program contains stand for scalar parameters and are recognised in the traced graph.
    scalars = {c.name: 0.762951 + 0.013 * i for i, c in enumerate(captures) if c.scalar}
    by_name = dict(zip((c.name for c in tensors), range(len(tensors)), strict=True))

    def call(*tensors: torch.Tensor) -> Any:
        return function(*[scalars[c.name] if c.scalar else tensors[by_name[c.name]] for c in captures])

    try:
        return trace(call, list(examples)), scalars
    except Exception as error:
        raise PassError(f"pattern {function.__name__} can't be traced: {error}") from error


def _read(name: str, gm: fx.GraphModule, captures: tuple[Capture, ...], scalars: dict[str, Any]) -> Pattern:
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    bound = [c for c in captures if not c.scalar] if scalars or len(placeholders) != len(captures) else captures
    operand_of: dict[fx.Node, Operand] = dict(zip(placeholders, bound, strict=True))
    by_scalar = {value: next(c for c in captures if c.name == key) for key, value in scalars.items()}
    nodes: list[tuple[str, tuple[tuple[str, Operand], ...]]] = []
    outputs: list[fx.Node] = []
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            outputs = list(node.args[0]) if isinstance(node.args[0], (tuple, list)) else [node.args[0]]
            continue
        call = call_of(node)
        if call is None:
            raise PassError(f"pattern {name} holds {node.format_node()}, which is no call of an operation")
        if is_mutating(node):
            raise PassError(
                f"pattern {name} writes in place ({node.target})",
                fix="write it without in-place ops; at level aten, graphs are functional and both forms match",
            )
        sizes = call.name in ("view", "expand", "full", "new_zeros", "new_ones", "empty")
        arguments = tuple(
            (key, _operand(value, operand_of, by_scalar, size=sizes and key == "size"))
            for key, value in call.arguments.items()
        )
        operand_of[node] = Ref(len(nodes))
        nodes.append((call.name, arguments))
    refs = [operand_of.get(n) for n in outputs if isinstance(n, fx.Node)]
    if len(refs) != len(outputs) or not all(isinstance(r, Ref) for r in refs) or not nodes:
        raise PassError(f"pattern {name} must return tensors that it computes")
    indices = tuple(r.index for r in refs if isinstance(r, Ref))
    return Pattern(_with_flags(nodes, indices), indices, captures)


def _operand(value: Any, operand_of: dict[fx.Node, Operand], by_scalar: dict[Any, Capture], *, size: bool) -> Operand:
    if isinstance(value, fx.Node):
        return operand_of[value]
    if isinstance(value, (tuple, list)):
        return tuple(_operand(item, operand_of, by_scalar, size=size) for item in value)
    if isinstance(value, float) and value in by_scalar:
        return by_scalar[value]
    return Literal(value, size and isinstance(value, int))


def _refs(operand: Operand) -> list[int]:
    if isinstance(operand, Ref):
        return [operand.index]
    return [i for item in operand for i in _refs(item)] if isinstance(operand, tuple) else []


def _tensors(operand: Operand) -> int:
    if isinstance(operand, tuple):
        return sum(map(_tensors, operand))
    return int(isinstance(operand, Ref) or (isinstance(operand, Capture) and not operand.scalar))


def _with_flags(
    nodes: list[tuple[str, tuple[tuple[str, Operand], ...]]], outputs: tuple[int, ...]
) -> tuple[PatternNode, ...]:
    users: list[list[int]] = [[] for _ in nodes]
    for i, (_, arguments) in enumerate(nodes):
        for _, operand in arguments:
            for producer in _refs(operand):
                users[producer].append(i)
    unary = [is_pointwise(name) and sum(_tensors(o) for _, o in arguments) == 1 for name, arguments in nodes]
    sinks = [False] * len(nodes)
    for i in reversed(range(len(nodes))):
        last = outputs == (i,)
        sinks[i] = last or (bool(users[i]) and all(sinks[u] and unary[u] for u in users[i]) and len(outputs) == 1)
    return tuple(
        PatternNode(name, arguments, name in COMMUTATIVE, sinks[i]) for i, (name, arguments) in enumerate(nodes)
    )


def trace_torch(function: Callable[..., Any], inputs: int) -> fx.GraphModule:
    """The graph of torch calls that `function` makes on `inputs` tensors.

    Like `fx.symbolic_trace`, but for any callable, also one that takes `*args`.
    """
    tracer = fx.Tracer()
    tracer.root = torch.nn.Module()
    tracer.tensor_attrs = {}
    tracer.graph = fx.Graph(tracer_cls=fx.Tracer)
    proxies = [tracer.create_proxy("placeholder", f"in_{i}", (), {}) for i in range(inputs)]
    result = function(*proxies)
    tracer.create_node("output", "output", (tracer.create_arg(result),), {})
    return fx.GraphModule(tracer.root, tracer.graph)
