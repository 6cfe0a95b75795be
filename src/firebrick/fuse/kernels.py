"""Turns groups into kernels: forwards values from writers to readers, and asks the target of a group for its kernels.

Equal work on other buffers gives an equal plan, so it becomes one kernel that is launched again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from firebrick.fuse.fusion import Group, Member
from firebrick.ir.index.expr import ONE, Expr, Var
from firebrick.ir.kernels.groups import GroupPlan, PlannedLaunch, Statement, Work
from firebrick.ir.kernels.schedule import Kernel, Launch
from firebrick.ir.loops.program import Axis, Buffer, Extern, Load, LoopProgram, Store, Value, device_type
from firebrick.ir.loops.values import Rewriter, Table
from firebrick.targets.base import Target


@dataclass(frozen=True, slots=True)
class _Made:
    """What a form of groups became. places: numbers of the group's buffers by their names in the plan."""

    plan: GroupPlan
    kernels: tuple[str, ...]
    places: dict[str, int]


class KernelSet:
    """The kernels of one schedule, each made once. scratchpads: buffers that plans need beside those of the program."""

    def __init__(self, facts: Table, targets: Mapping[str, Target], devices: Mapping[str, str]) -> None:
        self._facts = facts
        self._devices = devices
        self._targets = targets
        self._kernels_by_text: dict[tuple[Any, ...], Kernel] = {}
        self._forms: dict[tuple[object, ...], _Made] = {}
        self.scratchpads: list[Buffer] = []
        self.program: LoopProgram | None = None

    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels in order of first use."""
        return tuple(self._kernels_by_text.values())

    def launches(self, group: Group, live: set[str]) -> list[Launch]:
        """The launches that do a group's work; `live` names the buffers that are read outside of it."""
        numbers = {b for b in group.uses if self._devices[b] != group.device}
        buffers, form = _form(group, live, numbers)
        form_kernels = self._forms.get(form)
        if form_kernels is None:
            work, names = _work(group, live, numbers)
            device = device_type(group.device)
            plan = self._targets[device].plan(work, self._facts)
            kernels = tuple([self.add(step, device) for step in plan.launches])
            form_kernels = self._forms[form] = _Made(plan, kernels, {name: buffers[b] for name, b in names.items()})
        mine = list(buffers)
        names = {name: mine[k] for name, k in form_kernels.places.items()}
        for pad in form_kernels.plan.scratchpads:
            names[pad.name] = f"{group.name}_{pad.name}"
            self.scratchpads.append(Buffer(names[pad.name], pad.dtype, (pad.count,), (ONE,), "temp", group.device))
        nodes = tuple([n.node.name for n in group.nodes])
        origins = dict.fromkeys(n.node.origin for n in group.nodes if n.node.origin)
        parts = tuple(dict.fromkeys([p for n in group.nodes for p in n.node.parts]))
        launches = []
        for step, kernel in zip(form_kernels.plan.launches, form_kernels.kernels, strict=True):
            args, places = tuple([names[name] for name in step.args]), ", ".join(origins)
            launches.append(Launch(kernel, args, step.sizes, nodes, places, parts, step.grid, step.attributes))
        return launches

    def call(self, call: Extern, buffers: Mapping[str, Buffer]) -> Launch | Extern:
        """The launch of the target's kernel for a library call, or the call."""
        device = device_type(call.device)
        target = self._targets.get(device)
        step = target.plan_call(call, buffers) if target is not None else None
        if step is None:
            return call
        self.scratchpads += step.pads
        kernel = self.add(step, device)
        return Launch(kernel, step.args, step.sizes, (call.name,), call.origin, call.parts, step.grid, step.attributes)

    def add(self, step: PlannedLaunch, device: str) -> str:
        """The name of a planned kernel."""
        key = (device, step.params, step.body)
        kernel = self._kernels_by_text.get(key)
        if kernel is None:
            symbols = tuple([f"s{k}" for k in range(len(step.sizes))])
            name = f"k{len(self._kernels_by_text)}_{step.kind}"
            kernel = self._kernels_by_text[key] = Kernel(name, step.params, step.body, symbols, step.reuse, device)
        return kernel.name


