"""Finds nodes of a functional graph that compute the same again, as unrolled layers do with masks and positions."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import fx


def representatives(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Node -> the first node that computes the same, itself for most."""
    first: dict[Hashable, fx.Node] = {}
    same: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        key: Hashable = node
        if node.op == "get_attr":
            key = ("get_attr", node.target)
        elif node.op == "call_function" and not _differs_each_time(node.target):
            key = (node.target, _key(node.args, same), _key(node.kwargs, same))
        same[node] = first.setdefault(key, node)
    return same


def user_counts(same: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, int]:
    """Representative -> how many different nodes use it."""
    users: dict[fx.Node, set[fx.Node]] = {}
    for node, representative in same.items():
        users.setdefault(representative, set()).update(same.get(u, u) for u in node.users)
    return {node: len(users_of_node) for node, users_of_node in users.items()}


def used_results(same: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, set[int]]:
    """Representative -> which of its results are used, its own or those of a node that computes the same."""
    used: dict[fx.Node, set[int]] = {}
    for node in same:
        if node.target is operator.getitem and node.users:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            used.setdefault(same[source], set()).add(node.args[1])  # type: ignore[arg-type]
    return used


def _differs_each_time(target: Any) -> bool:
    """Whether two calls with equal arguments may differ: random numbers, and memory that nobody filled."""
    tags = getattr(target, "tags", ())
    schema = getattr(target, "_schema", None)
    if schema is not None and (schema.is_mutable or not schema.returns):
        return True
    return torch.Tag.nondeterministic_seeded in tags


def _key(value: Any, same: Mapping[fx.Node, fx.Node]) -> Hashable:
    """Arguments as something that is equal only if the arguments are; 1, 1.0 and True differ, and 0.0 and -0.0."""
    if isinstance(value, fx.Node):
        return same[value]
    if isinstance(value, (list, tuple)):
        return tuple(_key(v, same) for v in value)
    if isinstance(value, dict):
        return tuple((k, _key(v, same)) for k, v in value.items())
    if isinstance(value, (bool, int, float, complex)):
        return type(value), repr(value)
    return type(value), str(value)
