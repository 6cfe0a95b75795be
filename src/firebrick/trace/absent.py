"""The backward for a loss that depends on some of the forward's results only.

The gradients of the other results are absent, not zero: parameters that nothing else needs get no gradient at all, and
an infinite factor on the way must not make a NaN of a zero.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import fx

from firebrick.ir.graph.calls import copy_node
from firebrick.ir.index.sizes import expressions
from firebrick.runtime import Part, Place
from firebrick.trace.joint_split import SIZES, Division, zeros_node
from firebrick.trace.tape import module_of

aten = torch.ops.aten


def backward_given(division: Division, present: Collection[int]) -> Division:
    """The division with a backward of only these tangents; raises RuntimeError: eager mode can't differentiate."""
    for error in (division.refused[i] for i in present if i in division.refused):
        raise error
    if len(present) == len(division.plan.tangents):
        return division
    return _Absent(division, present).run()


def parted(division: Division, groups: Sequence[tuple[int, ...]], behind: Mapping[int, tuple[int, ...]]) -> Division:
    """Give each group of tangents a node of its own, which saves what its gradients need, and those `behind` one more.

    Args:
        groups: positions of tangents, each group behind those whose results it takes. No two groups share what eager
            PyTorch saves once for both, so that a backward of one leaves the other's for a backward of its own.
        behind: as the JointGraph's.
    """
    plan = division.plan
    if len(plan.tangents) > 1:
        division = replace(division, plan=(plan := replace(plan, uses=_uses(division))))
    if (len(groups) < 2 and not behind) or plan.dirty:
        return division

    def entered(group: Sequence[int]) -> tuple[int, ...]:
        ends = {p for p, reach in zip(plan.wrt, plan.reach, strict=True) if not {*group}.isdisjoint(reach)}
        return tuple([k for k, at in plan.cuts if Place("result", at) in ends])

    parts = []
    for group in groups:
        graph = backward_given(replace(division, refused={}), group).backward.gm.graph
        saved = [n for n in graph.nodes if n.op == "placeholder"][: len(plan.saved)]
        read = (i for i, n in enumerate(saved) if n.users or division.keys[i] == SIZES)
        parts.append(Part(group, tuple(read), entered(group)))
        parts += [Part((i,), (), row or entered([i]), True) for i, row in behind.items() if i in group]
    return replace(division, plan=replace(plan, parts=tuple(parts)))


def _uses(division: Division) -> tuple[tuple[int, ...], ...]:
    """For each tangent, the saved tensors that meet it or what is made of it."""
    nodes = list(division.backward.gm.graph.nodes)
    inputs = [n for n in nodes if n.op == "placeholder"]
    saved = inputs[: len(division.plan.saved)]
    bits = {n: 1 << i for i, n in enumerate(inputs[len(saved) :])}  # tangents, as bits
    for node in nodes:
        bits[node] = bits.get(node, 0) | reduce(or_, [bits[n] for n in node.all_input_nodes], 0)
    for node in reversed(nodes):
        bits[node] = bits[node] or reduce(or_, [bits[user] for user in node.users if user.op != "output"], 0)
    return tuple(tuple(k for k, n in enumerate(saved) if bits[n] >> i & 1) for i in range(len(division.plan.tangents)))


class _Absent:
    """Copies a backward graph, leaving out what is computed from absent tangents alone."""

    def __init__(self, division: Division, present: Collection[int]) -> None:
        self.division, self.graph = division, fx.Graph()
        self.inputs = nodes = [n for n in division.backward.gm.graph.nodes if n.op == "placeholder"]
        saved = len(nodes) - len(division.plan.tangents)
        part = next((p for p in division.plan.parts if set(present) <= set(p.tangents)), None)
        self.present, stored = set(present), range(saved) if part is None else part.saved
        self.keys = tuple([division.keys[i] for i in stored])
        self.kept = [*stored, *(saved + i for i in present)]
        self.zeros = {n for i, n in enumerate(nodes[saved:]) if i not in self.present}
        self.flowing = {n for i, n in enumerate(nodes[saved:]) if i in self.present}
        self.unread = {n for i, n in enumerate(nodes[:saved]) if i not in stored}
        self.env: dict[fx.Node, fx.Node] = {}

    def run(self) -> Division:
        backward = self.division.backward
        for node in backward.gm.graph.nodes:
            if node in self.zeros or node.op == "output":
                continue
            absent = self.zeros.intersection(node.all_input_nodes)
            if not self.flowing.isdisjoint(node.all_input_nodes):
                self.flowing.add(node)
            elif absent:  # a gradient is linear in those that it is made of
                self.zeros.add(node)
                continue
            self.env[node] = self.sum(node, absent) or copy_node(self.graph, node, self.value)
        results: Any = backward.gm.graph.output_node().args[0]
        flat: list[Any] = []
        aliases, position = [], {}
        pairs = zip(self.division.order, self.division.plan.reach, strict=True)
        order = [None if self.present.isdisjoint(reach) else i for i, reach in pairs]
        for i, (result, alias) in enumerate(zip(results, backward.outputs, strict=True)):
            if i not in order:
                continue
            if alias is not None:
                val = self.inputs[int(alias.index)].meta["val"]
                is_kept = alias.index in self.kept
                sizes = val.fake_mode.sizes
                result = None if is_kept else self.null(val, [sizes.size(n) for n in alias.shape])
                alias = replace(alias, index=self.kept.index(int(alias.index))) if is_kept else None
            else:
                result = self.value(result)
            position[i] = len(flat)
            flat.append(result)
            aliases.append(alias)
        self.graph.output(tuple(flat))
        self.graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output"))
        for node in self.unread:
            self.graph.erase_node(self.env[node])
        gm, constants = module_of(self.graph, backward.constants)
        short = replace(backward, gm=gm, constants=constants, outputs=aliases)
        order = [None if i is None else position[i] for i in order]
        return replace(self.division, backward=short, order=tuple(order), keys=self.keys)

    def sum(self, node: fx.Node, absent: set[fx.Node]) -> fx.Node | None:
        """`a + 0` -> `a`, where nothing else changes."""
        if not absent or node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
            return None
        others = [a for a in node.args if isinstance(a, fx.Node) and a not in absent]
        if len(others) != 1:
            return None
        val, wanted = others[0].meta["val"], node.meta["val"]
        layouts = [(v.dtype, expressions(v.shape), expressions(v.stride())) for v in (val, wanted)]
        same = layouts[0] == layouts[1]
        return self.env[others[0]] if same else None

    def value(self, node: fx.Node) -> fx.Node:
        """The node's copy; real zeros where it has none."""
        if node not in self.env:
            val = node.meta["val"]
            order = _order(val)  # of its strides, which those of what is made with it follow
            zeros = self.null(val, [val.shape[d] for d in order])
            if order != sorted(order):
                back, whole = [order.index(d) for d in range(val.dim())], zeros.meta["val"]
                zeros = self.graph.call_function(aten.permute.default, (zeros, back))
                zeros.meta["val"] = whole.permute(back)
            self.env[node] = zeros
        return self.env[node]

    def null(self, val: Any, shape: Sequence[int]) -> fx.Node:
        """Zeros of a dtype and device."""
        return zeros_node(self.graph, val.fake_mode, list(shape), val.dtype, val.fake_device, val.layout)


def _order(val: Any) -> list[int]:
    strides: Any = expressions(val.stride()) if val.layout == torch.strided else ()
    fixed = len(strides) == val.dim() and all(isinstance(stride, int) for stride in strides)
    return sorted(range(val.dim()), key=(lambda d: -strides[d]) if fixed else None)
