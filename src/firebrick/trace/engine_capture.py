"""What torch's engine does in one backward, as an FX graph: the engine walks the autograd graph and calls a `Recorder`.

The engine itself collects what the nodes saved, and names the structure of the graph by a key, under which it keeps
what `end_capture` returned; only a graph with a new key is walked. Tensors are stood for by empty ones meanwhile.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from firebrick.errors import CompileError
from firebrick.runtime import engine_steps as steps
from firebrick.runtime.engine_steps import EngineCall, PlainCall
from firebrick.runtime.training import NodeBackward, is_compiled_node, is_wanted
from firebrick.trace.graph_key import graph_text

_functions: dict[str, EngineCall | PlainCall] = {}
"""Functions of torch's nodes by name; the engine tells each once a process."""

_ADD = EngineCall("add_gradients", lambda a, b: b if a is None else a if b is None else torch.add(a, b))


class Recorder:
    """Has the methods that torch's engine calls while it walks a graph; none raises, since the engine would be left
    with saved tensors that stand for others. on_end: makes what the engine keeps of a graph and its outputs."""

    def __init__(self, on_end: Callable[[Recorder, list[Any]], tuple[Any, Any]]) -> None:
        self.graph, self.on_end = fx.Graph(), on_end
        self.hooks: set[int] = set()
        self.constants: list[torch.Tensor] = []
        self.refused, self.walks, self.accumulates = "", False, True
        self._nodes: dict[int, fx.Node] = {}
        self._keep: list[torch.Tensor] = []
        self._hooks: dict[int, fx.Node] = {}
        self._places = self.graph.placeholder("hooks")
        self._last: fx.Node = self._places

    # ------------------------------------------------------------ values

    def _stand_in(self, node: fx.Node) -> torch.Tensor:
        dummy = torch.empty(0)
        self._nodes[id(dummy)] = node
        self._keep.append(dummy)
        return dummy

    def _arg(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            node = self._nodes.get(id(value))
            if node is None:  # zeros for a gradient that is not there
                self.constants.append(value)
                node = self._nodes[id(value)] = self._input()
                self._keep.append(value)
            return node
        if isinstance(value, (tuple, list)):
            return type(value)([self._arg(v) for v in value])
        if not (value is None or isinstance(value, (bool, int, float, complex, str, torch.device, torch.dtype))):
            self.refused = self.refused or f"a node has an argument of type {type(value).__name__}"
            return None
        return value

    def _input(self) -> fx.Node:
        with self.graph.inserting_after(self._last):
            self._last = self.graph.placeholder(f"input_{len(self.graph.nodes)}")
        return self._last

    def _call(self, target: Any, args: tuple[Any, ...], wanted: Sequence[bool]) -> list[Any]:
        return self._results(self.graph.call_function(target, tuple([self._arg(a) for a in args])), wanted)

    def _results(self, node: fx.Node, wanted: Sequence[bool]) -> list[Any]:
        rows = [self.graph.call_function(operator.getitem, (node, i)) if w else None for i, w in enumerate(wanted)]
        return [None if row is None else self._stand_in(row) for row in rows]

    def _plain(self, target: Any, hook_id: int | None, *args: Any) -> fx.Node:
        first = () if hook_id is None else (self._hook(hook_id),)
        return self.graph.call_function(target, (*first, *[self._arg(a) for a in args]))

    def _hook(self, at: int) -> fx.Node:
        self.hooks.add(at)
        if at not in self._hooks:
            self._hooks[at] = self.graph.call_function(operator.getitem, (self._places, at))
        return self._hooks[at]

    # ------------------------------------------------------------ what the engine calls

    def begin_capture(
        self, inputs: list[Any], sizes: Any, scalars: Any, origins: Any, accumulate_grad: bool, check_nans: bool = False
    ) -> tuple[str, list[Any], list[Any], list[Any]]:
        """The tensors that the nodes hold."""
        self.walks, self.accumulates = True, accumulate_grad
        if sizes or scalars:
            self.refused = "it has other sizes than one like it before"
        if any(t.layout != torch.strided or type(t) not in (torch.Tensor, torch.nn.Parameter) for t in inputs):
            self.refused = "a node holds a tensor that is not plain"
        return "0", [self._stand_in(self._input()) for _ in inputs], list(sizes), list(scalars)

    def end_capture(self, outputs: Sequence[Any]) -> tuple[Any, Any]:
        """All nodes are walked."""
        self.walks = False
        flat = [self._arg(t) for t in outputs]
        if self.refused:
            raise CompileError(self.refused)
        return self.on_end(self, flat)

    def close(self, *_: Any) -> None:
        """The engine has done with it; nor is it kept which node comes next, and why the key is new."""

    set_node_origin = log_compile_reasons = close

    def bind_function(self, name: str, fn: Callable[..., Any], is_custom: bool, is_traceable: bool) -> str:
        """A function of a kind of node, which the engine names but once."""
        name = f"custom_{len(_functions)}_{name}" if is_custom else name
        _functions[name] = PlainCall(name, fn) if is_custom else EngineCall(name, fn)
        return name

    def apply_functional(self, name: str, grads: Any, args: Sequence[Any], metas: Sequence[Any]) -> list[Any]:
        """A node of torch's."""
        function = _functions.get(name)
        if function is None:
            self.refused = f"{name} was told to another compiler"
            return [self._stand_in(self._places) for _ in metas]
        if "Embedding" in name and any(a is True for a in args):
            self.refused = self.refused or "the gradient of an embedding is sparse, or scaled by frequencies"
        return self._call(function, (list(grads), *args), [True] * len(metas))

    def validate_outputs(self, _: Any, outputs: Sequence[Any], args: Sequence[Any], metas: Any) -> list[Any]:
        """Gradients get the sizes and the dtype of what they are for."""
        wanted = [g is not None for g in outputs]
        return self.apply_functional("validate_outputs", outputs, args, wanted) if any(wanted) else list(outputs)

    def accumulate(self, one: Any, other: Any) -> Any:
        """Two gradients of one tensor meet."""
        return self._stand_in(self.graph.call_function(_ADD, (self._arg(one), self._arg(other))))

    def accumulate_grad(self, leaf: Any, *args: Any) -> Any:
        """A gradient arrives at a leaf. torch 2.13 also tells what the leaf has, before it nothing may come back."""
        result = self._stand_in(self._plain(steps.ACCUMULATE, None, leaf, args[-2]))
        return result if len(args) > 2 else None

    def proxy_call_backward(
        self, inputs: Any, metas: Sequence[Any], saved: Any, hook_id: int, ctx: Any, *state: Any
    ) -> Any:
        """A custom Function, or a graph that is compiled."""
        wanted = [meta is not None for meta in metas]
        if is_compiled_node(ctx) and ctx.part.link:
            if is_wanted(ctx, self.accumulates):
                self.refused = self.refused or "a result that others are made of wants a gradient"
            return (*[None] * (len(metas) - 2), *inputs, None)
        if is_compiled_node(ctx):
            return tuple(self._call(EngineCall("compiled", NodeBackward.of(ctx)), (list(saved), list(inputs)), wanted))
        node = self._plain(steps.FUNCTION, hook_id, list(saved), list(inputs), len(metas))
        return tuple(self._results(node, wanted))

    def call_copy_slices_prologue(self, *_: Any) -> list[Any]:
        """A write to a part of a tensor begins."""
        self.refused = "a tensor was written to in part, through a view, where nothing is compiled"
        return [self._stand_in(self._places) for _ in range(3)]

    def call_copy_slices_epilogue(self, needs: Sequence[bool], *_: Any) -> list[Any]:
        """Such a write ends."""
        return [self._stand_in(self._places) for _ in needs]

    def unpack_hook(self, *_: Any) -> Any:
        """A saved tensor was packed by a hook."""
        self.refused = "saved tensors are packed by hooks"
        return self._stand_in(self._places)

    def tensor_pre_hook(self, inputs: list[Any], hook_id: int, at: int) -> list[Any]:
        """A hook of a tensor."""
        inputs[at] = self._stand_in(self._plain(steps.TENSOR_HOOK, hook_id, inputs[at]))
        return inputs

    def cpp_tensor_pre_hook(self, inputs: list[Any], hook_id: int, at: int) -> list[Any]:
        """A gradient is retained."""
        self.refused = "a gradient is retained (retain_grad)"
        return inputs

    def pre_hook(self, inputs: Sequence[Any], hook_id: int) -> list[Any]:
        """A hook before a node."""
        return self._results(self._plain(steps.BEFORE_NODE, hook_id, list(inputs)), [True] * len(inputs))

    def post_hook(self, outputs: list[Any], inputs: Sequence[Any], hook_id: int) -> list[Any]:
        """A hook behind a node."""
        node = self._plain(steps.AFTER_NODE, hook_id, list(outputs), list(inputs))
        return self._results(node, [True] * len(outputs))

    def post_acc_grad_hook(self, leaf: Any, hook_id: int) -> list[Any]:
        """A hook behind an AccumulateGrad; `leaf` is what `accumulate_grad` returned, or the leaf."""
        node = self._arg(leaf)
        leaf = node.args[0] if node.target is steps.ACCUMULATE else node
        self.graph.call_function(steps.AFTER_ACCUMULATION, (self._hook(hook_id), leaf))
        return [self._keep[-1]]


def _node_call(node: NodeBackward) -> EngineCall:
    """A compiled graph's backward as one step; by name in the disk cache where it has a text."""
    text = node.text(graph_text)
    digest = hashlib.sha256(text.encode()).hexdigest()[:32] if text is not None else "of_a_graph"
    return EngineCall(f"backward_{digest}", node, stable=text is not None)


def parts(graph: fx.Graph) -> list[tuple[list[fx.Node], list[fx.Node]]]:
    """Cut a recorded graph: calls that are one graph, and the plain calls that follow it, as often as needed.

    Calls without side effects run as soon as they can, however many plain calls stand before them.
    """
    calls = [n for n in graph.nodes if n.op == "call_function" and not _is_hook(n)]
    plain = {n for n in calls if isinstance(n.target, PlainCall)}
    for node in calls:
        if node.target is operator.getitem and node.args[0] in plain:
            plain.add(node)
    ready = {n for n in graph.nodes if n.op == "placeholder" or _is_hook(n)}
    waiting, cut = calls, []
    while waiting:
        pure = [n for n in waiting if n not in plain and _ready(n, ready)]
        after: list[fx.Node] = []
        for node in (n for n in waiting if n in plain):
            if not _ready(node, ready):
                break
            after.append(node)
        cut.append((pure, after))
        waiting = [n for n in waiting if n not in ready]
    return cut


def _ready(node: fx.Node, ready: set[fx.Node]) -> bool:
    ready.update([node] * (fine := ready.issuperset(node.all_input_nodes)))
    return fine


def _is_hook(node: fx.Node) -> bool:
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, fx.Node) and source.target == "hooks"


def segment(pure: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node], none: set[int]) -> Any:
    """A graph of `pure` for the inputs, without those at `none`, which are None."""
    graph, copies = fx.Graph(), dict[fx.Node, Any]()
    for i, node in enumerate(inputs):
        copies[node] = None if i in none else graph.placeholder(f"in_{i}")
    for node in pure:
        args = map_aggregate(node.args, lambda a: copies[a] if isinstance(a, fx.Node) else a)
        target: Any = node.target
        if isinstance(getattr(target, "fn", None), NodeBackward):
            target = _node_call(target.fn)
        copies[node] = graph.call_function(target, args)  # type: ignore[arg-type]
    graph.output(tuple([copies[n] for n in outputs]))
    return fx.GraphModule(torch.nn.Module(), graph)
