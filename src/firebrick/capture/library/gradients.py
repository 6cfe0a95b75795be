"""`torch.autograd.grad` as a call of the graph: traces run it on tensors that have the histories of eager mode.

Those of capture's own fake tensors can't be followed: calls of equal modules are replayed, other results follow from
rules of shapes. So what leads to the gradients is run once more, which tells what is None, and what eager mode refuses.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.inference_mode import storage_of
from firebrick.capture.library.known_callables import handles
from firebrick.capture.library.transforms import without_hooks
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value
from firebrick.capture.values.constant import NONE
from firebrick.capture.values.leaf import become_leaf, can_be_leaf
from firebrick.capture.values.sequence import TupleValue
from firebrick.capture.values.tensor import TENSOR_METHODS, TensorValue
from firebrick.fakes.mode import fake_of, with_kernels_in_python
from firebrick.fakes.segments import stands_apart

if TYPE_CHECKING:
    from firebrick.capture.graph import GraphBuilder

_NAMES = tuple(inspect.signature(torch.autograd.grad).parameters)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Histories:
    """The nodes of a graph, run once more: `values` has what they give, `foreign` the leaves that stand for tensors
    with a history outside of the graph, by identity, and their nodes."""

    def __init__(self, graph: GraphBuilder) -> None:
        self.graph, self.grad = graph, graph.grad_at_start
        self.values: dict[fx.Node, Any] = {}
        self.foreign: dict[int, fx.Node] = {}
        self.own_leaves: list[fx.Node] = []  # by `requires_grad_()`

    def gradients(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """What `torch.autograd.grad` gives for tensors of these nodes; raises Break: it can't be known."""
        return self._run(lambda: torch.autograd.grad(*fx.map_arg(arguments, self.values.__getitem__)))

    def escape(self, results: Sequence[TensorValue]) -> bool:
        """Whether histories that lead to leaves of the graph's own go on behind it, in one of some results."""
        try:
            reached = self._run(lambda: self.leaves([r for r in results if self.values[r.node].grad_fn is not None]))
        except Break:
            return True
        return not reached.isdisjoint([id(self.values[leaf]) for leaf in self.own_leaves])

    def _run(self, ask: Callable[[], Any]) -> Any:
        originals = {v.node: v.obj for v in (*self.graph.inputs, *self.graph._attribute_nodes.values())}
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(self.grad)
        try:
            with self.graph.mode, torch.autograd.set_multithreading_enabled(False):
                for node in [n for n in self.graph.graph.nodes if n not in self.values]:
                    self.values[node] = self._value(node, originals.get(node))
                self.grad = torch.is_grad_enabled()
                torch._C._set_grad_enabled(before)
                return ask()
        except Break:
            raise
        except Exception as error:
            text, refused = str(error).split("\n", 1)[0], isinstance(error, RuntimeError)
            broken = Break("fake-tensor-failed", f"torch.autograd.grad: {type(error).__name__}: {text}")
            broken.raises = lambda: refused
            raise broken from error
        finally:
            torch._C._set_grad_enabled(before)

    def _value(self, node: fx.Node, obj: torch.Tensor | None) -> Any:
        val = node.meta["val"]
        if node.op in ("placeholder", "get_attr"):
            leaf = fake_of(self.graph.mode, val)
            if obj is None or obj.grad_fn is None:
                return leaf
            self.foreign[id(leaf)] = node
            with torch.enable_grad():
                return leaf.clone()  # its history keeps the leaf
        if stands_apart(node):
            raise Break("unsupported-call", "torch.autograd.grad() where the graph is cut")
        if val is not None and not any(isinstance(v, torch.Tensor) for v in pytree.tree_leaves(val)):
            return val
        args, kwargs = fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
        method = node.op == "call_method"
        run: Any = getattr(args[0], str(node.target)) if method else node.target
        return with_kernels_in_python(lambda: run(*args[method:], **kwargs))

    def leaves(self, results: Sequence[TensorValue]) -> set[int]:
        """The leaves that results are made of, by identity."""
        leaves, seen = set[int](), set[Any]()
        waiting = [get_gradient_edge(self.values[result.node]).node for result in results]
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                leaves |= {id(node.variable)} if hasattr(node, "variable") else set()
                waiting += [other for other, _ in node.next_functions if other is not None]
        return leaves

    def check(self, interp: Interpreter, outputs: Sequence[TensorValue], inputs: Sequence[TensorValue]) -> None:
        """Guard that what leads to outputs is in the graph; raises Break: it may not be, or hooks see it."""
        leaves, outside = self.leaves(outputs), [value for value in inputs if value.obj is not None]
        foreign = [node for leaf, node in self.foreign.items() if leaf in leaves]
        if foreign and outside and [*dict.fromkeys(value.node for value in outside)] != foreign[:1]:
            raise Break("unsupported-call", "torch.autograd.grad() of what was made before the graph")
        reached = (value for value in self.graph.inputs if id(self.values[value.node]) in leaves)
        for value in (*reached, *outside) if outside else ():
            if not isinstance(value.obj, torch.nn.Parameter):
                value.get_attr(interp, "is_leaf")
        for value in outside:
            without_hooks(interp, value, "torch.autograd.grad() for")
            if value.get_attr(interp, "retains_grad").as_constant():
                raise Break("unsupported-call", "torch.autograd.grad() for a tensor that retains its gradient")


