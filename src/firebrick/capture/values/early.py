"""Numbers that integers of the inputs decide (masks, lengths, buffers) are read in the guards, where the graph would
end otherwise: it is made for what they are in the call at hand.

What is read is a small program of one tensor of integers that the frame was given and nothing has written to; integers
without dimensions beside it are constants of their own. A program of none, a mask that the frame makes, gives the same
in each call.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from firebrick.capture.guards.sources import Applied
from firebrick.capture.inference_mode import storage_of
from firebrick.capture.values.base import Args, Kwargs, Value
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.sequence import ListValue, SliceValue, TupleValue
from firebrick.capture.values.tensor import TensorValue
from firebrick.fakes.data_sizes import as_size
from firebrick.ir.graph.calls import is_mutating
from firebrick.ir.graph.nested import SIGNS
from firebrick.ir.index.expr import Expr

if TYPE_CHECKING:
    from firebrick.capture.graph import GraphBuilder
    from firebrick.capture.guards.guard_set import Guards

_SHOWN = "a number of {0.base}"
_MOST_CALLS = 48
_MOST_TRUTHS = 16
_MOST_ELEMENTS = 1 << 16
_CALLS = frozenset(
    name
    for names in (
        "abs add all amax amin and any arange argmax argmin argsort bitwise_and bitwise_not bitwise_or bool cat ceil",
        "clamp clip clone contiguous cos count_nonzero cpu cumsum detach diff div double eq exp expand expand_as eye",
        "fill flatten flip float floor floor_divide floordiv full full_like ge getattr getitem gt int invert isfinite",
        "isinf isnan le linspace log logical_and logical_not logical_or logspace long lt masked_fill max maximum mean",
        "min minimum mod mul ne neg new_ones new_zeros ones ones_like or permute pow prod remainder repeat reshape",
        "round rsub select setitem sign sin sort sqrt squeeze stack sub sum t tensor to transpose tril triu truediv",
        "type type_as unbind unsqueeze view view_as where xor zero zeros zeros_like",
    )
    for name in names.split()
)
"""Names of functions that give the same each time, and change nothing."""


def _compare(sign: str, difference: Expr, symbol: str, tensor: torch.Tensor) -> bool:
    """Whether an expression of the number in a tensor stands so to 0."""
    return SIGNS[sign](difference.evaluate({symbol: int(tensor.item())}), 0)


class Program:
    """What a guard asks of a tensor."""

    def __init__(self, module: fx.GraphModule, read: Callable[[torch.Tensor], Any]) -> None:
        self._run, self._read = module.forward, read

    def __call__(self, tensor: torch.Tensor) -> Any:
        """The number."""
        with torch.no_grad():
            return self._read(self._run(tensor))


def as_tuple(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The numbers in a tensor of one dimension."""
    return tuple(tensor.tolist())


