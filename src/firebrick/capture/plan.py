"""Plans: the guards of one entry, compiled for native evaluation.

`build_plan` merges the sources of all guards into one tree, so that a shared prefix is evaluated once, and puts
below each dict first what needs no look while the dict's version stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firebrick import _native
from firebrick.capture import sources as s
from firebrick.capture.guards import GROUP_KINDS, KINDS, Guard
from firebrick.capture.shapes import program

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType

    from firebrick._native import Frame

__all__ = ["Plan", "build_plan"]

_OPS, _CHECKS, _STATES, _GROUPS = _native.OPS, _native.CHECKS, _native.STATES, _native.GROUPS
_DICT_KINDS = frozenset(("HAS_KEY", "LACKS_KEY"))
_DICT_CHECKS = _DICT_KINDS | {"KEYS"}
"""Checks that depend on the items of a dict, so on its version."""


class Plan(_native.GuardPlan):
    """Guards that the frame hook evaluates; made by `build_plan`."""

    guards: tuple[Guard, ...]
    check_guards: list[Guard | None]
    """The guard behind each native check; None for those that a source brings along."""
    state_guards: list[Guard]

    def show(self) -> list[str]:
        """One line a guard, stable between runs."""
        return [f"guard {guard}" for guard in self.guards]

    def explain_failure(self, frame: Frame) -> str:
        """Say which guard fails for a frame and why, in the user's terms; empty when none does."""
        number = self.failing(frame)
        if number is None:
            return ""
        if self.dead:
            return "an object that the guards know by identity is gone"
        guard = self.state_guards[-1 - number] if number < 0 else self.check_guards[number]
        if guard is None or guard.holds(frame):
            guard = next((g for g in self.guards if not g.holds(frame)), guard)
        return "a guard failed" if guard is None else guard.explain(frame)


class _Node:
    __slots__ = ("checks", "children", "exact", "index", "key", "number", "op", "parent", "pinned", "volatile")

    def __init__(self, op: str, parent: _Node | None, index: int = 0, key: Any = None) -> None:
        self.op, self.parent, self.index, self.key = op, parent, index, key
        self.children: list[_Node] = []
        self.checks: list[tuple[str, Any, bool, Guard | None]] = []
        self.pinned = False
        """Another check refers to the value, so it must be there on every call."""
        self.exact: type | None = None
        """The class of the value, where a guard says so."""
        self.volatile = True
        self.number = -1

    def size(self) -> int:
        """How many nodes the subtree has."""
        return 1 + sum(child.size() for child in self.children)

    @property
    def versioned(self) -> bool:
        """Whether the dict at this node is guarded by its version."""
        return any(c.op == "DICT_ITEM" for c in self.children) or any(name in _DICT_CHECKS for name, *_ in self.checks)


