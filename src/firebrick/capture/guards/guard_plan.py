"""Plans: the guards of one entry, compiled for native evaluation.

`build_plan` merges the sources of all guards into one tree, so that a shared prefix is evaluated once, and puts
below each dict first what needs no look while the dict's version stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from firebrick import _native
from firebrick.capture.guards import sources as s
from firebrick.capture.guards.guard_kinds import GROUP_KINDS, KINDS, Guard
from firebrick.capture.guards.size_conditions import program

if TYPE_CHECKING:
    from firebrick._native import Frame

_OPS, _CHECKS, _STATES, _GROUPS = _native.OPS, _native.CHECKS, _native.STATES, _native.GROUPS
_DICT_KINDS = frozenset(("DICT_KEYS", "HAS_KEY", "LACKS_KEY"))
"""Guards that depend on the items of a dict, so on its version."""


class Plan(_native.GuardPlan):
    """Guards that the frame hook evaluates; made by `build_plan`."""

    guards: tuple[Guard, ...]
    modules: list[Guard]
    """Guards on the identity of arguments that are modules."""
    check_guards: list[Guard | None]
    """The guard behind each native check; None for those that a source brings along."""
    state_guards: list[Guard]

    def show(self) -> list[str]:
        """One line a guard, stable between runs."""
        return [f"guard {guard}" for guard in self.guards]

    def explain_failure(self, frame: Frame) -> str:
        """Say which guard fails for a frame and why, in the user's terms; empty when none does."""
        if self.dead:
            return "an object that the guards know by identity is gone"
        guard = self.failing_guard(frame)
        if guard is None:
            return "" if self.failing(frame) is None else "a guard failed"
        return guard.explain(frame)

    def is_about(self, frame: Frame) -> bool:
        """Whether a frame's modules are those of the plan, so that it is another version of the same."""
        return all(guard.holds(frame) for guard in self.modules)

    def failing_guard(self, frame: Frame) -> Guard | None:
        """The first guard that fails for a frame, where one can be named."""
        number = None if self.dead else self.failing(frame)
        if number is None:
            return None
        guard = self.state_guards[-1 - number] if number < 0 else self.check_guards[number]
        if guard is None or guard.holds(frame):
            guard = next((g for g in self.guards if not g.holds(frame)), guard)
        return guard


class _Check(NamedTuple):
    name: str
    payload: Any
    settled: bool
    """Nothing changes it while the object, or the version of the dict, is the same."""
    guard: Guard | None


class _Node:
    __slots__ = "by_place checks exact index key number op parent pinned size versioned volatile".split()

    def __init__(self, op: str, parent: _Node | None, index: int = 0, key: Any = None) -> None:
        self.op, self.parent, self.index, self.key = op, parent, index, key
        self.by_place: dict[Any, _Node] = {}
        """Children, by how they are reached."""
        self.checks: list[_Check] = []
        self.exact: type | None = None
        """The class of the value, where a guard says so."""
        self.pinned = False
        """Another check refers to the value, so it must be there on every call."""
        self.versioned = False
        """A dict whose items or keys are guarded, by its version."""
        self.volatile = True
        self.size = 1
        self.number = -1


