"""Lowered tensors: a value that can be computed at any index, and maybe a place where it is stored."""

from __future__ import annotations

from collections.abc import Callable

from firebrick.ir.index.expr import Expr, total
from firebrick.ir.loops.constructors import load
from firebrick.ir.loops.program import Ref, Value
from firebrick.ir.loops.program import contiguous_strides as contiguous_strides


class TensorValue:
    """A tensor of the graph while it is lowered.

    shape, dtype: of the tensor; strides: the layout that it must have when it is stored.
    ref: where it is stored, None while it is only a formula.
    cost: rough price of one element in additions; `at` is computed again by each consumer that inlines it.
    parts: numbers of the captured graph's nodes that the formula computes.
    device: where it is computed and stored; none while its node is being lowered.
    span: the least and greatest number of a stored tensor of whole numbers, where its formula told.
    base, see: the formula that this one is a view of, and the place of the view given the place of its base. Storing
      the view then means to store the base, in its own loops, and to look at it.
    """

    __slots__ = "_formula _memo base cost device dtype parts ref see shape span strides".split()

    def __init__(
        self,
        shape: tuple[Expr, ...],
        dtype: str,
        strides: tuple[Expr, ...],
        *,
        formula: Callable[[tuple[Expr, ...]], Value] | None = None,
        ref: Ref | None = None,
        cost: int = 1,
        base: TensorValue | None = None,
        see: Callable[[Ref], Ref | None] | None = None,
        parts: tuple[int, ...] = (),
        device: str = "",
    ) -> None:
        self.shape, self.dtype, self.strides, self.ref, self.cost = shape, dtype, strides, ref, cost
        self.base, self.see, self.parts, self.device = base, see, parts, device
        self.span: tuple[int, int] | None = None
        self._formula = formula
        self._memo: dict[tuple[Expr, ...], Value] = {}

    def at(self, index: tuple[Expr, ...]) -> Value:
        """The element at `index`, one expression a dimension."""
        ref = self.ref
        if ref is not None:
            at = ref.offset + total(i * s for i, s in zip(index, ref.strides, strict=True))
            return load(ref.buffer, self.dtype, at)
        # A formula that uses this value twice would otherwise double the work at each level.
        value = self._memo.get(index)
        if value is None:
            assert self._formula is not None
            value = self._memo[index] = self._formula(index)
        return value

    def stored(self, ref: Ref) -> None:
        """Remember where the tensor is; later consumers load it."""
        self.ref = ref
        self.cost = 1
        self._memo.clear()

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)
