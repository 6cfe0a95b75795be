"""Where a graph is cut, so that gradients are known where autograd, or DistributedDataParallel, looks for them.

The wrapper's reducer sends a bucket of gradients once the engine has given it the last of them, and a compiled backward
gives all gradients at its end. So each bucket gets a backward, and with it a graph, of its own. Results that are views
of one memory get their gradients from each other by autograd: what is made of them is another graph.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch.nn.parallel import DistributedDataParallel

from firebrick.ir.graph.calls import is_mutating
from firebrick.trace.result_cuts import has_history, memory_of

_MODES = ("_set_grad_enabled", "set_grad_enabled", "_enter_autocast", "_exit_autocast")
_MOST = 8
"""More results that share memory have no graph behind them."""


def bucket_bytes() -> tuple[int, int] | None:
    """Bytes of the first and of the other buckets of the wrapper whose module is running; None outside of one."""
    active = DistributedDataParallel._get_active_ddp_module() if dist.is_available() else None
    if active is None:
        return None
    cap = active.bucket_bytes_cap
    return (dist._DEFAULT_FIRST_BUCKET_BYTES if active.bucket_bytes_cap_default else cap), cap  # type: ignore[attr-defined]


def bucket_starts(gm: fx.GraphModule, first: int, cap: int) -> frozenset[fx.Node]:
    """The nodes that begin a graph of their own; `first`, `cap`: bytes of gradients that the last, the other ones fill.

    A parameter's gradient is complete once its first use is differentiated. Between the use that fills a bucket and the
    use before it, the cut is where the fewest bytes go from one graph to the next.
    """
    nodes, place, last = _order(gm)
    if any(getattr(n.target, "__name__", "") in _MODES for n in nodes):
        return frozenset()
    fresh = [0] * len(nodes)  # bytes of the parameters that a node is the first to use
    for node in gm.graph.nodes:
        tensor = node.meta.get("val") if node.op == "get_attr" else None
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad and node.users:
            fresh[min(place.get(user, 0) for user in node.users)] += tensor.nbytes
    uses, starts = [i for i, size in enumerate(fresh) if size], set()
    filled, limit = 0, first
    for before, use in reversed([*pairwise(uses)]):
        filled += fresh[use]
        if filled >= limit:
            costs = [(cost, -p) for p in range(before + 1, use + 1) if (cost := _crossing(nodes, last, p)) is not None]
            if costs:
                starts.add(nodes[-min(costs)[1]])
                filled, limit = 0, cap
    return frozenset(starts)


def _order(gm: fx.GraphModule) -> tuple[list[fx.Node], dict[fx.Node, int], list[int]]:
    """The calls of a graph, the position of each, and the position of its last use; -1: no call uses it."""
    nodes = [n for n in gm.graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
    place = {node: i for i, node in enumerate(nodes)}
    return nodes, place, [max((place[u] for u in node.users if u in place), default=-1) for node in nodes]


def shared_starts(gm: fx.GraphModule) -> frozenset[fx.Node]:
    """The nodes that begin a graph of their own, since they are made of a result that shares memory with another."""
    nodes, place, last = _order(gm)
    memory = {n: {*memory_of(n)} for n in gm.graph.nodes}
    results = [n for n in dict.fromkeys(gm.graph.output_node().all_input_nodes) if has_history(n)]
    holders = Counter(at for n in memory if n not in place or n in results for at in memory[n])
    shared = [n for n in results if any(holders[at] > 1 for at in memory[n])]
    modes = [getattr(node.target, "__name__", "") for node in nodes]
    rows, starts = list[tuple[int, int]](), list[int]()
    for result in shared:
        views = {result}  # as far as they are made of it
        for at in range(place[result] + 1, len(nodes)):
            if has_history(nodes[at]) and not views.isdisjoint(nodes[at].all_input_nodes):
                if memory[nodes[at]].isdisjoint(memory[result]):
                    rows.append((at, place[result]))
                    break
                views.add(nodes[at])
    for at, result_at in sorted(rows):
        inside = [mode for mode in modes[:at] if mode in _MODES]  # of what is switched on and off
        if not any(result_at < start for start in starts) and len(inside) % 2 == 0:
            starts += [at] * (_crossing(nodes, last, at) is not None)
    return frozenset(nodes[at] for at in starts[-_MOST:])


def _crossing(nodes: list[fx.Node], last: list[int], start: int) -> int | None:
    """Bytes that go from the nodes before `start` to the others; None where a cut would change what they mean."""
    if any(node.target is torch.autograd.grad for node in nodes[start:]):  # it follows histories from before
        return None
    vals: list[Any] = [node.meta.get("val") for node, end in zip(nodes[:start], last, strict=False) if end >= start]
    if not all(isinstance(val, torch.Tensor) and val.layout == torch.strided for val in vals):
        return None
    memory = {val.untyped_storage()._cdata for val in vals}
    sources = {source for node in nodes[start:] if is_mutating(node) for source in node.all_input_nodes}
    written = any(not memory.isdisjoint(memory_of(source)) for source in sources)
    return None if written else sum(val.numel() * val.itemsize for val in vals)
