"""Steps are given to several streams so that each pair that meets in memory keeps its order."""

import random

import pytest

from firebrick.passes import branches
from firebrick.passes.branches import streams_of


def ordered(rows):
    """For each step those that are over before it begins: before it on its stream, waited for, or before one of these."""
    before, last = [], {}
    for k, (stream, *waits) in enumerate(rows):
        direct = {*waits, *([last[stream]] if stream in last else [])}
        before.append(direct.union(*(before[j] for j in direct)))
        last[stream] = k
    return before


@pytest.mark.parametrize("seed", range(40))
def test_steps_that_meet_are_in_order(seed, monkeypatch):
    monkeypatch.setattr(branches, "_PART", 9.0)
    draw = random.Random(seed)
    names = [f"b{k}" for k in range(draw.choice([3, 8, 30]))]
    steps = []
    for _ in range(draw.choice([5, 40])):
        touched = {*draw.sample(names, min(len(names), draw.randint(1, 4)))}
        writes = {*draw.sample(sorted(touched), draw.randint(0, min(2, len(touched))))}
        steps.append((touched - writes, writes))
    rows = streams_of(steps)
    before = ordered(rows)
    for k, (reads, writes) in enumerate(steps):
        for j, (others, theirs) in enumerate(steps[:k]):
            assert j in before[k] or not (writes & (others | theirs) or theirs & reads)
        for j in rows[k][1:]:
            assert rows[j][0] != rows[k][0]


def chain(name, length):
    return [({f"{name}{k}"}, {f"{name}{k + 1}"}) for k in range(length)]


def test_two_chains_are_two_streams():
    rows = streams_of([*chain("a", 9), *chain("b", 9), ({"a9", "b9"}, {"c"})])
    assert [row[0] for row in rows] == [0] * 9 + [1] * 9 + [0]
    assert [row[1:] for row in rows] == [[]] * 18 + [[17]]


def test_a_chain_stays_on_its_stream():
    assert streams_of(chain("a", 9)) == []
    assert streams_of([]) == []
