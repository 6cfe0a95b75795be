"""Properties of the index algebra: values survive simplification, text reads back, equal means identical."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firebrick.ir.index.expr import (
    INF,
    ONE,
    ZERO,
    Expr,
    as_int,
    const,
    known_less,
    maximum,
    minimum,
    product,
    total,
    var,
)
from firebrick.ir.index.index_text import parse

RANGES = {"i": (0, 3), "j": (0, 7), "k": (0, 63), "s": (1, 12), "n": (-5, 5)}
VARS = {name: var(name, lo, hi) for name, (lo, hi) in RANGES.items()}
i, j, k, s, n = VARS.values()

# A tree of plain tuples is evaluated twice: directly on numbers, and through the algebra.
leaves = st.one_of(st.sampled_from(sorted(RANGES)), st.integers(-9, 70))
trees = st.recursive(
    leaves,
    lambda sub: st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), sub, sub),
        st.tuples(
            st.sampled_from(["//", "%"]), sub, st.one_of(st.sampled_from([1, 2, 3, 4, 8, 12, 64, -3]), st.just("s"))
        ),
    ),
    max_leaves=10,
)
values = st.fixed_dictionaries({name: st.integers(lo, hi) for name, (lo, hi) in RANGES.items()})

OPS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


def build(tree: object) -> Expr:
    """The tree as an expression."""
    if isinstance(tree, str):
        return VARS[tree]
    if isinstance(tree, int):
        return const(tree)
    op, a, b = tree
    pick = {"min": minimum, "max": maximum, **OPS}[op]
    return pick(build(a), build(b))


def compute(tree: object, env: dict[str, int]) -> int:
    """The tree's value by Python's integers."""
    if isinstance(tree, str):
        return env[tree]
    if isinstance(tree, int):
        return tree
    op, a, b = tree
    return {"min": min, "max": max, **OPS}[op](compute(a, env), compute(b, env))


@given(trees, values)
@settings(max_examples=300, deadline=None)
def test_value_range_and_text(tree: object, env: dict[str, int]) -> None:
    e = build(tree)
    expected = compute(tree, env)
    assert e.evaluate(env) == expected
    assert e.lo <= expected <= e.hi
    assert eval(e.show(), dict(env)) == expected
    assert parse(e.show(), VARS) is e
    assert copy.deepcopy(e) is e


@given(trees, values, st.sampled_from(sorted(RANGES)), trees)
@settings(max_examples=150, deadline=None)
def test_subs(tree: object, env: dict[str, int], name: str, inner: object) -> None:
    new = build(inner)
    lo, hi = RANGES[name]
    value = compute(inner, env)
    if not (lo <= value <= hi):
        return
    e = build(tree)
    assert e.subs({VARS[name]: new}).evaluate(env) == e.evaluate({**env, name: value})


@given(trees, values)
@settings(max_examples=150, deadline=None)
def test_coeff(tree: object, env: dict[str, int]) -> None:
    e = build(tree)
    for v in (i, k, s):
        stride = e.coeff(v)
        if stride is None:
            continue
        rest = e - stride * v
        assert v not in stride.vars()
        assert v not in rest.vars()
        assert rest.evaluate(env) + stride.evaluate(env) * env[v.name] == e.evaluate(env)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: (8 * i + j) // 8, "i"),
        (lambda: (8 * i + j) % 8, "j"),
        (lambda: (64 * i + 8 * j + 3) // 8, "8*i + j"),
        (lambda: (8 * i + j) // 16, "i//2"),
        (lambda: (8 * i + j) % 16, "8*(i%2) + j"),
        (lambda: 8 * (k // 8) + k % 8, "k"),
        (lambda: 16 * (k // 16) + 8 * ((k // 8) % 2) + k % 8, "k"),
        (lambda: 6 * (k // 6) + 2 * ((k // 2) % 3) + k % 2, "k"),
        (lambda: k % 2 + 2 * ((k // 2) % 3) + 6 * (k // 6), "k"),
        (lambda: (k // 4) // 2, "k//8"),
        (lambda: (k % 8) % 4, "k%4"),
        (lambda: (k + 70) // 2 - k // 2, "35"),
        (lambda: i * (j + 2) - 2 * i, "i*j"),
        (lambda: minimum(i, 9), "i"),
        (lambda: maximum(i, j, i), "max(i, j)"),
        (lambda: minimum(i, i + 1), "i"),
        (lambda: (i * s) // s, "i"),
        (lambda: 3 * i + 128 * j + 1, "128*j + 3*i + 1"),
        (lambda: -i - 2, "-i - 2"),
    ],
)
def test_simplify(made: object, text: str) -> None:
    assert made().show() == text


def test_symbolic_sizes() -> None:
    size = var("size", 1, INF)
    inner = var("x", bound=size)
    outer = var("y", 0, 9)
    flat = outer * size + inner
    assert flat // size is outer
    assert flat % size is inner
    assert (flat // size) * size + flat % size is flat
    assert known_less(inner, size)
    assert not known_less(inner, size - 1)
    z = var("z", 0, INF)
    assert (z // size) * size + z % size is z


def test_identity_and_helpers() -> None:
    assert i + j is j + i
    assert (i + 1) * 2 is 2 * i + 2
    assert as_int(const(3) * 4) == 12
    with pytest.raises(ValueError, match="not a constant"):
        as_int(i)
    with pytest.raises(ZeroDivisionError):
        i // 0
    with pytest.raises(TypeError, match="as text"):
        pickle.dumps(i)
    assert product([i, 2, j]) is i * j * 2
    assert total([i, 3, i]) is 2 * i + 3
    assert total([]) is ZERO
    assert product([]) is ONE
    split = (768 * i + j + s).split((i, j))
    assert split is not None
    strides, rest = split
    assert strides == {i: const(768), j: ONE}
    assert rest is s
    assert (i // 2).split((i,)) is None


@pytest.mark.parametrize("text", ["1 +", "q + 1", "i / 2", "f(i)", "True", "i if j else k"])
def test_parse_rejects(text: str) -> None:
    with pytest.raises(ValueError, match="not an index expression"):
        parse(text, VARS)
