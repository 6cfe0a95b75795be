"""Conditions on sizes: small expressions over the shapes of tensors and over integers, as data.

An expression is a number, a leaf or an operation. Leaves are `("size", source, dim)`, `("stride", source, dim)`,
`("offset", source)` and `("int", source)`; an operation is its sign and one or two expressions, such as
`("==", ("%", ("size", x, 0), 8), 0)`. Integers are Python's; what does not fit 64 bits makes a guard fail.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from firebrick import _native
from firebrick.capture.guards.sources import Source

if TYPE_CHECKING:
    from firebrick._native import Frame


Shape: TypeAlias = "int | tuple[Any, ...]"

_LEAVES: dict[str, tuple[str, str, Callable[..., int]]] = {
    "size": ("SIZE", "{}.shape[{}]", lambda tensor, dim: tensor.shape[dim]),
    "stride": ("STRIDE", "{}.stride({})", lambda tensor, dim: tensor.stride(dim)),
    "offset": ("OFFSET", "{}.storage_offset()", lambda tensor: tensor.storage_offset()),
    "int": ("INT", "{}", lambda number: number),
}
"""Leaf -> native instruction, how it prints, what it reads."""

_SIGNS: dict[str, tuple[str, int, Callable[..., Any]]] = {
    "or": ("OR", 1, lambda a, b: a or b),
    "and": ("AND", 2, lambda a, b: a and b),
    "not": ("NOT", 3, operator.not_),
    "==": ("EQ", 4, operator.eq),
    "!=": ("NE", 4, operator.ne),
    "<": ("LT", 4, operator.lt),
    "<=": ("LE", 4, operator.le),
    "+": ("ADD", 5, operator.add),
    "-": ("SUB", 5, operator.sub),
    "*": ("MUL", 6, operator.mul),
    "//": ("FLOORDIV", 6, operator.floordiv),
    "%": ("MOD", 6, operator.mod),
    "min": ("MIN", 9, min),
    "max": ("MAX", 9, max),
}
"""Sign -> native instruction, how tightly it binds, what it does."""


def shape_text(shape: Shape, outer: int = 0) -> str:
    """Print as Python; parentheses only where they are needed."""
    if isinstance(shape, int):
        return str(shape)
    if shape[0] in _LEAVES:
        return _LEAVES[shape[0]][1].format(*shape[1:])
    sign, binds = shape[0], _SIGNS[shape[0]][1]
    if sign in ("min", "max"):
        return f"{sign}({shape_text(shape[1])}, {shape_text(shape[2])})"
    if sign == "not":
        text = f"not {shape_text(shape[1], binds)}"
    else:
        text = f"{shape_text(shape[1], binds)} {sign} {shape_text(shape[2], binds + 1)}"
    return f"({text})" if binds < outer else text


def shape_leaves(shape: Shape) -> Iterator[tuple[Any, ...]]:
    """The leaves, in order."""
    if isinstance(shape, tuple):
        if shape[0] in _LEAVES:
            yield shape
        else:
            for part in shape[1:]:
                yield from shape_leaves(part)


def shape_value(shape: Shape, frame: Frame) -> Any:
    """Evaluate for a frame, in Python."""
    if isinstance(shape, int):
        return shape
    if shape[0] in _LEAVES:
        return _LEAVES[shape[0]][2](shape[1].evaluate(frame), *shape[2:])
    return _SIGNS[shape[0]][2](*(shape_value(part, frame) for part in shape[1:]))


def shape_holds(shape: Shape, frame: Frame) -> bool:
    """Whether a condition is true for a frame."""
    return bool(shape_value(shape, frame))


def program(shape: Shape) -> tuple[list[Source], tuple[int, ...]]:
    """Compile for the native stack machine: the sources of its leaves, and its instructions of three numbers each."""
    sources: list[Source] = []
    numbers: list[int] = []

    def emit(part: Shape) -> None:
        if isinstance(part, int):
            numbers.extend((_native.SHAPE_OPS["CONST"], part, 0))
        elif part[0] in _LEAVES:
            if part[1] not in sources:
                sources.append(part[1])
            dim = part[2] if len(part) > 2 else 0
            numbers.extend((_native.SHAPE_OPS[_LEAVES[part[0]][0]], sources.index(part[1]), dim))
        else:
            for operand in part[1:]:
                emit(operand)
            numbers.extend((_native.SHAPE_OPS[_SIGNS[part[0]][0]], 0, 0))

    emit(shape)
    return sources, tuple(numbers)