class _Builder:
    def __init__(self, code: CodeType, classes: dict[s.Source, type]) -> None:
        self.classes = classes
        self.roots: list[_Node] = []
        self.by_place: dict[tuple[Any, ...], _Node] = {}
        self.by_source: dict[s.Source, _Node] = {}
        self.same: list[tuple[_Node, _Node, Guard]] = []
        self.states: list[Guard] = []
        self.groups: list[tuple[Guard, list[_Node], tuple[int, ...]]] = []
        self.free = {name: i for i, name in enumerate(code.co_freevars)}
        slots = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        self.arguments = {name: i for i, name in enumerate(code.co_varnames[:slots])}

    def child(self, op: str, parent: _Node | None, index: int = 0, key: Any = None) -> _Node:
        """The node for a place below `parent`, made if need be."""
        hashable: Any = (type(key), key)
        try:
            hash(key)
        except TypeError:
            hashable = (dict, id(key))
        place = (op, id(parent), index, hashable)
        node = self.by_place.get(place)
        if node is None:
            node = self.by_place[place] = _Node(op, parent, index, key)
            (self.roots if parent is None else parent.children).append(node)
        return node

    def node(self, source: s.Source) -> _Node:
        """The node that a source leads to."""
        node = self.by_source.get(source)
        if node is None:
            node = self.by_source[source] = _LOWER[type(source)](self, source)
            node.exact = node.exact or self.classes.get(source)
        return node

    def order(self) -> list[tuple[_Node, int, int]]:
        """All nodes in preorder, each with the end of its subtree and of what is settled below it."""
        order: list[tuple[_Node, int, int]] = []
        for root in self.roots:
            _settle(root)
        # What is cheap to look at goes first: most calls that don't fit differ in an argument.
        for root in sorted(self.roots, key=_Node.size):
            _place(root, order)
        for one, other, guard in self.same:
            earlier, later = sorted((one, other), key=lambda node: node.number)
            later.checks.append(("SAME", earlier.number, False, guard))
        return order

    def add_group(self, guard: Guard) -> bool:
        """Add a guard on several values; whether it was new."""
        if any(known.same(guard) for known, *_ in self.groups):
            return False
        numbers: tuple[int, ...] = ()
        sources: Iterable[s.Source] = guard.payload
        if guard.kind == "SHAPE":
            sources, numbers = program(guard.payload)
        nodes = [self.node(source) for source in sources]
        for node in nodes:
            node.pinned = True
        self.groups.append((guard, nodes, numbers))
        return True

    def add(self, guard: Guard) -> bool:
        """Add a guard to its source's node; whether it was new."""
        kind = KINDS[guard.kind]
        if guard.kind in GROUP_KINDS:
            return self.add_group(guard)
        if guard.source is None:
            if any(known.same(guard) for known in self.states):
                return False
            self.states.append(guard)
            return True
        node = self.node(guard.source)
        if any(known is not None and known.same(guard) for *_, known in node.checks):
            return False
        if guard.kind == "SAME":
            other = self.node(guard.payload)
            node.pinned = other.pinned = True
            self.same.append((node, other, guard))
            return True
        stable = kind.stable(guard.payload)
        if guard.kind == "DICT_KEYS":
            stable = node.exact is dict  # the order of a subclass may change without its version
        node.checks.append(
            (kind.check or kind.name, kind.native(guard.payload), stable or guard.kind in _DICT_KINDS, guard)
        )
        return True


def _own_dict(builder: _Builder, base: s.Source) -> _Node:
    return builder.child("INSTANCE_DICT", builder.node(base))


def _lower_builtin(builder: _Builder, source: s.Builtin) -> _Node:
    variables = builder.child("GLOBALS", None)
    if not any(name == "LACKS_KEY" and payload == source.name for name, payload, *_ in variables.checks):
        variables.checks.append(("LACKS_KEY", source.name, False, None))
    return builder.child("DICT_ITEM", builder.child("BUILTINS", None), key=source.name)


def _lower_global(builder: _Builder, source: s.Global) -> _Node:
    variables = (
        builder.child("GLOBALS", None)
        if source.namespace is None
        else builder.child("CONST", None, key=source.namespace.variables)
    )
    return builder.child("DICT_ITEM", variables, key=source.name)


def _lower_item(builder: _Builder, source: s.Item) -> _Node:
    base = builder.node(source.base)
    getter = getattr(base.exact, "__getitem__", None)
    if type(source.key) is int and getter in (tuple.__getitem__, list.__getitem__):
        return builder.child("SEQUENCE_ITEM", base, source.key)
    if getter is dict.__getitem__:
        return builder.child("DICT_ITEM", base, key=source.key)
    return builder.child("ITEM", base, key=source.key)


