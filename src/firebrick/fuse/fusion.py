"""Which nodes become one kernel.

Nodes are taken in program order. Each starts as a group of its own and joins earlier groups that share buffers with
it, best first, as long as `can_fuse` finds nothing against it. Groups are only compared with groups that share a buffer
and are not far away, so that the work grows with the program's length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from firebrick.config import Config
from firebrick.errors import LoweringError
from firebrick.fuse.dependencies import Access, NodeFacts
from firebrick.fuse.unify import Names, Unifier
from firebrick.ir.index.expr import ONE, ZERO, Expr, Var
from firebrick.ir.kernels.schedule import Refusal
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Nest, device_type
from firebrick.ir.loops.values import hint
from firebrick.targets.base import Target

_WINDOW = 96
"""Nodes further apart than this are not considered."""
_MOST_MEMBERS = 256


@dataclass(slots=True)
class Member:
    """One nest in a group. subs: its variables in the group's terms; parallel, reduced: group variables of its axes."""

    facts: NodeFacts
    nest: Nest
    subs: dict[Var, Expr]
    parallel: tuple[Var, ...]
    reduced: tuple[Var, ...]


@dataclass(slots=True)
class Group:
    """Nodes that run as one step.

    outer: loops that all members share. reads, writes: addresses by buffer. device: that of all its buffers; none for
    a library call.
    """

    key: int
    first: int
    nodes: list[NodeFacts]
    members: list[Member] = field(default_factory=list)
    sizes: dict[Var, Expr] = field(default_factory=dict)
    outer: tuple[Var, ...] = ()
    reads: dict[str, list[tuple[Expr, Access]]] = field(default_factory=dict)
    writes: dict[str, list[tuple[Expr, Access]]] = field(default_factory=dict)
    uses: set[str] = field(default_factory=set)
    makes: set[str] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    ancestors: int = 0
    bits: int = 0
    gone: bool = False
    device: str = ""

    @property
    def fusible(self) -> bool:
        """Whether it is loops, not a library call."""
        return bool(self.members)

    @property
    def name(self) -> str:
        """Name of its first node."""
        return self.nodes[0].node.name


@dataclass(slots=True)
class Fusion:
    """How two groups become one: substitutions into common variables, and the loops that they share."""

    unifier: Unifier
    outer: tuple[Var, ...]
    category: int
    saved: int


