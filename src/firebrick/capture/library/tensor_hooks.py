"""`Tensor.register_hook` on what the graph makes: the hook's graph is a node, and traces of gradients run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.hooks import RemovableHandle

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.library.transforms import Sub
from firebrick.capture.values.base import Value
from firebrick.capture.values.tensor import TENSOR_METHODS, TensorValue
from firebrick.ir.graph.nested import Hooked

if TYPE_CHECKING:
    from firebrick.capture.interpreter.interpreter import Interpreter
    from firebrick.capture.values.base import Args, Kwargs


class _Handle(Value):
    """What `register_hook` returns; a hook of a graph is not removed, so whatever uses it ends the graph."""

    __slots__ = ()
    cls = RemovableHandle


def _register_hook(interp: Interpreter, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    tracer = interp.tracer
    (function,) = (*args, *kwargs.values())
    node = tensor.as_argument()
    is_made = node.op in ("call_function", "call_method") and node.graph is tracer.graph.graph
    if not is_made or tracer.graph.outer is not None or tensor.fake.grad_fn is None:
        raise Break("unsupported-call", f"Tensor.register_hook() is called on {tensor.describe()}")
    sub, effects = Sub(interp), tracer.effects.count
    gradient = torch.empty_like(tensor.fake, requires_grad=False)
    body, _ = sub.capture(function, [sub.argument(gradient)], {}, grad=False)
    if tracer.effects.count != effects or sub.graph.changes_arguments():
        raise Break("unsupported-call", "Tensor.register_hook() with a hook that does more than to give a gradient")
    tracer.graph.call(interp, "call_function", Hooked(body), (tensor, sub.lifted()), {})
    return _Handle(None)


TENSOR_METHODS["register_hook"] = _register_hook
