"""The state of one lowering: buffers and nodes made so far, and the operations that rules are written with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from firebrick.config import Config
from firebrick.errors import LoweringError
from firebrick.ir.index.expr import ONE, ZERO, Expr, NeedsNumber, as_expr, exprs, maximum, minimum, total, var
from firebrick.ir.index.sizes import FloatNode, exprs_in, size_of, sizes_in
from firebrick.ir.loops.bounds import CHECK, span
from firebrick.ir.loops.constructors import cast, constant, from_zero, reduce
from firebrick.ir.loops.dtypes import BY_TORCH, DTYPES
from firebrick.ir.loops.program import (
    Axis,
    Buffer,
    Const,
    Enum,
    Extern,
    Index,
    Nest,
    Node,
    Op,
    Ref,
    Store,
    Value,
    device_type,
)
from firebrick.ir.loops.scalar_ops import reduction_identity
from firebrick.ir.loops.values import hint
from firebrick.lower.tensors import TensorValue, contiguous_strides
from firebrick.targets.base import Target

EXPENSIVE = 8
"""Cost from which a value is stored rather than computed again for each element that reads it."""
SHARED = 3
"""Cost from which a value that several nests read is stored: it has more than one load."""
CALL = 10_000
"""What a call of the library takes beside its work, in additions."""
DEEP = 400
"""Cost of a formula beyond which it is stored, so that kernels stay readable and compile fast."""


class Declined(Exception):
    """Raised by a rule that doesn't cover the arguments that it got."""