class _Fuser:
    def __init__(
        self,
        nodes: list[NodeFacts],
        before: list[set[int]],
        devices: Mapping[str, str],
        targets: Mapping[str, Target],
        config: Config,
    ) -> None:
        self.names = Names()
        self.devices = devices
        self.facts = {device: target.fusion() for device, target in targets.items()}
        self.enabled = config.fuse
        self.refusals: dict[tuple[str, str], str] = {}
        self.groups: list[Group] = []
        self.home: list[int] = []
        self.makers: dict[str, list[int]] = {}
        self.users: dict[str, list[int]] = {}
        self.nodes = nodes
        self.needs = before

    # ------------------------------------------------------------ the walk

    def run(self) -> list[Group]:
        """All groups, in no particular order."""
        for k, facts in enumerate(self.nodes):
            group = self._single(k, facts)
            self.groups.append(group)
            self.home.append(k)
            group.before = {self._find(d) for d in self.needs[k]}
            for d in group.before:
                group.ancestors |= self.groups[d].ancestors | self.groups[d].bits
            if group.fusible and self.enabled:
                self._grow(group)
            for b in facts.makes:
                self.makers.setdefault(b, []).append(k)
            for b in facts.uses:
                self.users.setdefault(b, []).append(k)
        return [g for g in self.groups if not g.gone]

    def _find(self, k: int) -> int:
        while self.home[k] != k:
            self.home[k] = self.home[self.home[k]]
            k = self.home[k]
        return k

    def _single(self, k: int, facts: NodeFacts) -> Group:
        group = Group(k, k, [facts], bits=1 << k, uses=set(facts.uses), makes=set(facts.makes))
        if not facts.writes:
            return group
        nest: Nest = facts.node  # type: ignore[assignment]
        group.device = self._device(facts)
        subs: dict[Var, Expr] = {}
        parallel = []
        for a in nest.axes:
            if a.size is ONE:
                subs[a.var] = ZERO
                continue
            v = self.names.fresh(a.size)
            group.sizes[v] = a.size
            subs[a.var] = v
            parallel.append(v)
        reduced: list[Var] = []
        shared: dict[tuple[Expr, ...], tuple[Var, ...]] = {}
        for axes in facts.reductions:
            key = tuple([a.size for a in axes if a.size is not ONE])
            variables = shared.get(key)
            if variables is None:
                variables = shared[key] = tuple([self.names.fresh(s) for s in key])
                group.sizes.update(zip(variables, key, strict=True))
                reduced.extend(variables)
            rest = iter(variables)
            for a in axes:
                subs[a.var] = ZERO if a.size is ONE else next(rest)
        group.members.append(Member(facts, nest, subs, tuple(parallel), tuple(reduced)))
        group.outer = tuple(parallel)
        for rows, accesses in ((group.reads, facts.reads), (group.writes, facts.writes)):
            for access in accesses:
                rows.setdefault(access.buffer, []).append((access.index.subs(subs), access))
        return group

    def _device(self, facts: NodeFacts) -> str:
        elements = {a.buffer for a in facts.reads if a.index is not ZERO}
        buffer_on = {self.devices[b]: b for b in facts.makes}
        # Where lowering lets loops read a number on a CPU, the kernel takes it by value.
        buffer_on |= {self.devices[b]: b for b in facts.uses if self.devices[b] != "cpu" or b in elements}
        if len(buffer_on) > 1:
            (one, a), (two, b), *_ = buffer_on.items()
            raise LoweringError(f"{facts.node.name}: no loop reads {a} on {one} and {b} on {two}")
        (device,) = buffer_on
        if device_type(device) not in self.facts:
            raise LoweringError(f"{facts.node.name}: no target writes kernels for {device}")
        return device

    def _grow(self, group: Group) -> None:
        """Join earlier groups to `group`, best first, until none fits."""
        refused: set[int] = set()
        while True:
            best: tuple[tuple[int, int, int], Group, Fusion] | None = None
            for other in self._candidates(group, refused):
                fit = self.can_fuse(other, group)
                if isinstance(fit, str):
                    refused.add(other.key)
                    self.refusals.setdefault((other.name, group.name), fit)
                    continue
                # What they share comes first, then bytes of memory traffic saved, then nearness.
                score = fit.category, fit.saved, -abs(group.first - self._last(other))
                if best is None or score > best[0]:
                    best = score, other, fit
            if best is None:
                return
            self._merge(best[1], group, best[2])

    def _candidates(self, group: Group, refused: set[int]) -> list[Group]:
        candidates: dict[int, None] = {}
        low = group.key - _WINDOW
        for b in group.uses:
            others = [*self.makers.get(b, ())[-4:], *(k for k in self.users.get(b, ())[-4:] if k >= low)]
            candidates.update(dict.fromkeys(map(self._find, others)))
        for b in group.makes:
            candidates.update(dict.fromkeys(map(self._find, self.users.get(b, ())[-4:])))
        near = [self.groups[k] for k in candidates if k not in refused]
        return [g for g in near if g.fusible and g is not group and g.key != group.key and self._last(g) >= low]

    @staticmethod
    def _last(group: Group) -> int:
        return group.nodes[-1].position

    # ------------------------------------------------------------ rules

    def can_fuse(self, a: Group, b: Group) -> Fusion | str:
        """How the earlier group `a` and `b` become one, or the reason why they don't."""
        reason = self._forbidden(a, b)
        if reason:
            return reason
        separate = [frozenset((*m.parallel, *m.reduced)) for m in b.members]
        unifier = Unifier(a.sizes, b.sizes, separate, self.names)
        flows = sorted(a.makes & b.uses)
        for flow in sorted(flows, key=lambda f: -max(len(e.terms) for e, _ in b.reads[f])):
            reason = _match_flow(unifier, flow, a.writes[flow], b.reads[flow])
            if reason:
                return reason
        for over in sorted(a.uses & b.makes):
            reason = _match_flow(unifier, over, b.writes[over], a.reads[over], swap=True)
            if reason:
                return reason
        saved = 0
        for both in sorted((a.uses | a.makes) & b.uses):
            mine = a.writes.get(both) or a.reads[both]
            if _match_any(unifier, mine, b.reads[both]):
                saved += self._bytes(b, both, unifier)
        for flow in flows:
            # Later matches may have split axes; addresses must still be the same.
            write = unifier.apply(a.writes[flow][0][0])
            if any(unifier.apply(e) is not write for e, _ in b.reads[flow]):
                return f"{flow} is read at another index than it is written"
            saved += self._bytes(b, flow, unifier)
        fusion = self._loops(a, b, unifier, bool(flows), saved)
        return fusion if isinstance(fusion, str) else _keeps_scans(a, b, fusion) or fusion

    def _forbidden(self, a: Group, b: Group) -> str:
        updates = [n.node.name for g in (a, b) for n in g.nodes if n.updates]
        if updates:
            return f"{updates[0]} updates in place at addresses that may meet"
        if a.device != b.device:
            return f"they run on {a.device} and {b.device}"
        if len(a.nodes) + len(b.nodes) > _MOST_MEMBERS:
            return "the kernel would get too large"
        if len(a.uses | b.uses | a.makes | b.makes) > self.facts[device_type(a.device)].buffers:
            return "the kernel would take too many buffers"
        both = a.makes & b.makes
        if both:
            return f"both write {min(both)}"
        for d in b.before:
            if d != a.key and self.groups[d].ancestors & a.bits:
                return f"{self.groups[d].name} must run between them"
        for d in a.before:
            if d != b.key and (self.groups[d].ancestors | self.groups[d].bits) & b.bits:
                return f"{self.groups[d].name} must run between them"
        return ""

    @staticmethod
    def _bytes(group: Group, buffer: str, unifier: Unifier) -> int:
        index, access = group.reads[buffer][0]
        loops = [v for v in unifier.apply(index).vars() if v in unifier.sizes]
        return DTYPES[access.dtype].nbytes * _volume(loops, unifier)

    def _loops(self, a: Group, b: Group, unifier: Unifier, flows: bool, saved: int) -> Fusion | str:
        """The loops that both share, if there are enough of them."""
        mine, theirs = unifier.expand(a.outer), unifier.expand(b.outer)
        common = set(theirs)
        outer = tuple([v for v in mine if v in common])
        whole = len(outer) == len(mine) == len(theirs)
        if not flows and not (whole and _inner(a, unifier) == _inner(b, unifier)):
            return "they share inputs, but not all loops"
        if any(len(unifier.expand(m.parallel)) != len(outer) for g in (a, b) for m in g.members if m.reduced):
            return "a reduction would be done inside of loops that others don't share"
        shared = _volume(outer, unifier)
        before = max(_volume(mine, unifier), _volume(theirs, unifier))
        work = max(before * _deepest(a, unifier), before * _deepest(b, unifier))
        machine = self.facts[device_type(a.device)]
        divided = self._one_pass(a, b) and not outer
        if shared < min(before, machine.independent) and work >= machine.large and not divided:
            return "the loops that they share have too few iterations to be shared out"
        if not outer and before > 1 and work >= machine.small and not self._one_pass(a, b):
            return "they share no loop"
        folded = {v for g in (a, b) for m in g.members for v in unifier.expand(m.reduced)}
        lost = [v for v in theirs if v not in set(outer) and v not in folded]
        reason = _keeps_rows(b, lost, outer, unifier) if lost else ""
        if reason:
            return reason
        category = 2 if flows and whole else 1 if flows else 0
        return Fusion(unifier, outer, category, saved)

    @staticmethod
    def _one_pass(a: Group, b: Group) -> bool:
        """Whether pointwise work feeds reductions of everything, which one loop that is shared out can do."""
        return not any(m.reduced for m in a.members) and all(m.reduced and not m.parallel for m in b.members)

    # ------------------------------------------------------------ merging

    def _merge(self, a: Group, b: Group, fusion: Fusion) -> None:
        """Make `a` part of `b`."""
        unifier = fusion.unifier
        b.nodes = sorted([*a.nodes, *b.nodes], key=lambda n: n.position)
        b.first = min(a.first, b.first)
        members = sorted([*a.members, *b.members], key=lambda m: m.facts.position)
        for m in members:
            m.subs = {v: unifier.apply(e) for v, e in m.subs.items()}
            m.parallel = tuple(unifier.expand(m.parallel))
            m.reduced = tuple(unifier.expand(m.reduced))
        b.members = members
        used = {v for m in members for v in (*m.parallel, *m.reduced)}
        b.sizes = {v: s for v, s in unifier.sizes.items() if v in used}
        b.outer = fusion.outer
        for table in ("reads", "writes"):
            merged: dict[str, list[tuple[Expr, Access]]] = {}
            for g in (a, b):
                for buffer, entries in getattr(g, table).items():
                    rows = merged.setdefault(buffer, [])
                    indices = {e for e, _ in rows}
                    for e, access in entries:
                        new = unifier.apply(e)
                        if new not in indices:
                            rows.append((new, access))
            setattr(b, table, merged)
        b.uses |= a.uses
        b.makes |= a.makes
        b.before = (a.before | b.before) - {a.key, b.key}
        b.bits |= a.bits
        b.ancestors = (a.ancestors | b.ancestors) & ~b.bits
        a.gone = True
        self.home[a.key] = b.key
        for g in self.groups[a.first :]:
            if g.gone or g is b:
                continue
            if a.key in g.before:
                g.before.discard(a.key)
                g.before.add(b.key)
            if g.ancestors & b.bits:
                g.ancestors |= b.ancestors | b.bits


