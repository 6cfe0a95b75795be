"""The backward for a loss that depends on some of the forward's results only.

The gradients of the other results are absent, not zero: parameters that nothing else needs get no gradient at all, and
an infinite factor on the way must not make a NaN of a zero.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from firebrick.trace.tape import module_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from firebrick.trace.joint_split import Division

aten = torch.ops.aten

_LINEAR: frozenset[Any] = frozenset(
    {
        *(aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.neg.default),
        *(aten.mm.default, aten.bmm.default, aten.dot.default, aten.mv.default, operator.getitem),
        *(aten.sum.default, aten.sum.dim_IntList, aten.mean.dim, aten.mean.default, aten.cumsum.default),
        *(aten.clone.default, aten._to_copy.default, aten.flip.default, aten.constant_pad_nd.default),
        *(aten.index.Tensor, aten.gather.default, aten.tril.default, aten.triu.default, aten.roll.default),
    }
)
"""Ops that give zero when an argument that gradients flow through is zero; views and `*_backward` ops do too."""

_SCATTERS: frozenset[Any] = frozenset(
    {
        *(aten.select_scatter.default, aten.slice_scatter.default, aten.diagonal_scatter.default),
        *(aten.as_strided_scatter.default, aten.index_put.default, aten._unsafe_index_put.default),
        *(aten.scatter.src, aten.scatter_add.default, aten.index_add.default),
    }
)
"""Ops that write some arguments into the first: zero if all of them are."""


def backward_given(division: Division, given: Collection[int]) -> Division:
    """Return the division with a backward that takes only these of its tangents."""
    if len(given) == len(division.plan.tangents):
        return division
    return _Absent(division, given).run()


class _Absent:
    """Copies a backward graph, leaving out what is computed from absent tangents alone."""

    def __init__(self, division: Division, given: Collection[int]) -> None:
        self.division, self.graph = division, fx.Graph()
        self.inputs = nodes = [n for n in division.backward.gm.graph.nodes if n.op == "placeholder"]
        saved = len(nodes) - len(division.plan.tangents)
        self.kept = [i for i in range(len(nodes)) if i < saved or i - saved in given]
        self.zeros = {n for i, n in enumerate(nodes) if i not in self.kept}
        self.env: dict[fx.Node, fx.Node] = {}
        reached = 0
        for i in given:
            reached |= division.reached[i]
        self.order = [o if reached >> i & 1 else None for i, o in enumerate(division.order)]

    def run(self) -> Division:
        backward = self.division.backward
        for node in backward.gm.graph.nodes:
            if node in self.zeros or node.op == "output":
                continue
            known = self.zeros.intersection(node.all_input_nodes)
            if not known:
                self.env[node] = self.graph.node_copy(node, self.env.__getitem__)
            elif self.is_zero(node, known):
                self.zeros.add(node)
            else:
                self.env[node] = self.sum(node, known) or self.graph.node_copy(node, self.value)
        results: Any = backward.gm.graph.output_node().args[0]
        flat: list[Any] = []
        aliases, position = [], {}
        for i, (result, alias) in enumerate(zip(results, backward.outputs, strict=True)):
            if i not in self.order:
                continue
            if alias is not None:
                val = self.inputs[int(alias.index)].meta["val"]
                given = alias.index in self.kept
                result = None if given else self.null(val, alias.shape)
                alias = replace(alias, index=self.kept.index(int(alias.index))) if given else None
            else:
                result = self.value(result)
            position[i] = len(flat)
            flat.append(result)
            aliases.append(alias)
        self.graph.output(tuple(flat))
        self.graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output"))
        order = tuple(None if i is None else position[i] for i in self.order)
        inputs = [n for n in self.graph.nodes if n.op == "placeholder"]
        unread = tuple(i for i, n in enumerate(inputs[: len(self.division.plan.saved)]) if not n.users)
        gm = module_of(self.graph, backward.constants)
        used = {str(n.target) for n in self.graph.nodes if n.op == "get_attr"}
        constants = {n: t for n, t in backward.constants.items() if n in used}
        made = replace(backward, gm=gm, constants=constants, outputs=aliases)
        return replace(self.division, backward=made, order=order, unread=unread)

    def is_zero(self, node: fx.Node, known: set[fx.Node]) -> bool:
        """Whether the node is zero, given that these of its arguments are."""
        target = node.target
        if target in _LINEAR or (isinstance(target, torch._ops.OpOverload) and target.is_view):
            return True
        if target is aten.mkldnn_rnn_layer_backward.default:
            return all(a is None or a in known for a in node.args[10:13])
        if str(target).rpartition(".")[0].endswith("_backward"):
            return node.args[0] in known
        written = {n for n in node.all_input_nodes if _is_float(n)}
        if target in _SCATTERS:
            return all(n in known or _is_null(n) for n in written)
        if target in (aten.add.Tensor, aten.sub.Tensor):
            return written <= known and not any(isinstance(a, (int, float)) for a in node.args)
        if target is aten.where.self:
            return all(a in known or (isinstance(a, fx.Node) and _is_null(a)) for a in node.args[1:])
        return False

    def sum(self, node: fx.Node, known: set[fx.Node]) -> fx.Node | None:
        """`a + 0` -> `a`, where nothing else changes."""
        if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
            return None
        others = [a for a in node.args if isinstance(a, fx.Node) and a not in known]
        if len(others) != 1:
            return None
        val, wanted = others[0].meta["val"], node.meta["val"]
        same = (val.shape, val.dtype, val.stride()) == (wanted.shape, wanted.dtype, wanted.stride())
        return self.env[others[0]] if same else None

    def value(self, node: fx.Node) -> fx.Node:
        """The node's copy; real zeros where it has none."""
        if node not in self.env:
            val = node.meta["val"]
            self.env[node] = self.null(val, val.shape)
        return self.env[node]

    def null(self, val: Any, shape: Sequence[int]) -> fx.Node:
        """Zeros of a dtype and device."""
        options = {"dtype": val.dtype, "layout": val.layout, "device": val.fake_device, "pin_memory": False}
        node = self.graph.call_function(aten.full.default, (list(shape), 0), options)
        with val.fake_mode:
            node.meta["val"] = aten.full.default(list(shape), 0, **options)
        return node


def _is_float(node: fx.Node) -> bool:
    val = node.meta.get("val")
    return isinstance(val, torch.Tensor) and (val.dtype.is_floating_point or val.dtype.is_complex)


def _is_null(node: fx.Node) -> bool:
    """Whether the node is made of zeros that a formula starts from."""
    if node.target in (aten.full.default, aten.full_like.default, aten.scalar_tensor.default):
        return bool(node.args[node.target is not aten.scalar_tensor.default] == 0)
    return node.target in (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