class Lowering:
    """Collects the program. Rules get it as their first argument; `node` is the node being lowered.

    used: which of the node's results are used, if it has several.
    device: where the node is computed.
    alone: no loops around the node would run together with it, so loops for it must be worth it by themselves.
    """

    def __init__(self, targets: Mapping[str, Target], config: Config) -> None:
        self.targets, self.config = targets, config
        self.buffers: list[Buffer] = []
        self.nodes: list[Node] = []
        self.names: set[str] = set()
        self.node: fx.Node
        self.device = "cpu"
        self.origin = ""
        self.own: tuple[int, ...] = ()
        self.used: set[int] = set()
        self.operands: tuple[TensorValue, ...] = ()
        self.alone = False
        self._temps = 0
        self._checked: set[tuple[object, ...]] = set()

    @property
    def target(self) -> Target:
        """The machine that computes the node."""
        return self.targets[device_type(self.device)]

    @property
    def parts(self) -> tuple[int, ...]:
        """The node being lowered, and what its arguments compute that is not stored yet."""
        return tuple(dict.fromkeys([*(p for v in self.operands if v.ref is None for p in v.parts), *self.own]))

    # ------------------------------------------------------------ buffers

    def buffer(
        self, dtype: str, shape: Sequence[Expr], strides: Sequence[Expr], kind: str = "temp", device: str = ""
    ) -> str:
        """Declare storage for a computed tensor, on the node's device unless another is named."""
        name = f"%{self._temps}"
        self._temps += 1
        self.buffers.append(Buffer(name, dtype, tuple(shape), tuple(strides), kind, device or self.device))
        return name

    def declare(self, name: str, fake: torch.Tensor, kind: str) -> TensorValue:
        """Declare an argument or a constant."""
        while name in self.names:
            name += "_"
        self.names.add(name)
        dtype = BY_TORCH[fake.dtype].name
        shape, strides = shape_of(fake), strides_of(fake)
        self.buffers.append(Buffer(name, dtype, shape, strides, kind, str(fake.device)))
        return TensorValue(shape, dtype, strides, ref=Ref(name, shape, strides, ZERO), device=str(fake.device))

    # ------------------------------------------------------------ nodes

    def nest(self, axes: Sequence[Axis], *stores: Store, parts: tuple[int, ...] = ()) -> None:
        """Append a loop nest, unless it has no iterations."""
        if all(a.size is not ZERO for a in axes):
            self.nodes.append(Nest(f"n{len(self.nodes)}", tuple(axes), stores, self.origin, parts or self.parts))

    def realize(self, value: TensorValue, strides: Sequence[Expr] | None = None) -> Ref:
        """Store a tensor unless it is stored already, and return where it is."""
        if value.ref is not None:
            return value.ref
        if value.base is not None and value.see is not None and strides is None:
            seen = value.see(self.realize(value.base))
            if seen is not None:
                value.stored(seen)
                return seen
        value.span = self.span(value)
        layout = dense_strides(value.shape, value.strides if strides is None else tuple(strides))
        name = self.buffer(value.dtype, value.shape, layout, device=value.device)
        ref = Ref(name, value.shape, layout, ZERO)
        self.store(value, ref)
        value.stored(ref)
        return ref

    def span(self, value: TensorValue) -> tuple[int, int] | None:
        """The least and greatest number that elements of a tensor of whole numbers can be; None of other tensors."""
        if value.span is not None or not DTYPES[value.dtype].is_int or ZERO in value.shape:
            return value.span
        return span(value.at(self.axes(value.shape, contiguous_strides(value.shape))[1]))

    def store(self, value: TensorValue, ref: Ref) -> None:
        """Write a tensor to a place: one loop nest in the order of the place's strides, none if it is empty."""
        if ZERO in ref.shape:
            return
        if not DTYPES[value.dtype].loops:
            call = f"n{len(self.nodes)}", "aten::copy_", (ref, self.realize(value)), (), (None,), False, (ref.buffer,)
            self.nodes.append(Extern(*call, self.origin, self.own, self.device))
            return
        axes, index = self.axes(ref.shape, ref.strides)
        at = ref.offset + total(i * s for i, s in zip(index, ref.strides, strict=True))
        self.nest(axes, Store(ref.buffer, at, _settled(value.at(index))), parts=value.parts)

    def axes(self, shape: Sequence[Expr], strides: Sequence[Expr]) -> tuple[list[Axis], tuple[Expr, ...]]:
        """Loops over `shape`, outermost the largest stride, none for sizes of 1; and the index of a dimension each."""
        order = sorted((d for d in range(len(shape)) if shape[d] is not ONE), key=lambda d: -_weight(strides[d]))
        axes = loop_axes("i", [shape[d] for d in order])
        index: list[Expr] = [ZERO] * len(shape)
        for d, axis in zip(order, axes, strict=True):
            index[d] = axis.var
        return axes, tuple(index)

    # ------------------------------------------------------------ values

    def formula(
        self, fn: Callable[[tuple[Expr, ...]], Value], cost: int, fake: torch.Tensor | None = None
    ) -> TensorValue:
        """The node's result (or `fake`'s shape) as a formula of the index.

        Raises:
            Declined: loops do not move its dtype.
        """
        val = self.node.meta["val"] if fake is None else fake
        if not BY_TORCH[val.dtype].loops:
            raise Declined
        tensor = TensorValue(shape_of(val), BY_TORCH[val.dtype].name, strides_of(val), formula=fn, cost=cost)
        tensor.parts = self.parts
        if cost > DEEP:
            self.realize(tensor)
        return tensor

    def prefer(self, loops: float, library: float, count: int) -> None:
        """Leave a node of `count` elements that is alone to the library where that is faster, in additions an element.

        Raises:
            Declined: the loops would take more than a tenth longer, the price of a call included.
        """
        if self.alone and count * loops > 1.1 * (count * library + CALL):
            raise Declined

    def reread(self, value: TensorValue) -> None:
        """Make a value cheap to read many times in one nest: store it if computing it is expensive."""
        if value.ref is None and value.cost >= EXPENSIVE:
            self.realize(value)

    def share(self, value: TensorValue) -> None:
        """Store a value that several nests read, unless it costs little more than a load or needs no load at all."""
        if value.ref is None and value.base is not None and value.see is not None:
            self.share(value.base)
            if value.base.ref is not None and value.see(value.base.ref) is not None:
                self.realize(value)
        elif value.ref is None and value.cost >= SHARED and ZERO not in value.shape:
            _, at = self.axes(value.shape, value.strides)
            if not isinstance(value.at(at), (Index, Const)):
                self.realize(value)

    def reduction(
        self,
        name: str,
        source: TensorValue,
        dims: Sequence[int],
        *,
        body: Callable[[Value, tuple[Expr, ...]], Value],
        finish: Callable[[Value, tuple[Expr, ...]], Value] = lambda v, _: v,
        keepdim: bool = True,
        fake: torch.Tensor | None = None,
    ) -> TensorValue:
        """Fold `source` over `dims` in a loop nest of its own.

        body: applied to each element and its index in the result (folded dimensions at 0); finish: to what was folded
        and the same index.
        fake: gives the layout of the result, contiguous without it.
        """
        folded = sorted({d % source.rank for d in dims}) if source.rank else []
        sizes = [ONE if d in folded else n for d, n in enumerate(source.shape)]
        shape = tuple(sizes if keepdim else [n for d, n in enumerate(sizes) if d not in folded])
        strides = contiguous_strides(shape) if fake is None else dense_strides(shape, strides_of(fake))
        axes, index = self.axes(shape, strides)
        outer = list(index)
        if not keepdim:
            for d in folded:
                outer.insert(d, ZERO)
        inner = loop_axes("r", [source.shape[d] for d in folded])
        at = list(outer)
        for d, axis in zip(folded, inner, strict=True):
            at[d] = axis.var if axis.size is not ONE else ZERO
        if ZERO in shape:
            dtype = BY_TORCH[fake.dtype].name if fake is not None else DTYPES[source.dtype].accumulate
            return TensorValue(shape, dtype, strides, ref=Ref(self.buffer(dtype, shape, strides), shape, strides, ZERO))
        empty = any(a.size is ZERO for a in inner)
        folded_body = body(constant(0, source.dtype) if empty else source.at(tuple(at)), tuple(outer))
        if empty:
            reduced: Value = constant(reduction_identity(name, folded_body.dtype), folded_body.dtype)
        else:
            reduced = reduce(name, inner, folded_body)
            if name == "sum" and all(a.size is ONE for a in inner):
                reduced = from_zero(reduced)
        result = finish(reduced, tuple(outer))
        buffer = self.buffer(result.dtype, shape, strides)
        self.nest(axes, Store(buffer, total(i * s for i, s in zip(index, strides, strict=True)), result))
        return TensorValue(shape, result.dtype, strides, ref=Ref(buffer, shape, strides, ZERO))

    def check(self, index: TensorValue, low: Expr | int, high: Expr | int, error: str, text: str) -> None:
        """Let the program raise `error` unless all elements of `index` are in low..high."""
        # What an expanded tensor repeats is looked at once.
        still = [index.ref is not None and s is ZERO for s in (index.ref or index).strides]
        axes = loop_axes("r", [n for n, stays in zip(index.shape, still, strict=True) if not stays])
        moving = iter(axes)
        element = cast(index.at(tuple(ZERO if stays else next(moving).var for stays in still)), "i64")
        key = (element, index.shape, low, high, error, text)
        if key in self._checked:
            return
        self._checked.add(key)
        two = as_expr(2)
        seen, device = self.buffer("i64", (two,), (ONE,)), self.device
        name = seen
        ends = [reduce(name, axes, element) for name in ("max", "min")]
        self.nest((), *(Store(seen, as_expr(k), end) for k, end in enumerate(ends)), parts=index.parts)
        if not self.target.shares_memory:
            name, device = self.moved(seen, "cpu"), "cpu"
        args = (Ref(name, (two,), (ONE,), ZERO), low, high, error, text)
        self.nodes.append(
            Extern(f"n{len(self.nodes)}", CHECK, args, (), (), origin=self.origin, parts=self.own, device=device)
        )

    # ------------------------------------------------------------ library calls

    def moved(self, name: str, device: str = "cpu") -> str:
        """A buffer that holds what another does, on that device: itself if it lies there."""
        source = next(b for b in reversed(self.buffers) if b.name == name)
        if source.device == device:
            return name
        copy = self.buffer(source.dtype, source.shape, source.strides, device=device)
        ref = Ref(name, source.shape, source.strides, ZERO)
        where, near = (("device", Enum("device", device)),), source.device if device == "cpu" else device
        op = "aten::_to_copy"
        self.nodes.append(
            Extern(f"n{len(self.nodes)}", op, (ref,), where, (copy,), False, (), self.origin, self.own, near)
        )
        return copy

    def is_number(self, ref: Ref) -> bool:
        """Whether loops of the present device take what is there, on a CPU, by value."""
        source = next(b for b in reversed(self.buffers) if b.name == ref.buffer)
        return ref.dtype is None and source.dtype in self.target.numbers and all(n is ONE for n in source.shape)

    def argument(self, value: object) -> object:
        """An argument of a library call; formulas among it are stored first."""
        if isinstance(value, TensorValue):
            return self.realize(value)
        if isinstance(value, (list, tuple)):
            return tuple(self.argument(v) for v in value)
        if isinstance(value, torch.dtype):
            return Enum("dtype", BY_TORCH[value].name)
        if isinstance(value, torch.device):
            return Enum("device", str(value))
        if isinstance(value, (torch.layout, torch.memory_format)):
            kind = "layout" if isinstance(value, torch.layout) else "memory_format"
            return Enum(kind, str(value).removeprefix("torch."))
        if value is None or isinstance(value, (bool, int, float, complex, str, Expr)):
            return value
        if isinstance(value, torch.SymInt):
            return as_expr(size_of(value))
        if isinstance(value, FloatNode):  # calls take floats that are known
            raise NeedsNumber(next(e for e in exprs_in(value.formula) if e.terms))
        raise LoweringError(f"argument {value!r} of {self.node.target} can't be passed to a library call")

    def extern(self, op: str, args: Sequence[object], kwargs: dict[str, object], into: bool = False) -> Any:
        """Append a call of the library that makes the node's result."""
        val = self.node.meta["val"]
        many = isinstance(val, (list, tuple))
        passed = tuple(self.argument(a) for a in args)
        named = tuple((k, self.argument(v)) for k, v in kwargs.items())
        # Fake kernels are wrong about some results that are for the backward pass, so only those in use are checked.
        used = self.used if many else {0}
        results: list[TensorValue | None] = []
        for k, fake in enumerate(val if many else [] if val is None else [val]):
            if fake is None or (k not in used and not into):
                results.append(None)
                continue
            if not isinstance(fake, torch.Tensor):
                raise LoweringError(f"{op} returns a number that the graph uses")
            dtype, shape, strides = BY_TORCH[fake.dtype].name, shape_of(fake), strides_of(fake)
            name = self.buffer(dtype, shape, strides)
            ref = Ref(name, shape, strides, ZERO)
            results.append(TensorValue(shape, dtype, strides, ref=ref, device=self.device))
        outs = tuple(r.ref.buffer if r is not None and r.ref is not None else None for r in results)
        call = f"n{len(self.nodes)}", op, passed, named, outs, into, (), self.origin, self.own, self.device
        self.nodes.append(Extern(*call))
        return tuple(results) if many else results[0] if results else None