_LOWER: dict[type, Any] = {
    s.Local: lambda b, x: b.child("LOCAL", None, b.arguments[x.name]),
    s.Cell: lambda b, x: b.child("CONTENTS", b.child("FREE", None, b.free[x.name])),
    s.Global: _lower_global,
    s.Builtin: _lower_builtin,
    s.Const: lambda b, x: b.child("CONST", None, key=x.value),
    s.Attr: lambda b, x: b.child("ATTRIBUTE", b.node(x.base), key=x.name),
    s.InstanceDict: lambda b, x: _own_dict(b, x.base),
    s.InstanceAttr: lambda b, x: b.child("DICT_ITEM", _own_dict(b, x.base), key=x.name),
    s.ModuleItem: lambda b, x: b.child(
        "DICT_ITEM", b.child("DICT_ITEM", _own_dict(b, x.base), key=x.table), key=x.name
    ),
    s.Item: _lower_item,
    s.DictItem: lambda b, x: b.child("DICT_ITEM", b.node(x.base), key=x.key),
    s.DictKey: lambda b, x: b.child("DICT_KEY", b.node(x.base), x.index),
    s.TypeOf: lambda b, x: b.child("TYPE", b.node(x.base)),
    s.ClassAttr: lambda b, x: b.child("CLASS_ITEM", b.node(x.base), key=x.name),
    s.CellContents: lambda b, x: b.child("CONTENTS", b.node(x.base)),
    s.FunctionPart: lambda b, x: b.child("FUNCTION_PART", b.node(x.base), _native.FUNCTION_PARTS[x.name]),
    s.MethodPart: lambda b, x: b.child("METHOD_SELF" if x.name == "__self__" else "METHOD_FUNCTION", b.node(x.base)),
}
"""Source class -> how it becomes nodes."""


def _settle(node: _Node) -> bool:
    """Find what is volatile below a node: all that can change while the object at the node stays the same."""
    below = [_settle(child) for child in node.children]
    own = node.pinned or node.versioned or any(not stable for _, _, stable, _ in node.checks)
    is_tuple = node.exact is not None and issubclass(node.exact, tuple)
    moving = any(child.op != "SEQUENCE_ITEM" or not is_tuple for child in node.children)
    node.volatile = own or moving or any(below)
    return node.volatile


def build_plan(guards: Iterable[Guard], code: CodeType) -> Plan:
    """Compile guards for frames of `code`; guards that say the same are kept once."""
    given = tuple(guards)
    classes = {g.source: g.payload.get() for g in given if g.kind == "TYPE" and g.source is not None}
    builder = _Builder(code, classes)
    kept = [guard for guard in given if builder.add(guard)]
    order = builder.order()
    rows, checks, check_guards = _rows(order)
    states = [(_STATES[guard.kind], guard.payload) for guard in builder.states]
    groups = [(_GROUPS[g.kind], tuple(node.number for node in nodes), numbers) for g, nodes, numbers in builder.groups]
    plan = Plan(rows, checks, states, groups)
    plan.guards = tuple(kept)
    plan.check_guards = [*check_guards, *(guard for guard, *_ in builder.groups)]
    plan.state_guards = builder.states
    return plan


def _place(node: _Node, order: list[tuple[_Node, int, int]]) -> None:
    """Lay out a subtree in preorder, below a versioned dict the settled items first."""
    node.number = len(order)
    order.append((node, 0, 0))
    if node.versioned:
        settled = [child for child in node.children if not child.volatile and child.op == "DICT_ITEM"]
        others = [child for child in node.children if child.volatile or child.op != "DICT_ITEM"]
    else:
        settled, others = [], node.children
    for child in settled:
        _place(child, order)
    volatile_begin = len(order)
    for child in others:
        _place(child, order)
    order[node.number] = (node, len(order), volatile_begin)


def _rows(order: list[tuple[_Node, int, int]]) -> tuple[list[Any], list[Any], list[Guard | None]]:
    rows: list[Any] = []
    checks: list[Any] = []
    check_guards: list[Guard | None] = []
    for node, end, volatile_begin in order:
        ordered = sorted(node.checks, key=lambda check: not check[2])
        begin, settled = len(checks), sum(check[2] for check in ordered)
        for name, payload, _, guard in ordered:
            checks.append((_CHECKS[name], payload))
            check_guards.append(guard)
        parent = -1 if node.parent is None else node.parent.number
        rows.append(
            (
                _OPS[node.op],
                parent,
                end,
                volatile_begin,
                node.index,
                node.key,
                int(node.versioned),
                begin,
                begin + settled,
                len(checks),
            )
        )
    return rows, checks, check_guards
