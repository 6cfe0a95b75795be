"""Walks over scalar values; each shared value is visited once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firebrick.ir.loops.program import Load, Masked, Op, Reduce, Scan, Store, Value

if TYPE_CHECKING:
    from collections.abc import Iterator


def children(value: Value) -> tuple[Value, ...]:
    """The values that `value` is made of, those of indirect indices included."""
    match value:
        case Op():
            return value.args
        case Load():
            return tuple(v for _, v in value.binds)
        case Masked():
            return (value.cond, value.body, value.other)
        case Reduce() | Scan():
            return (value.body,)
    return ()


def values_of(*roots: Value) -> Iterator[Value]:
    """Every value under `roots`, arguments before their users."""
    seen: set[Value] = set()
    stack: list[tuple[Value, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        value, ready = stack.pop()
        if ready:
            yield value
        elif value not in seen:
            seen.add(value)
            stack.append((value, True))
            stack.extend((c, False) for c in reversed(children(value)) if c not in seen)


def loads_of(store: Store) -> Iterator[Load]:
    """Every load that a store does."""
    roots = (store.value, *(v for _, v in store.binds))
    return (v for v in values_of(*roots) if isinstance(v, Load))