# ---------------------------------------------------------------- helpers of rules


Rule = Callable[..., Any]


def rules() -> tuple[dict[Any, Rule], Callable[..., Callable[[Rule], Rule]]]:
    """A table OpOverload -> rule, and the decorator that enters a rule for some ops."""
    table: dict[Any, Rule] = {}

    def rule(*targets: Any) -> Callable[[Rule], Rule]:
        def register(fn: Rule) -> Rule:
            for target in targets:
                table[target] = fn
            return fn

        return register

    return table, rule


def only_first(lw: Lowering) -> torch.Tensor:
    """The first result of a node that has several.

    Raises:
        Declined: another one is used, which only the library's kernel makes.
    """
    if lw.used - {0}:
        raise Declined
    return lw.node.meta["val"][0]


def loop_axes(prefix: str, sizes: Sequence[Expr]) -> list[Axis]:
    """Loops named prefix0, prefix1, ... over `sizes`."""
    return [
        Axis(var(f"{prefix}{k}", 0, max(n.const - 1, 0)) if n.is_const else var(f"{prefix}{k}", bound=n), n)
        for k, n in enumerate(sizes)
    ]


_numbers = lru_cache(maxsize=1024)(exprs)


def _exprs(values: tuple[Any, ...]) -> tuple[Expr, ...]:
    return exprs(map(size_of, values)) if sizes_in(values) is not None else _numbers(values)


