"""One program ahead of time: a call captured as one graph and compiled, and how its results are put together."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import fx

from firebrick import pipeline
from firebrick.api import argument_tree
from firebrick.api.recorded_calls import Call, kind_of, shown
from firebrick.api.settings import Settings
from firebrick.artifact import Artifact
from firebrick.capture import hook
from firebrick.capture.frame import Capture, FrameReport
from firebrick.capture.marks import mark_dynamic
from firebrick.config import Config
from firebrick.errors import ConfigError
from firebrick.ir.index.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled call. inputs: numbers of the call's tensors that the graph takes. result: a tree; a tensor's number
    there is that of a result of the graph, or -1 - n for the call's tensor n. sizes: those that it serves, if many."""

    call: Call
    artifact: Artifact
    constants: dict[str, torch.Tensor]
    inputs: list[int]
    result: list[Any]
    sizes: SizesTaken | None


class SizesTaken(NamedTuple):
    """The sizes that a program serves. inputs: numbers of its call's tensors; shapes: theirs, with names of symbols;
    tensors: those of the call it was made of, see `Call`; symbols: [name, lowest, highest]; facts: what was decided."""

    inputs: list[int]
    shapes: list[list[Any]]
    tensors: list[list[Any]]
    symbols: list[list[Any]]
    facts: list[list[Any]]

    def problem(self, tensors: Sequence[torch.Tensor]) -> str:
        """Why a call with such tensors is not served; empty if it is."""
        values: dict[str, int] = {}
        for number, shape in zip(self.inputs, self.shapes, strict=True):
            tensor, (kind, was, strides) = tensors[number], self.tensors[number]
            alike = kind_of(tensor) == kind and tensor.dim() == len(shape)
            pairs = zip(tensor.shape, shape, strict=True) if alike else ()
            alike = alike and all(n == (values.setdefault(s, n) if type(s) is str else s) for n, s in pairs)
            dense = torch.empty(was, device="meta").stride() == tuple(strides)
            if not alike or not (tensor.is_contiguous() if dense else list(tensor.stride()) == strides):
                return f"the program is for {shown(kind, shape)}, got {shown(kind_of(tensor), [*tensor.shape])}"
        sizes = Sizes()
        for name, lo, hi in self.symbols:
            if not lo <= values.get(name, lo) <= hi:
                return f"the program is for sizes from {lo} to {hi}, got {values[name]}"
            sizes.symbol(values.get(name, lo), lo, hi)
        for row in self.facts:
            if not sizes.take([row]):
                return f"the program is for sizes where {row[1]} {row[0]} 0 is {row[2]}, as decided at {row[3]}"
        return ""


