"""Makes a failing program small: statements and expressions are taken away as long as it fails in the same way."""

from __future__ import annotations

import ast
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["shrink"]

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def shrink(text: str, fails: Callable[[str], bool], seconds: float = 60.0) -> str:
    """The smallest program found in the time that `fails` still holds for."""
    end = time.monotonic() + seconds
    current = ast.unparse(ast.parse(text))
    if not fails(current):
        return text
    improved = True
    while improved and time.monotonic() < end:
        improved = False
        for step in (_without_statements, _unwrapped, _simpler_expressions):
            found = _run(current, step, fails, end)
            if found != current:
                current, improved = found, True
    return current


def _run(text: str, step: Callable[[ast.Module], Iterator[None]], fails: Callable[[str], bool], end: float) -> str:
    """Try every change of a step; each yields with the tree changed and undoes the change unless told to keep it."""
    tree = ast.parse(text)
    changes = step(tree)
    keep = None
    while time.monotonic() < end:
        try:
            changes.send(keep)
        except StopIteration:
            break
        try:
            candidate = ast.unparse(ast.fix_missing_locations(tree))
            keep = candidate != text and _valid(candidate) and fails(candidate)
        except Exception:  # the tree means nothing
            keep = False
        if keep:
            text = candidate
    return text


def _valid(text: str) -> bool:
    try:
        compile(text, "<candidate>", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _lists(tree: ast.AST) -> Iterator[tuple[ast.AST, str, list]]:
    for node in ast.walk(tree):
        for name in _BODIES:
            value = getattr(node, name, None)
            if isinstance(value, list) and value:
                yield node, name, value


def _without_statements(tree: ast.Module) -> Iterator[None]:
    for node, name, body in _lists(tree):
        size = max(len(body) // 2, 1)
        while size:
            start = len(body) - size
            while start >= 0 and body:
                before = body[:]
                del body[start : start + size]
                if not body and name == "body":
                    body.append(ast.Pass())
                if not (yield):
                    body[:] = before
                start -= size
            size //= 2


def _unwrapped(tree: ast.Module) -> Iterator[None]:
    for _, name, body in _lists(tree):
        if name in ("handlers", "cases"):
            continue
        index = 0
        while index < len(body):
            statement = body[index]
            inner = [getattr(statement, part, None) for part in ("body", "orelse", "finalbody")]
            for replacement in inner:
                if (
                    isinstance(replacement, list)
                    and replacement
                    and not isinstance(statement, ast.FunctionDef | ast.ClassDef)
                ):
                    body[index : index + 1] = replacement
                    if (yield):
                        break
                    body[index : index + len(replacement)] = [statement]
            index += 1


def _simpler_expressions(tree: ast.Module) -> Iterator[None]:
    for node in list(ast.walk(tree)):
        for name, value in list(ast.iter_fields(node)):
            if isinstance(value, ast.expr) and not isinstance(getattr(value, "ctx", None), ast.Store | ast.Del):
                for simpler in _simpler(value):
                    setattr(node, name, simpler)
                    if (yield):
                        break
                    setattr(node, name, value)
            elif isinstance(value, list):
                for index in range(len(value) - 1, -1, -1):
                    item = value[index]
                    if isinstance(item, ast.expr):
                        for simpler in _simpler(item):
                            value[index] = simpler
                            if (yield):
                                break
                            value[index] = item
                    if isinstance(item, ast.expr | ast.keyword | ast.withitem | ast.arg) and name not in ("targets",):
                        del value[index]
                        if not (yield):
                            value.insert(index, item)


def _simpler(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.Name | ast.Constant):
        return
    for child in ast.iter_child_nodes(value):
        if isinstance(child, ast.expr):
            yield child
    for child in ast.iter_child_nodes(value):
        for grandchild in ast.iter_child_nodes(child):
            if isinstance(grandchild, ast.expr) and isinstance(child, ast.expr):
                yield grandchild
    yield ast.Constant(1)
    yield ast.Name("x", ast.Load())