def count_of(fake: torch.Tensor) -> int:
    """Elements of a fake tensor, about as many where its sizes are symbols: for choices that are right either way."""
    return hint(as_expr(size_of(fake.numel())))


def shape_of(fake: torch.Tensor) -> tuple[Expr, ...]:
    """Sizes of a fake tensor as expressions."""
    return _exprs(fake.shape)


def strides_of(fake: torch.Tensor) -> tuple[Expr, ...]:
    """Strides of a fake tensor as expressions."""
    return _exprs(fake.stride())


def place_of(position: int | Expr, size: Expr) -> Expr:
    """The place in a dimension that a position means, which counts from the end if it is negative.

    Raises:
        NeedsNumber: it may be either.
    """
    at = as_expr(position)
    if at.lo < 0 <= at.hi:
        raise NeedsNumber(at)
    return at if at.lo >= 0 else size + at


def end_of(index: int | Expr, size: Expr | int) -> Expr:
    """The place in a dimension where a slice begins or ends."""
    at = as_expr(index)
    if at.lo < 0:  # from the end, or from where the sign tells
        at = maximum(at + size * (1 if at.hi < 0 else minimum(maximum(-at, 0), 1)), 0)
    return minimum(at, size)


def broadcast(shape: Sequence[Expr], to: Sequence[Expr]) -> Callable[[tuple[Expr, ...]], tuple[Expr, ...]]:
    """How an index of shape `to` maps to one of `shape` under broadcasting."""
    skip = len(to) - len(shape)
    if not any(n is ONE and m is not ONE for n, m in zip(shape, to[skip:], strict=True)):
        return (lambda index: index[skip:]) if skip else (lambda index: index)
    fixed = [n is ONE for n in shape]
    return lambda index: tuple(ZERO if one else i for i, one in zip(index[skip:], fixed, strict=True))