def _form(group: Group, live: set[str], numbers: set[str]) -> tuple[dict[str, int], tuple[object, ...]]:
    """The buffers of a group, numbered, and what it computes in terms of those numbers and of numbered loops."""
    buffers: dict[str, int] = {}
    loops: dict[Var, int] = {}
    parts: list[object] = []
    for m in group.members:
        parts.append(m.facts.form)
        parts.append(tuple([buffers.setdefault(b, len(buffers)) for b in m.facts.buffers]))
        for e in m.subs.values():
            for atom, coeff in e.terms:
                if isinstance(atom, Var):
                    parts.append((loops.setdefault(atom, len(loops)), coeff))
                else:
                    parts.append(atom)
            parts.append(e.const)
    parts.append(tuple([loops.setdefault(v, len(loops)) for v in group.outer]))
    parts.append(tuple([group.sizes.get(v) for v in loops]))
    parts.append(tuple([(b in live, b in numbers) for b in buffers]))
    parts.append(group.device)
    return buffers, tuple(parts)


def _work(group: Group, live: set[str], numbers: set[str]) -> tuple[Work, dict[str, str]]:
    """Stores of a group in common variables, with loads of what the group itself makes replaced by the values.

    Also returns, for each name that buffers have in them (b0, b1...), the buffer.
    """
    # What runs along a loop is started before it, so that loop is the innermost.
    along = {e for m in group.members for e in (m.subs[v] for v in m.facts.scans) if isinstance(e, Var)}
    outer = tuple([v for v in group.outer if v not in along])
    short: dict[str, str] = {}
    computed: dict[tuple[str, Expr], Value] = {}
    written: list[tuple[str, frozenset[Var], Store]] = []

    def name(buffer: str) -> str:
        return short.setdefault(buffer, f"b{len(short)}")

    def load(v: Load) -> Value:
        forwarded = computed.get((v.buffer, v.index)) if not v.binds else None
        if forwarded is None:
            loaded.add(v.buffer)
        return forwarded or Load(v.dtype, name(v.buffer), v.index, v.binds)

    loaded: set[str] = set()
    for m in group.members:
        rewrite = Rewriter(_substitution(m), load, lambda axes, m=m: _axes(axes, m, group))  # type: ignore[misc]
        for s in [rewrite.store(s) for s in m.nest.stores]:
            if s.mode == "set" and not s.binds:
                computed[s.buffer, s.index] = s.value
            if s.buffer in live:
                inner = frozenset(v for v in m.parallel if v not in outer)
                written.append((s.buffer, inner, replace(s, buffer=name(s.buffer))))
    statements = tuple([Statement(inner, store, buffer in loaded) for buffer, inner, store in written])
    names = {name: buffer for buffer, name in short.items()}
    return Work(statements, outer, dict(group.sizes), frozenset(n for n, b in names.items() if b in numbers)), names


def _substitution(m: Member) -> Any:
    subs = m.subs
    return lambda e: e.subs(subs)


def _axes(axes: tuple[Axis, ...], m: Member, group: Group) -> tuple[Axis, ...]:
    """Axes of a reduction in common variables, outer parts of split ones first."""
    out: list[Axis] = []
    for a in axes:
        e = m.subs[a.var]
        parts = [v for v in e.vars() if v in group.sizes]
        parts.sort(key=lambda v: _step(e, v), reverse=True)
        out.extend(Axis(v, group.sizes[v]) for v in parts)
    return tuple(out)


def _step(e: Expr, v: Var) -> int:
    stride = e.coeff(v)
    return 0 if stride is None else max(stride.lo, 1)