class EarlyReads:
    """Those of one capture: of what the frame was given if `on`, none if `off`; integers may stay what data decide."""

    def __init__(self, graph: GraphBuilder, guards: Guards) -> None:
        self.graph, self.guards, graph.sizes.early = graph, guards, self
        self.on = self.off = self.truths_alone = False
        self.count = 0
        self.cost = 0  # how soon such captures become too many

    def read(self, value: Value, read: Callable[[torch.Tensor], Any] = torch.Tensor.item) -> Any:
        """What `read` gives for a tensor of the graph; None where that is not known before it."""
        if self.off or not isinstance(value, TensorValue) or value.node.graph is not self.graph.graph:
            return None
        one = all(type(n) is int and n == 1 for n in value.fake.shape)
        nodes = self._slice(value.node) if one or read is as_tuple else None
        if nodes is None or self.graph.inference.in_region:
            return None
        leaves = [node for node in nodes if node.op in ("placeholder", "get_attr")]
        of_truth = value.fake.dtype == torch.bool or read is bool or isinstance(read, partial)
        if leaves and (not self.on or (self.truths_alone and not of_truth)):
            return None
        real: dict[fx.Node, Any] = {}
        large: TensorValue | None = None
        for node in leaves:
            leaf = self.graph.known(node.meta["val"])
            obj = None if leaf is None else leaf.obj
            if leaf is None or leaf.source is None or type(obj) not in (torch.Tensor, torch.nn.Parameter):
                return None
            if obj.is_floating_point() or obj.is_complex() or obj.numel() > _MOST_ELEMENTS:  # type: ignore[union-attr]
                return None
            if obj.dim() and large not in (None, leaf):  # type: ignore[union-attr]
                return None
            large = leaf if obj.dim() or (of_truth and len(leaves) == 1) else large  # type: ignore[union-attr]
            real[node] = obj
        with torch.no_grad():
            for node in nodes:
                if node not in real:
                    args, kwargs = fx.map_arg((node.args, node.kwargs), real.__getitem__)
                    real[node] = _called(node, args, kwargs)
            number = read(real[value.node])
        if number is None or number != number:
            return None
        self._guard(nodes, real, large, value, read, number)
        self.count, cost = self.count + 1, 1 if type(number) is bool else 2
        self.cost = max(self.cost, cost) if leaves else self.cost
        return number

    def holds(self, sign: str, difference: Expr) -> bool | None:
        """Whether an expression of sizes that data decide stands so to 0, if one integer tells."""
        symbols = [*difference.vars()]
        origin = self.graph.sizes.data.get(symbols[0].name) if len(symbols) == 1 and self.count < _MOST_TRUTHS else None
        if origin is None or origin[0].node.target is not as_size:
            return None
        value = self.graph.known(origin[0].node.args[0].meta["val"])  # type: ignore[union-attr,arg-type]
        return None if value is None else self.read(value, partial(_compare, sign, difference, symbols[0].name))

    def _slice(self, node: fx.Node) -> list[fx.Node] | None:
        """The calls that give a tensor, in order, if they may be made before the graph."""
        nodes, todo, writes = {node}, [node], self._writes()
        while todo and len(nodes) <= _MOST_CALLS:
            one = todo.pop()
            fake, used = one.meta.get("val"), [*one.all_input_nodes]
            if isinstance(fake, torch.Tensor) and type(n := fake.numel()) is int and n > _MOST_ELEMENTS << 4:
                return None
            if isinstance(fake, torch.Tensor) and (place := storage_of(fake)) in writes:
                if one.op in ("placeholder", "get_attr") or None in writes[place]:
                    return None
                used += [write for write in writes[place] if write is not None]
            if one.op in ("call_function", "call_method"):
                plain = isinstance(one.target, (str, types.FunctionType, types.BuiltinFunctionType))
                if not plain or _name_of(one) not in _CALLS or "out" in one.kwargs:
                    return None
            elif not isinstance(fake, torch.Tensor):
                return None
            todo += [n for n in used if n not in nodes]
            nodes.update(used)
        return None if todo or self.graph.changed_blindly else [one for one in self.graph.graph.nodes if one in nodes]

    def _writes(self) -> dict[int, list[fx.Node | None]]:
        """Memory that was written to -> the calls; None for one that is not found."""
        calls: dict[int, list[fx.Node | None]] = {}
        for fake in self.graph.written:
            calls.setdefault(storage_of(fake), []).append(None)
        for node in self.graph.graph.nodes if calls else ():
            if is_mutating(node) and node.all_input_nodes:
                writes = calls.get(storage_of(node.all_input_nodes[0].meta["val"]), [])
                if None in writes:
                    writes[writes.index(None)] = node
        return calls

    def _guard(
        self,
        nodes: list[fx.Node],
        real: dict[fx.Node, Any],
        large: TensorValue | None,
        value: TensorValue,
        read: Callable[[torch.Tensor], Any],
        number: Any,
    ) -> None:
        """Look in each call whether it is the same number."""
        program, copies, root = fx.Graph(), dict[fx.Node, Any](), torch.nn.Module()
        for node in nodes:
            leaf = self.graph.known(node.meta["val"]) if node.op in ("placeholder", "get_attr") else None
            if leaf is None:
                copies[node] = program.node_copy(node, copies.__getitem__)
                continue
            assert leaf.source is not None
            if leaf is large:
                copies[node] = program.placeholder("tensor")
            else:
                self.guards.equals(Applied(leaf.source, torch.Tensor.item, _SHOWN), real[node].item())
                root.register_buffer(f"of_{node.name}", real[node].detach().clone())
                copies[node] = program.get_attr(f"of_{node.name}")
        if large is not None:
            assert large.source is not None
            program.output(copies[value.node])
            self.guards.equals(Applied(large.source, Program(fx.GraphModule(root, program), read), _SHOWN), number)

    def numbers(
        self, args: Args, kwargs: Kwargs, read_size: Callable[[TensorValue], Value | None]
    ) -> tuple[list[Value], dict[str, Value]] | None:
        """Arguments of a call with numbers for the tensors of one integer that may be read; None if there are none."""
        replaced = False

        def number(value: Value) -> Value:
            nonlocal replaced
            value = value.realize()
            if isinstance(value, TensorValue) and not value.fake.dim() and not value.fake.is_floating_point():
                read = self.read(value)
                constant = read_size(value) if read is None else ConstantValue(read)
                replaced |= constant is not None
                return constant or value
            if type(value) in (TupleValue, ListValue):
                return type(value)([number(item) for item in value.items])  # type: ignore[attr-defined,arg-type]
            return SliceValue(*map(number, value.children())) if type(value) is SliceValue else value  # type: ignore[arg-type]

        given = [number(arg) for arg in args], {name: number(arg) for name, arg in kwargs.items()}
        return given if replaced else None


def _name_of(node: fx.Node) -> str:
    name: str = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name if name.startswith("_") else name.rstrip("_")


def _called(node: fx.Node, args: Any, kwargs: Any) -> Any:
    target: Any = node.target
    return getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)