def _settled(value: Value) -> Value:
    """The value less a conversion there and back, which told readers that it is rounded."""
    if isinstance(value, Op) and value.name == "to" and value.dtype in ("bf16", "f16"):
        wide = value.args[0]
        if isinstance(wide, Op) and wide.name == "to" and wide.dtype in ("f32", "f64"):
            return wide.args[0] if wide.args[0].dtype == value.dtype else value
    return value


def _weight(stride: Expr) -> int:
    """Sort key of a stride; symbolic strides count by their lower bound."""
    return stride.const if stride.is_const else max(stride.lo, 1)


def dense_strides(shape: tuple[Expr, ...], strides: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The strides if they fill memory without gaps or overlap, else contiguous ones."""
    expected: Expr = ONE
    for d in sorted((d for d in range(len(shape)) if shape[d] is not ONE), key=lambda d: _weight(strides[d])):
        if strides[d] is not expected:
            return contiguous_strides(shape)
        expected = expected * shape[d]
    return strides


def may_overlap(ref: Ref) -> bool:
    """Whether two places of a tensor may be one in memory."""
    extent: Expr = ONE
    for stride, n in sorted(zip(ref.strides, ref.shape, strict=True), key=lambda pair: _weight(pair[0])):
        if n is not ONE and (stride - extent).lo < 0:
            return True
        extent = extent + stride * (n - 1)
    return False
