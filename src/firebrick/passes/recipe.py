"""Moves work from the graph to its recipe: what depends on frozen constants alone is computed once."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from firebrick.ir.graph.aten import AtenGraph
from firebrick.passes.layout import propagate_layouts


class RecipeBuilder:
    """Extends the recipe of one graph. Equal calls are made once. made: what is made of nothing is constant too."""

    def __init__(self, aten: AtenGraph, made: bool = False) -> None:
        self.aten, self.made = aten, made
        self.graph = aten.recipe if aten.recipe is not None else fx.Graph()
        self.sources: dict[str, fx.Node] = {str(n.target): n for n in self.graph.nodes if n.op == "get_attr"}
        self.sources.update((n.name, n) for n in self.graph.nodes if n.op == "call_function")
        self.copies: dict[fx.Node, fx.Node] = {}
        self.calls: dict[Any, fx.Node] = {}
        self._constant: dict[fx.Node, bool] = {}

    def is_constant(self, node: fx.Node) -> bool:
        """Whether a node of the main graph depends on frozen constants alone, by ops that may run ahead of time."""
        for n in _inputs_first(node, self._constant):
            inputs = n.all_input_nodes
            if n.op == "get_attr":
                self._constant[n] = n.target in self.aten.frozen or n.target in self.sources
            else:
                known = bool(inputs) or (self.made and n.op == "call_function")
                self._constant[n] = known and all(self._constant[i] for i in inputs) and _repeatable(n)
        return self._constant[node]

    def copy(self, node: fx.Node) -> fx.Node:
        """The recipe's node for a constant node of the main graph; what it needs is copied with it."""
        for n in _inputs_first(node, self.copies):
            args, kwargs = fx.map_arg((n.args, n.kwargs), self.copies.__getitem__)
            value = partial(n.meta.__getitem__, "val")
            self.copies[n] = (
                self._source(n) if n.op == "get_attr" else self._call(n.name, n.target, args, kwargs, value)
            )
        return self.copies[node]

    def call(
        self, name: str, target: OpOverload, *args: Any, like: torch.Tensor | None = None, **kwargs: Any
    ) -> fx.Node:
        """A call of the recipe on its own nodes. `like` gives its metadata, else the op's meta function does."""

        def value() -> Any:
            if like is not None:
                return like
            fakes = fx.map_arg(args, lambda n: n.meta["val"])
            mode = next(n.meta["val"] for n in args if isinstance(n, fx.Node)).fake_mode
            with mode, torch.no_grad():
                return target(*fakes, **kwargs)

        return self._call(name, target, args, kwargs, value)

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """A node of the recipe in a dtype."""
        same = node.meta["val"].dtype is dtype
        return node if same else self.call(f"{node.name}_cast", torch.ops.aten._to_copy.default, node, dtype=dtype)

    def use(self, node: fx.Node, before: fx.Node) -> fx.Node:
        """A get_attr node of the main graph, placed before another, that reads a node of the recipe."""
        gm = self.aten.gm
        name = str(node.target) if node.op == "get_attr" else node.name
        if not hasattr(gm, name):
            setattr(gm, name, node.meta["val"])
        with gm.graph.inserting_before(before):
            read = gm.graph.create_node("get_attr", name)
        read.meta = {"val": node.meta["val"], "stack": before.meta.get("stack", ())}
        self._constant[read] = True
        self.copies[read] = node
        return read

    def finish(self, moved: Mapping[fx.Node, torch.Tensor] | None = None) -> AtenGraph:
        """The graph with this recipe, less what nothing uses; `moved`: nodes that lie otherwise than such tensors."""
        if moved:
            propagate_layouts(self.aten.gm, moved)
        self.aten.gm.graph.eliminate_dead_code()
        used = {str(n.target) for n in self.aten.gm.graph.nodes if n.op == "get_attr"}
        for node in reversed(self.graph.nodes):
            if not node.users and (node.op == "get_attr" or node.name not in used):
                self.graph.erase_node(node)
        calls = any(n.op == "call_function" for n in self.graph.nodes)
        self.aten.recipe = self.graph if calls else None
        if not calls:
            return self.aten
        sources = {str(n.target) for n in self.graph.nodes if n.op == "get_attr"}
        keep = sources | used | set(self.aten.mutated)
        keep |= {str(a.index) for a in self.aten.outputs if a is not None and a.base == "const"}
        for name in [n for n in self.aten.constants if n not in keep]:
            del self.aten.constants[name]
        self.aten.frozen = self.aten.frozen & self.aten.constants.keys()
        return self.aten

    def _source(self, node: fx.Node) -> fx.Node:
        name = str(node.target)
        source = self.sources.get(name)
        if source is None:
            first = next(iter(self.graph.nodes), None)
            with self.graph.inserting_before(first):
                source = self.graph.create_node("get_attr", name)
            source.meta = {"val": node.meta["val"], "stack": ()}
            self.sources[name] = source
        return source

    def _call(self, name: str, target: Any, args: Any, kwargs: Any, value: Callable[[], Any]) -> fx.Node:
        key = (target, _key(args), _key(tuple(kwargs.items())))
        call = self.calls.get(key)
        if call is None:
            taken = self.aten.gm
            while name in self.sources or hasattr(taken, name):
                name += "_"
            call = self.graph.create_node("call_function", target, tuple(args), dict(kwargs), name=name)
            call.meta = {"val": value(), "stack": ()}
            self.sources[call.name] = call
            self.calls[key] = call
        return call


def emit(before: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A call in front of a node, whose value its arguments give; sizes among them may be symbols."""
    with before.graph.inserting_before(before):
        call = before.graph.call_function(target)
    call.args, call.kwargs = args, kwargs
    fakes = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
    with next(n.meta["val"].fake_mode for n in args if isinstance(n, fx.Node)), torch.no_grad():
        call.meta = {**before.meta, "val": target(*fakes[0], **fakes[1])}
    return call


def _inputs_first(node: fx.Node, done: Container[fx.Node]) -> Iterator[fx.Node]:
    """A node and what it needs, as far as it is not done when its turn comes; no recursion, for graphs are deep."""
    waiting = [node]
    while waiting:
        missing = [] if waiting[-1] in done else [n for n in waiting[-1].all_input_nodes if n not in done]
        waiting += missing
        if not missing and (last := waiting.pop()) not in done:
            yield last


def _key(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_key(v) for v in value)
    return (type(value), value) if isinstance(value, (bool, int, float)) else value


_RANDOM = torch.Tag.nondeterministic_seeded


def _repeatable(node: fx.Node) -> bool:
    """Whether the op gives the same tensor each time it runs and leaves its arguments alone."""
    target = node.target
    if not isinstance(target, OpOverload) or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    if target.namespace not in ("aten", "prims") or target._schema.is_mutable or _RANDOM in target.tags:
        return False
    numbers = (*node.meta["val"].shape, *tree_leaves((node.args, node.kwargs)))
    return "empty" not in target.name() and not any(isinstance(n, torch.SymInt | torch.SymFloat) for n in numbers)