def _keeps_scans(a: Group, b: Group, fusion: Fusion) -> str:
    """A scan needs one loop to run along, with all others of its nest around it."""
    along: set[Expr] = set()
    for m in (*a.members, *b.members):
        mine = {fusion.unifier.apply(m.subs[v]) for v in m.facts.scans} - {ZERO}
        if mine and not set(fusion.unifier.expand(m.parallel)) - mine <= set(fusion.outer):
            return f"{m.facts.node.name} runs along a loop inside of loops that others don't share"
        along |= mine
    loops = {v for m in (*a.members, *b.members) for e in m.subs.values() for v in fusion.unifier.apply(e).vars()}
    if along and not loops <= {*fusion.outer, *along}:
        return "one has loops inside of the one that another runs along"  # it would take a step for each of theirs
    if len(along) > 1 or not all(isinstance(v, Var) for v in along):
        return "they run along different loops"
    return ""


def _match_flow(
    unifier: Unifier,
    buffer: str,
    writes: list[tuple[Expr, Access]],
    reads: list[tuple[Expr, Access]],
    swap: bool = False,
) -> str:
    """Make every read address equal to the one write address, or say why that can't be."""
    if len(writes) > 1:
        return f"{buffer} is written by several stores"
    write, access = writes[0]
    if not access.direct or not all(r.direct for _, r in reads):
        return f"{buffer} is reached through indices that come from data"
    for read, _ in reads:
        if not (unifier.match(read, write) if swap else unifier.match(write, read)):
            return f"{buffer} is read at another index than it is written"
    return ""