def _hashable(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        return id(key)
    return key


class _Builder:
    def __init__(self, code: CodeType, classes: dict[s.Source, type]) -> None:
        self.classes = classes
        self.top = _Node("", None)
        self.by_source: dict[s.Source, _Node] = {}
        self.same: list[tuple[_Node, _Node, Guard]] = []
        self.states: list[Guard] = []
        self.groups: list[tuple[Guard, list[_Node], tuple[int, ...]]] = []
        self.free = {name: i for i, name in enumerate(code.co_freevars)}
        slots = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        self.arguments = {name: i for i, name in enumerate(code.co_varnames[:slots])}

    def child(self, op: str, parent: _Node | None, index: int = 0, key: Any = None) -> _Node:
        """The node for a place below `parent`, made if need be."""
        place = (op, index, type(key), key if type(key) is str else _hashable(key))
        owner = self.top if parent is None else parent
        node = owner.by_place.get(place)
        if node is None:
            node = owner.by_place[place] = _Node(op, parent, index, key)
            if op == "DICT_ITEM":
                owner.versioned = True
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
        roots = list(self.top.by_place.values())
        for root in roots:
            _settle(root)
        # What is cheap to look at goes first: most calls that don't fit differ in an argument.
        for root in sorted(roots, key=lambda node: node.size):
            _place(root, order)
        for one, other, guard in self.same:
            earlier, later = sorted((one, other), key=lambda node: node.number)
            later.checks.append(_Check("SAME", earlier.number, False, guard))
        return order

    def add_group(self, guard: Guard) -> bool:
        """Add a guard on several values; whether it was new."""
        if any(earlier.same(guard) for earlier, *_ in self.groups):
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
            if any(earlier.same(guard) for earlier in self.states):
                return False
            self.states.append(guard)
            return True
        node = self.node(guard.source)
        for check in node.checks:
            if check.guard is not None and check.guard.kind == guard.kind and check.guard.same(guard):
                return False
        if guard.kind == "SAME":
            other = self.node(guard.payload)
            node.pinned = other.pinned = True
            self.same.append((node, other, guard))
            return True
        settled = kind.stable(guard.payload)
        if guard.kind in _DICT_KINDS:
            node.versioned = True
            # The order of keys in a subclass of dict may change without its version.
            settled = guard.kind != "DICT_KEYS" or node.exact is dict
        node.checks.append(_Check(kind.check or kind.name, kind.native(guard.payload), settled, guard))
        return True


def _own_dict(builder: _Builder, base: s.Source) -> _Node:
    return builder.child("INSTANCE_DICT", builder.node(base))


def _lower_builtin(builder: _Builder, source: s.Builtin) -> _Node:
    variables = builder.child("GLOBALS", None)
    if not any(check.name == "LACKS_KEY" and check.payload == source.name for check in variables.checks):
        variables.checks.append(_Check("LACKS_KEY", source.name, True, None))
        variables.versioned = True
    return builder.child("DICT_ITEM", builder.child("BUILTINS", None), key=source.name)


def _lower_variables(builder: _Builder, source: s.Global | s.Variables) -> _Node:
    if source.namespace is None:
        return builder.child("GLOBALS", None)
    return builder.child("CONST", None, key=source.namespace.variables)


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
    s.Global: lambda builder, source: builder.child("DICT_ITEM", _lower_variables(builder, source), key=source.name),
    s.Variables: _lower_variables,
    s.Builtin: _lower_builtin,
    s.Const: lambda b, x: b.child("CONST", None, key=x.value),
    s.Attr: lambda b, x: b.child("ATTRIBUTE", b.node(x.base), key=x.name),
    s.InstanceDict: lambda b, x: _own_dict(b, x.base),
    s.InstanceAttr: lambda b, x: b.child("DICT_ITEM", _own_dict(b, x.base), key=x.name),
    s.ModuleItem: lambda b, x: b.child(
        "DICT_ITEM", b.child("DICT_ITEM", _own_dict(b, x.base), key=x.table), key=x.name
    ),
    s.Item: _lower_item,
    s.BuiltinItem: lambda b, x: (
        b.child("DICT_ITEM", b.node(x.base), key=x.key)
        if x.kind is dict
        else b.child("SEQUENCE_ITEM", b.node(x.base), x.key)
    ),
    s.DictKey: lambda b, x: b.child("DICT_KEY", b.node(x.base), x.index),
    s.Applied: lambda b, x: b.child("CALL", b.node(x.base), key=x.applied),
    s.TypeOf: lambda b, x: b.child("TYPE", b.node(x.base)),
    s.ClassAttr: lambda b, x: b.child("CLASS_ITEM", b.node(x.base), key=x.name),
    s.CellContents: lambda b, x: b.child("CONTENTS", b.node(x.base)),
    s.FunctionPart: lambda b, x: b.child("FUNCTION_PART", b.node(x.base), _native.FUNCTION_PARTS[x.name]),
    s.MethodPart: lambda b, x: b.child("METHOD_SELF" if x.name == "__self__" else "METHOD_FUNCTION", b.node(x.base)),
}
"""Source class -> how it becomes nodes."""