def serves(recorded: Call, sizes: SizesTaken | None, call: Call, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the program of a recorded call serves another."""
    return recorded == call if sizes is None else recorded.tree == call.tree and not sizes.problem(tensors)


def ahead(original: Any, signature: inspect.Signature, call: Call, config: Config, *, many: bool = False) -> Program:
    """Compile a call; nothing is computed. many: for all sizes of the dimensions that vary.

    Raises:
        ConfigError: something of the call, its result or its effects can't be saved.
        Unsupported: it is not one graph.
    """
    if call.problem:
        raise ConfigError(f"a call was compiled whose arguments can't be saved: {call.problem}")
    dynamic = (config.dynamic or None) if many else False
    backend = _Backend(replace(config, fullgraph=True, dynamic=dynamic))
    settings = Settings.make(backend, fullgraph=True, dynamic=dynamic)
    tensors = call.examples()
    for i, d in call.varying if many else ():
        mark_dynamic(tensors[i], d)
    inputs, tree = one_graph(original, signature, call, tensors, backend, settings)
    assert backend.artifact is not None
    sizes = backend.sizes_taken(call, inputs) if many else None
    return Program(call, backend.artifact, backend.constants, inputs, tree, sizes)


def one_graph(
    original: Any,
    signature: inspect.Signature,
    call: Call,
    tensors: list[torch.Tensor],
    backend: OneGraph,
    settings: Settings,
) -> tuple[list[int], list[Any]]:
    """Capture a call with other tensors; the numbers of those that its graph takes, and the tree of its result.

    Raises:
        ConfigError: something of the call, its result or its effects can't be saved.
        Unsupported: it is not one graph.
    """
    args, kwargs = _passed(signature, argument_tree.read(call.tree, lambda i: tensors[i]))
    effects = _Effects()
    with torch.no_grad():
        capturer = Capture(backend, settings.config, on_frame=effects.note, scope=backend)
        result = hook.Wrapped(original, capturer, backend)(*args, **kwargs)
    effects.check()
    numbers = {id(t): -1 - i for i, t in enumerate(tensors)}
    if not backend.graphs:
        raise ConfigError(f"nothing is computed in a call with {call.show()}")
    inputs = [-1 - numbers.get(id(t), -1 - len(tensors)) for t in backend.tensors]
    if any(i >= len(tensors) for i in inputs):
        raise ConfigError("the program reads a tensor that is neither an argument nor constant")
    numbers.update((id(t), i) for i, t in enumerate(backend.results))
    try:
        return inputs, argument_tree.write(result, lambda t: numbers[id(t)])
    except KeyError:
        raise ConfigError("the call returns a tensor that the program does not compute") from None
    except argument_tree.NotPlain as error:
        raise ConfigError(f"the call returns what can't be saved: {error}") from None


class _Effects:
    """Refuses what a program in a file would not do: all that a call changes but tensors, unless it changes it back."""

    def __init__(self) -> None:
        self.before: list[tuple[str, Any, list[Any]]] = []

    def note(self, report: FrameReport) -> None:
        """Keep what is there before the frame runs."""
        for name, obj in report.effects:
            content = _content(obj)
            if content is None:
                raise _changes(name)
            self.before.append((name, obj, content))

    def check(self) -> None:
        for name, obj, content in self.before:
            if list(map(id, _content(obj) or ())) != list(map(id, content)):
                raise _changes(name)


def _changes(name: str) -> ConfigError:
    return ConfigError(f"the call changes {name}, and a saved program only changes tensors")


def _content(obj: Any) -> list[Any] | None:
    """What a container or an object holds; None if that is not known."""
    if isinstance(obj, dict):
        return [*obj, *obj.values()]
    if isinstance(obj, (list, set)):
        return list(obj)
    plain = getattr(type(obj), "__setattr__", None) is object.__setattr__ and hasattr(obj, "__dict__")
    return _content(vars(obj)) if plain else None


def _passed(signature: inspect.Signature, arguments: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Pass arguments by name where that is possible, and defaults not at all."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    rest = any(arguments.get(n) for n, p in signature.parameters.items() if p.kind is p.VAR_POSITIONAL)
    for name, parameter in signature.parameters.items():
        if name not in arguments:
            continue
        value = arguments[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += value
        elif parameter.kind is parameter.VAR_KEYWORD:
            kwargs.update(value)
        elif parameter.kind is parameter.POSITIONAL_ONLY or (rest and parameter.kind is not parameter.KEYWORD_ONLY):
            args.append(value)
        elif value is not parameter.default:
            kwargs[name] = value
    return args, kwargs


class OneGraph:
    """A backend that takes one graph; its calls only make tensors like the results."""

    def __init__(self) -> None:
        self.graphs = 0
        self.tensors: Sequence[torch.Tensor] = ()
        self.results: list[torch.Tensor] = []

    def take(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        """Keep, or compile, the graph."""
        raise NotImplementedError

    def sizes_taken(self, call: Call, inputs: list[int]) -> SizesTaken:
        """The sizes that what was taken serves.

        Raises:
            ConfigError: one of them is in the result.
        """
        if self.sizes.shown:
            raise ConfigError("a size that varies is a result of the call, and a program gives tensors only")
        symbols = [[name, v.lo, v.hi] for name, v in self.sizes.symbols.items()]
        facts = [[*fact, where.rpartition("/")[2]] for *fact, where in self.sizes.to_json()]
        return SizesTaken(inputs, self.shapes, call.tensors, symbols, facts)

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        """Take it."""
        self.graphs += 1
        if self.graphs > 1:
            raise ConfigError("the call is compiled as several graphs, and only one can be saved")
        self.sizes: Sizes = gm.meta["fake_mode"].sizes
        fakes = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
        self.shapes = [[n if type(n) is int else n.node.expr.show() for n in fake.shape] for fake in fakes]
        self.take(gm, example_inputs)
        outputs: Any = gm.graph.output_node().args[0]
        metas = [node.meta["val"] for node in outputs]

        def call(*arguments: Any) -> tuple[torch.Tensor, ...]:
            self.tensors = arguments
            shapes = [[n if type(n) is int else 1 for n in meta.shape] for meta in metas]
            self.results = [
                torch.empty_strided(m.shape, m.stride(), dtype=m.dtype, device=m.device)
                if all(type(n) is int for n in (*m.shape, *m.stride()))
                else torch.empty(shape, dtype=m.dtype, device=m.device)
                for m, shape in zip(metas, shapes, strict=True)
            ]
            return tuple(self.results)

        return call


class _Backend(OneGraph):
    """Compiles the graph."""

    reads_nodes_only = takes_symbols = True
    checks_data = False

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.artifact: Artifact | None = None
        self.constants: dict[str, torch.Tensor] = {}

    def take(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        self.artifact, self.constants = pipeline.compile_ahead(gm, example_inputs, self.config)
