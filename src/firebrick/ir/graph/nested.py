"""Calls of graphs within a graph: function transforms, branches and loops, as callables that a node can have as target.

A body is a graph of its own. What it uses from outside comes as arguments: `lifted` tensors, behind its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import fx
from torch.utils import _pytree as pytree

CHECKPOINT: Any = getattr(torch.utils.checkpoint.checkpoint, "__wrapped__", torch.utils.checkpoint.checkpoint)
"""`checkpoint` as torch defines it, without what keeps torch's compiler out."""

_FAKE: Any = torch._C._TorchDispatchModeKey.FAKE


class Body:
    """A captured function: a graph from tensors to a flat tuple, and the structure of what the function returned."""

    def __init__(self, graph: fx.GraphModule, leaves: list[Any], spec: pytree.TreeSpec) -> None:
        self.graph, self.spec = graph, spec
        self.leaves = leaves  # a number for a result of the graph, boxed otherwise
        self.run: Callable[..., Any] = graph.forward

    def __call__(self, tensors: Sequence[Any], lifted: Sequence[Any]) -> Any:
        """What the function returns for its tensors."""
        results = self.run(*tensors, *lifted)
        leaves = [results[leaf] if isinstance(leaf, int) else leaf[0] for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


class Nested:
    """A node's target that runs graphs.

    Attributes:
        bodies: the graphs.
        key: what else tells two of a class apart, as text; None: it has none that is equal in every process.
        splits: whether a trace can't go through it, so that graphs are compiled apart before and behind it.
        saves: it takes `keep`, a function of what a forward must save for its backward.
    """

    splits = saves = False

    def __init__(self, name: str, bodies: tuple[Body, ...], key: str | None = "") -> None:
        self.__name__ = self.__qualname__ = name
        self.bodies, self.key = bodies, key

    def __call__(self, *args: Any) -> Any:
        """Run it."""
        raise NotImplementedError(self.__name__)

    def __repr__(self) -> str:
        return self.__name__


class Transform(Nested):
    """`api(body, **options)(*args, **kwargs)`, or `api(body, *args, **options)` where `direct`."""

    def __init__(
        self, api: Callable[..., Any], body: Body, options: Mapping[str, Any], args: Any, *, direct: bool
    ) -> None:
        structure = pytree.tree_map(lambda leaf: leaf if isinstance(leaf, (int, float, str)) else None, args)
        stable = "context_fn" not in options
        super().__init__(api.__name__, (body,), f"{dict(options)!r} {structure!r}" if stable else None)
        self.api, self.options, self.direct = api, options, direct

    def __call__(self, args: Any, kwargs: Any, lifted: Sequence[Any]) -> Any:
        """Transform the body and call it."""
        body = self.bodies[0]

        def run(*inner: Any, **named: Any) -> Any:
            leaves = pytree.tree_leaves((inner, named))
            return body([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)], lifted)

        return self.apply(run, args, kwargs)

    def apply(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Transform a function and call it; the contexts of a checkpoint are not for capture's fake tensors."""
        options, fake = self.options, torch._C._get_dispatch_mode(_FAKE) is not None
        if fake and "context_fn" in options:
            options = {name: option for name, option in options.items() if name != "context_fn"}
        if self.direct:
            return self.api(function, *args, **options, **kwargs)
        return self.api(function, **options)(*args, **kwargs)


class Branch(Nested):
    """`torch.cond`: one of two bodies without arguments of their own."""

    splits = True

    def __init__(self, bodies: tuple[Body, Body]) -> None:
        super().__init__("cond", bodies)

    def __call__(self, condition: Any, lifted: Sequence[Sequence[Any]]) -> Any:
        """Run the body that the condition chooses."""
        chosen = 0 if condition else 1
        return self.bodies[chosen]((), lifted[chosen])


class Loop(Nested):
    """`while_loop`: as long as the first body gives true, the second makes the next values."""

    splits = True

    def __init__(self, bodies: tuple[Body, Body]) -> None:
        super().__init__("while_loop", bodies)

    def __call__(self, values: Sequence[Any], lifted: Sequence[Sequence[Any]]) -> Any:
        """Run the loop."""
        test, step = self.bodies
        while test(values, lifted[0]):
            values = step(values, lifted[1])
        return tuple(values)


class Hooked(Nested):
    """`tensor.register_hook(body)`: what a trace's autograd calls with the gradient becomes part of the backward."""

    def __init__(self, body: Body) -> None:
        super().__init__("register_hook", (body,))

    def __call__(self, tensor: Any, lifted: Sequence[Any]) -> None:
        """Register it, where gradients are recorded."""
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: self.bodies[0]((gradient,), lifted))


class Held:
    """A comparison of sizes that data decide, as a graph function: it may be looked at by `torch.cond`."""

    def __init__(self, sign: str) -> None:
        self.sign = sign
        self.__name__ = self.__qualname__ = f"holds_{SIGNS[sign].__name__}"

    def __call__(self, left: Any, right: Any) -> torch.Tensor:
        """Whether it holds."""
        if isinstance(left, torch.SymInt) or isinstance(right, torch.SymInt):
            return torch.empty((), dtype=torch.bool)
        return torch.tensor(SIGNS[self.sign](left, right))


SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