def _match_any(unifier: Unifier, mine: list[tuple[Expr, Access]], theirs: list[tuple[Expr, Access]]) -> bool:
    """Match any pair of addresses of a buffer that both read; whether there is one."""
    pairs = [(a, b) for b, second in theirs[:2] for a, first in mine[:2] if first.direct and second.direct]
    return any(unifier.match(a, b) for a, b in pairs)


def _volume(loops: Iterable[Var], unifier: Unifier) -> int:
    return math.prod(hint(unifier.sizes[v]) for v in loops)


def _inner(group: Group, unifier: Unifier) -> set[frozenset[Var]]:
    """The sets of loops that members have beyond the shared ones."""
    outer = set(unifier.expand(group.outer))
    return {frozenset(unifier.expand((*m.parallel, *m.reduced))) - outer for m in group.members} - {frozenset()}


def _deepest(group: Group, unifier: Unifier) -> int:
    outer = set(group.outer)
    return max(
        _volume(unifier.expand([v for v in (*m.parallel, *m.reduced) if v not in outer]), unifier)
        for m in group.members
    )


def _keeps_rows(group: Group, lost: list[Var], outer: tuple[Var, ...], unifier: Unifier) -> str:
    """Loops that are no longer shared must be the inner ones, or rows would be walked as columns."""
    for rows in group.writes.values():
        index = unifier.apply(rows[0][0])
        for v in lost:
            step = index.coeff(v)
            if step is None:
                continue
            for o in outer:
                other = index.coeff(o)
                if other is not None and other is not ZERO and hint(step) > hint(other):
                    return "rows would have to be walked as columns"
    return ""


def fuse_nodes(
    nodes: list[NodeFacts],
    before: list[set[int]],
    devices: Mapping[str, str],
    targets: Mapping[str, Target],
    config: Config,
) -> tuple[list[Group], tuple[Refusal, ...]]:
    """Groups of nodes in an order that respects all dependencies, and why neighbours were left apart.

    Args:
        nodes: of the program.
        before: for each, the places of those that must run before it.
        devices: of all buffers.
        targets: by type of device.
        config: `fuse` off leaves all apart.

    Raises:
        LoweringError: a nest touches memory of several devices, or of one without a target.
    """
    fuser = _Fuser(nodes, before, devices, targets, config)
    groups = fuser.run()
    refusals = tuple([Refusal(a, b, why) for (a, b), why in fuser.refusals.items()])
    return _ordered(groups), refusals


def _ordered(groups: list[Group]) -> list[Group]:
    """Topological order, otherwise by the place of a group's last node. What nothing waits for comes right behind what
    it waits for itself, so that temporaries that it reads die there."""
    by_key = {g.key: g for g in groups}
    place = {g.key: g.nodes[-1].position for g in groups}
    needed = {key for g in groups for key in g.before}
    place |= {g.key: max(place[k] for k in g.before) for g in groups if g.fusible and g.before and g.key not in needed}
    done: set[int] = set()
    out: list[Group] = []
    for root in sorted(groups, key=lambda g: place[g.key]):
        stack = [root.key]
        while stack:
            key = stack[-1]
            waiting = [d for d in sorted(by_key[key].before) if d not in done]
            if key in done:
                stack.pop()
            elif waiting:
                stack.extend(waiting)
            else:
                done.add(key)
                out.append(by_key[key])
                stack.pop()
    return out
