"""Why a compile found nothing in the cache: what its key is made of, against the keys of other entries, in words."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from itertools import zip_longest

_LABELS: Mapping[str, str] = {
    "graph": "op {} of the graph", "inputs": "input {}", "constants": "captured tensor {}",
    "sharing": "which tensors share memory", "state": "torch's state", "passes": "the passes", "versions": "version",
    "target": "machine", "part": "part",
}  # fmt: skip
"""Part of a key -> what a line of it is called; {} is the line's number."""
_SHOWN = 4


def differences(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """What of a key differs from another, one sentence a difference; of a graph only the first."""
    sentences = []
    for name in sorted({*mine, *theirs}):
        now, then = mine.get(name, ""), theirs.get(name, "")
        if now == then:
            continue
        if name == "options":
            sentences += _options(now, then)
            continue
        lines = _lines(_LABELS.get(name, name), now.splitlines(), then.splitlines())
        shown = 1 if name == "graph" else _SHOWN
        sentences += lines[:shown]
        if len(lines) > shown:
            sentences.append(f"... and {len(lines) - shown} more of {name}")
    return sentences


def nearest(
    mine: Mapping[str, str], others: Iterable[tuple[str, Mapping[str, str]]]
) -> tuple[str, Mapping[str, str]] | None:
    """The (name, parts) of the key with the fewest differences; one with the same graph comes first."""
    best: tuple[tuple[int, ...], tuple[str, Mapping[str, str]]] | None = None
    for name, theirs in others:
        unlike = {part for part in {*mine, *theirs} if mine.get(part) != theirs.get(part)}
        if unlike:
            pairs = (zip_longest(*(key.get(part, "").splitlines() for key in (mine, theirs))) for part in unlike)
            lines = sum(a != b for rows in pairs for a, b in rows)
            rank = ("graph" in unlike, len(unlike), lines)
            if best is None or rank < best[0]:
                best = (rank, (name, theirs))
    return None if best is None else best[1]


def _lines(label: str, now: list[str], then: list[str]) -> list[str]:
    pairs = zip_longest(now, then, fillvalue="nothing")
    return [f"{label.format(i)} is {_short(a)}, was {_short(b)}" for i, (a, b) in enumerate(pairs) if a != b]


def _options(now: str, then: str) -> list[str]:
    try:
        mine, theirs = dict(ast.literal_eval(now)), dict(ast.literal_eval(then))
    except (ValueError, SyntaxError, TypeError):
        return ["the options"]
    names = [name for name in {**theirs, **mine} if mine.get(name) != theirs.get(name)]
    return [f"option {name} is {mine.get(name)!r}, was {theirs.get(name)!r}" for name in names]


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."