def _settle(node: _Node) -> bool:
    """Find what is volatile below a node: all that can change while the object at the node stays the same."""
    volatile = node.pinned or node.versioned
    for check in node.checks:
        volatile = volatile or not check.settled
    is_tuple = node.exact is not None and issubclass(node.exact, tuple)
    for child in node.by_place.values():
        # Only the items of a tuple stay; whatever else is reached through an object may change.
        volatile = _settle(child) or not is_tuple or child.op != "SEQUENCE_ITEM" or volatile
        node.size += child.size
    node.volatile = volatile
    return volatile


def build_plan(guards: Iterable[Guard], code: CodeType) -> Plan:
    """Compile guards for frames of `code`; guards that say the same are kept once."""
    ordered = tuple(guards)
    types = ((g.source, g.payload.get()) for g in ordered if g.kind == "TYPE" and g.source is not None)
    classes = {source: cls for source, cls in types if isinstance(cls, type)}
    builder = _Builder(code, classes)
    added = [guard for guard in ordered if builder.add(guard)]
    order = builder.order()
    rows, checks, check_guards = _rows(order)
    states = [(_STATES[guard.kind], guard.payload) for guard in builder.states]
    groups = [(_GROUPS[g.kind], tuple(node.number for node in nodes), numbers) for g, nodes, numbers in builder.groups]
    plan = Plan(rows, checks, states, groups)
    plan.guards = tuple(added)
    plan.modules = [
        guard
        for guard in added
        if guard.kind == "ID"
        and isinstance(guard.source, (s.Local, s.Cell))
        and isinstance(guard.payload.get(), torch.nn.Module)
    ]
    plan.check_guards = [*check_guards, *(guard for guard, *_ in builder.groups)]
    plan.state_guards = builder.states
    for node, *_ in order:  # they refer to each other, and to the user's objects
        node.checks.clear()
        node.by_place.clear()
    return plan


def _place(node: _Node, order: list[tuple[_Node, int, int]]) -> None:
    """Lay out a subtree in preorder, below a versioned dict the settled items first."""
    number = node.number = len(order)
    order.append((node, number + 1, number + 1))
    if not node.by_place:
        return
    others: Iterable[_Node] = node.by_place.values()
    if node.versioned:
        settled = [child for child in others if not child.volatile and child.op == "DICT_ITEM"]
        others = [child for child in others if child.volatile or child.op != "DICT_ITEM"]
        for child in settled:
            _place(child, order)
    volatile_begin = len(order)
    for child in others:
        _place(child, order)
    order[number] = (node, len(order), volatile_begin)


def _rows(order: list[tuple[_Node, int, int]]) -> tuple[list[Any], list[Any], list[Guard | None]]:
    """Nodes and checks as the native plan takes them; the checks of a node that are settled come first."""
    rows: list[Any] = []
    checks: list[Any] = []
    check_guards: list[Guard | None] = []
    for node, end, volatile_begin in order:
        begin = settled = len(checks)
        for stable in (True, False):
            for check in node.checks:
                if check.settled is stable:
                    checks.append((_CHECKS[check.name], check.payload))
                    check_guards.append(check.guard)
            if stable:
                settled = len(checks)
        parent = -1 if node.parent is None else node.parent.number
        place = (_OPS[node.op], parent, end, volatile_begin, node.index, node.key, node.versioned)
        rows.append((*place, begin, settled, len(checks)))
    return rows, checks, check_guards