def _tensors(interp: Interpreter, value: Value) -> list[Any]:
    value = value.realize()
    items = [value] if isinstance(value, TensorValue) else [item.realize() for item in interp.iterate(value)]
    if not items or any(not isinstance(t, TensorValue) or t.owner or t.cls not in _PLAIN for t in items):
        raise Break("unsupported-call", "torch.autograd.grad() of what are no plain tensors")
    return items


@handles(torch.autograd.grad)
def _grad(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    graph, named = interp.tracer.graph, {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    outputs, inputs = (_tensors(interp, named.pop(name, NONE)) for name in ("outputs", "inputs"))
    grads = named.pop("grad_outputs", NONE).realize().as_argument()
    options = {name: value.realize().as_constant() for name, value in named.items()}
    retain, create, only, unused, batched, materialize = (options.get(name) for name in _NAMES[3:])
    odd = batched or only is False or (materialize and unused is False) or graph.switches - {torch._C._set_grad_enabled}
    if odd or graph.outer is not None or graph.inference.on or graph.replaced:
        raise Break("unsupported-call", "torch.autograd.grad() of batches, in inference mode, or in a transform")
    flags = bool(create if retain is None else retain), bool(create), True, bool(unused or materialize)
    arguments = [value.as_argument() for value in outputs], [value.as_argument() for value in inputs], grads, *flags
    graph.histories = histories = graph.histories or Histories(graph)
    results = histories.gradients(arguments)
    histories.check(interp, outputs, inputs)
    before = [t for t in pytree.tree_leaves([*histories.values.values()]) if isinstance(t, torch.Tensor)]
    shared = not {storage_of(t) for t in before}.isdisjoint([storage_of(r) for r in results if r is not None])
    if shared or (materialize and None in results):
        raise Break("unsupported-call", "torch.autograd.grad() gives zeros, or memory that was there before")
    node = graph.graph.create_node("call_function", torch.autograd.grad, arguments)
    node.meta["val"] = histories.values[node] = results
    parts = [graph.graph.create_node("call_function", operator.getitem, (node, i)) for i in range(len(results))]
    for new_node in (node, *parts):
        new_node.meta["stack"] = interp.user_stack()
    graph.op_count += 1
    return TupleValue([NONE if r is None else graph.renew(part, r) for part, r in zip(parts, results, strict=True)])


def _requires_grad(interp: Interpreter, value: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """A call of the graph, for gradients that are asked for in it; the leaf of others is made before it."""
    flags = [*args, *kwargs.values()]
    if len(flags) > 1 or kwargs.keys() - {"requires_grad"}:
        raise Break("unsupported-call", "Tensor.requires_grad_() is called with arguments that it does not take")
    flag = interp.flag(flags[0] if flags else None, True)
    if flag is value.get_attr(interp, "requires_grad").as_constant():
        return value
    graph, fake = interp.tracer.graph, value.fake
    new = value.obj is None and value.cls is torch.Tensor and value.owner is None and value.data_version is None
    inside = new and graph.outer is None and not graph.inference.on and fake.layout is torch.strided
    if inside and fake.is_leaf and can_be_leaf(value):
        if flag and graph.leaves_before:
            return become_leaf(interp, value)
        graph.histories = graph.histories or Histories(graph)
        value.node = graph.graph.create_node("call_method", "requires_grad_", (value.node, flag))
        value.node.meta.update(val=fake.requires_grad_(flag), stack=interp.user_stack())
        graph.histories.own_leaves.append(value.node)
        interp.tracer.effects.outside += 1  # a call of a module that does so is not replayed
        return value
    if flag and _is_as_given(interp, value):
        value._guard(interp)  # as it is before the graph, where the call is made
        interp.tracer.prelude.add(torch.Tensor.requires_grad_, [value.source])
        value.obj = value.obj.detach().requires_grad_()  # type: ignore[union-attr]
        fake.requires_grad_()
        return value
    raise Break("unsupported-call", "Tensor.requires_grad_() is called")


def _is_as_given(interp: Interpreter, value: TensorValue) -> bool:
    """Whether a tensor was given to the frame, and nothing of the graph has read or written it."""
    graph, obj = interp.tracer.graph, value.obj
    if type(obj) is not torch.Tensor or value.source is None or graph.outer is not None or graph.inference.on:
        return False
    unread = value.node.op == "placeholder" and not value.node.users and value.data_version is None
    clean = unread and not value.attributes and not obj.is_inference() and obj.is_floating_point()
    return clean and graph.sharing(value.fake) == [value] and not graph.written


TENSOR_METHODS["requires_grad_"] = _requires_grad
