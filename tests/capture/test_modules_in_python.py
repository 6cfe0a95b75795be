"""Functions of the standard library that C code has, by the Python beside it: operator, bisect, heapq, itertools."""

from __future__ import annotations

import bisect
import collections
import functools
import heapq
import itertools
import operator

import pytest
import torch
from compiling import Compiled, assert_same, outcome

X = torch.arange(3.0)


def getters(x):
    pair = collections.namedtuple("pair", "a b")(x, [x, 2])
    rows = sorted([(2, "b"), (1, "a")], key=operator.itemgetter(0))
    return (
        operator.itemgetter(1)([x, x * 2]),
        operator.itemgetter(0, 1)((x, 2)),
        operator.attrgetter("a.shape")(pair),
        rows,
    )


def calls(x):
    return operator.methodcaller("mul", 3)(x), operator.call(lambda v, k: v * k, x, k=2), operator.length_hint([x])


def lists(x):
    items = {"a": 1, "b": x}
    operator.delitem(items, "a")
    found = operator.countOf([1, 2, 1], 1), operator.indexOf([1, 2], 2)
    return items, operator.concat([x], [2]), operator.iconcat([1], [x]), found


def sums(x):
    return functools.reduce(lambda a, b: a * b + x, [1, 2, 3]), functools.reduce(operator.add, [x, x], x)


def of_nothing(x):
    return x + 1, functools.reduce(operator.add, [])


def counts(x):
    return x * collections.Counter([1, 1, 2])[1], collections.Counter("abca")


def chosen(x):
    return (
        [list(itertools.permutations([x, 1, 2], 2)), list(itertools.permutations("ab")), x + 1],
        list(itertools.combinations([x, 1, 2], 2)),
        list(itertools.combinations_with_replacement([1, x], 2)),
    )


def places(x):
    items = [1, 5]
    bisect.insort(items, 3)
    bisect.insort_left(items, 3)
    return x * bisect.bisect(items, 3), bisect.bisect_left(items, 3), items, bisect.bisect([1, 2], 2, key=lambda v: v)


def heaps(x):
    heap = [3, 1, 2]
    heapq.heapify(heap)
    heapq.heappush(heap, 0)
    least = heapq.heappop(heap)
    rest = heapq.heappushpop(heap, 9), heapq.heapreplace(heap, 7)
    return (
        x * least,
        heap,
        rest,
        heapq.nlargest(2, [3, 1, 2]),
        heapq.nsmallest(2, [3, 1, 2]),
        list(heapq.merge([1], [0])),
    )


def heap_of_nothing(x):
    return x + 1, heapq.heappop([])


def no_such_item(x):
    return x + 1, operator.indexOf([1], 5)


@pytest.mark.parametrize(
    "function",
    [
        getters, calls, lists, sums, of_nothing, counts, chosen, places, heaps, heap_of_nothing, no_such_item,
    ],
)  # fmt: skip
def test_like_plain(function):
    compiled = Compiled(function, fullgraph=True)
    for x in (X, X + 1):
        assert_same(outcome(compiled, (x,)), outcome(function, (x,)))
