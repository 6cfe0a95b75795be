"""Rewrite rules: a pattern and a replacement, both written as plain PyTorch functions.

x @ w / c   ->   x @ (w / c)

rule(lambda x, w, c: ..., ...)  or, with numbers annotated so that they match constants:

def before(x, w, c: float): return (x @ w) / c
def after(x, w, c: float): return x @ (w / c)
fold_div = rule(before, after)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from firebrick.errors import PassError
from firebrick.extend.match import GraphIndex, Match, Matcher
from firebrick.extend.pass_base import Context, Level, Pass, Site
from firebrick.extend.pattern import Pattern, trace_pattern
from firebrick.extend.verify import Difference, compare, example_tensors
from firebrick.fakes.node_values import absorb, copy_into, drop_dead, fake_mode_of, fill_meta
from firebrick.fakes.segments import part_of
from firebrick.ir.graph.calls import Call, call_of, is_mutating, show_node, value_of

_MOST_REPORTED = 200


class Rule(Pass):
    """A pass made of a pattern and a replacement; see `rule` for the arguments."""

    atomic = True
    fixed = True

    def __init__(
        self,
        pattern: Callable[..., Any],
        replacement: Callable[..., Any],
        *,
        name: str,
        level: Level,
        examples: Sequence[torch.Tensor],
        where: Callable[..., bool | str] | None,
        constants: Sequence[str],
        through: Sequence[str],
        keep_shared: bool,
        repeat: bool,
    ) -> None:
        self.name, self.level = name, level
        self.pattern, self.replacement, self.where = pattern, replacement, where
        self.examples = [(tuple(e.shape), e.dtype) for e in examples]
        self.constants, self.through = tuple(constants), frozenset(through)
        self.keep_shared, self.repeat = keep_shared, repeat
        self._examples = list(examples)
        self._pattern: Pattern | None = None
        self._traced: dict[Any, Any] = {}

    def run(self, gm: fx.GraphModule) -> bool:
        """Apply with a default context."""
        return self.apply(gm, Context())

    def apply(self, gm: fx.GraphModule, context: Context) -> bool:
        """Apply wherever the pattern matches; with `repeat`, until it matches nowhere.

        Raises:
            PassError: the pattern or the replacement can't be traced, or a repeated rule does not come to an end.
        """
        pattern = self._traced_pattern(context)
        rounds, limit = 0, len(gm.graph.nodes) + 10
        changed = False
        while self._sweep(gm, pattern, context):
            changed = True
            rounds += 1
            if not self.repeat:
                break
            if rounds > limit:
                raise PassError(
                    f"rule {self.name} still matches after {rounds} rounds",
                    fix="its replacement probably holds its own pattern; leave out repeat=True or narrow `where`",
                )
        if changed:
            drop_dead(gm.graph)
        return changed

    def _traced_pattern(self, context: Context) -> Pattern:
        if self._pattern is None:
            trace = None if self.level == "torch" else _need_trace(self, context)
            self._pattern = trace_pattern(self.pattern, trace, self._examples)
        return self._pattern

    def _sweep(self, gm: fx.GraphModule, pattern: Pattern, context: Context) -> bool:
        index = GraphIndex(gm.graph)
        if any(not index.by_name.get(node.name) for node in pattern.nodes):
            return False
        matcher = Matcher(pattern, index, through=self.through)
        mutations = [n for n in gm.graph.nodes if is_mutating(n)] if self.level == "torch" else []
        replaced: set[fx.Node] = set()
        changed = False
        for anchor in matcher.anchors():
            if anchor in replaced:
                continue
            matched = matcher.match(anchor)
            reason = matched if isinstance(matched, str) else self._refuse(matched, context, replaced, mutations)
            if not reason and isinstance(matched, Match):
                result = _Application(self, gm, matched, context, mutations).perform()
                if isinstance(result, Site):
                    context.report.sites.append(result)
                    replaced |= matched.inner
                    changed = True
                    continue
                reason = result
            if len(context.report.sites) < _MOST_REPORTED:
                context.report.sites.append(Site(anchor.name, False, reason, _where(anchor)))
        return changed

    def _refuse(self, match: Match, context: Context, replaced: set[fx.Node], mutations: list[fx.Node]) -> str:
        inner = match.inner
        if inner & replaced:
            return "overlaps an earlier match"
        for node in inner:
            outside = [u for u in node.users if u not in inner]
            if outside and node not in match.outputs and not self.keep_shared:
                return f"{node.name} is used outside of the pattern, by {outside[0].name}"
        for name in self.constants:
            node = match.captures[name]
            if not isinstance(node, fx.Node) or node.op != "get_attr":
                return f"{name} is no constant"
            if context.frozen is not None and str(node.target) not in context.frozen:
                return f"{name} is a constant that may change"
        if mutations:
            ordered = sorted(inner, key=lambda n: n._sort_key)
            for node in mutations:
                if node in inner or ordered[0] < node < ordered[-1]:
                    return f"{node.name} writes in place between the nodes of the pattern"
        if self.where is None:
            return ""
        values = {k: value_of(v) if isinstance(v, fx.Node) else v for k, v in match.captures.items()}
        verdict = self.where(**_accepted(self.where, values))
        if isinstance(verdict, str):
            return verdict
        return "" if verdict else "`where` said no"

    def call_replacement(self, captures: dict[str, Any]) -> tuple[Any, ...]:
        """Run the replacement on captured values, by name, or by position when the names differ."""
        accepted = _accepted(self.replacement, captures)
        if len(accepted) == len(inspect.signature(self.replacement).parameters):
            result = self.replacement(**accepted)
        else:
            result = self.replacement(*captures.values())
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _accepted(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return values
    return {name: values[name] for name in parameters if name in values}


def _need_trace(rule: Rule, context: Context) -> Any:
    if context.trace is None:
        raise PassError(f"rule {rule.name} works at level {rule.level} and has no function that traces to it")
    return context.trace


def _where(node: fx.Node) -> Any:
    stack = node.meta.get("stack") or ()
    return stack[-1] if stack else None


class _RecordingTracer(fx.proxy.GraphAppendingTracer):
    """Records the nodes that the replacement adds."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__(graph)
        self.new_nodes: list[fx.Node] = []

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        self.new_nodes.append(node)
        return node


class _Application:
    """One application of a rule: insert the replacement, check it, and only then let the old nodes go."""

    def __init__(
        self, rule: Rule, gm: fx.GraphModule, match: Match, context: Context, mutations: list[fx.Node]
    ) -> None:
        self.rule, self.gm, self.match, self.context = rule, gm, match, context
        self.mutations = mutations
        self.new_nodes: list[fx.Node] = []

    def perform(self) -> Site | str:
        """Apply, or say why not and leave the graph as it was."""
        refused = self._place()
        if refused:
            return refused
        point = min((u for o in self.match.outputs for u in o.users), default=None, key=lambda n: n._sort_key)
        if point is None:
            return "its result is not used"
        if self.rule.level != "torch":
            refused = self._exact()
            if refused:
                return refused
        try:
            outputs = self._insert(point)
        except Exception as error:
            self._undo()
            raise PassError(f"rule {self.rule.name}: the replacement raised {type(error).__name__}: {error}") from error
        reason = self._check(outputs)
        if reason:
            self._undo()
            return reason
        anchor = self.match.outputs[0]
        inner = sorted(self.match.inner, key=lambda n: n._sort_key)
        before = "\n".join(map(show_node, inner))
        for old, new in zip(self.match.outputs, outputs, strict=True):
            old.replace_all_uses_with(new)
        for node in self.new_nodes:
            node.meta.setdefault("stack", anchor.meta.get("stack", ()))
            absorb(node, inner)
        for node in reversed(inner):
            if not node.users:
                self.gm.graph.erase_node(node)
        return Site(anchor.name, True, "", _where(anchor), before, "\n".join(map(show_node, self.new_nodes)))

    def _captured(self) -> list[fx.Node]:
        return [v for v in self.match.captures.values() if isinstance(v, fx.Node)]

    def _place(self) -> str:
        """Make sure that every captured value is computed before the first user of an output.

        Where a value is computed later (and does not depend on the outputs) it is moved up.
        """
        outputs = set(self.match.outputs)
        users = [u for o in outputs for u in o.users]
        if not users:
            return ""
        first = min(users, key=lambda n: n._sort_key)
        behind = [n for n in self._captured() if not n < first]
        if not behind:
            return ""
        last = max(behind, key=lambda n: n._sort_key)
        if any(not n < first and n < last for n in self.mutations):
            return "its inputs are computed after its first use, and an in-place write between forbids moving them"
        move: dict[fx.Node, None] = {}
        stack = list(behind)
        while stack:
            node = stack.pop()
            if node in outputs:
                return "an input depends on an output of the pattern"
            if node < first or node in move:
                continue
            move[node] = None
            stack.extend(node.all_input_nodes)
        for node in sorted(move, key=lambda n: n._sort_key):
            first.prepend(node)
        return ""

    def _insert(self, point: fx.Node) -> tuple[fx.Node, ...]:
        if self.rule.level == "torch":
            tracer = _RecordingTracer(self.gm.graph)
            captures = {k: fx.Proxy(v, tracer) if isinstance(v, fx.Node) else v for k, v in self.match.captures.items()}
            self.new_nodes = tracer.new_nodes
            with self.gm.graph.inserting_before(point):
                results = self.rule.call_replacement(captures)
            outputs = [r.node if isinstance(r, fx.Proxy) else r for r in results]
        else:
            traced = self._traced("replacement")
            with self.gm.graph.inserting_before(point):
                outputs = copy_into(self.gm, traced, self._captured(), self.new_nodes)
        if len(outputs) != len(self.match.outputs) or not all(isinstance(o, fx.Node) for o in outputs):
            raise PassError(f"{len(outputs)} tensors expected as many as the pattern's {len(self.match.outputs)}")
        if self.match.sunk:
            with self.gm.graph.inserting_before(point):
                for node in self.match.sunk:
                    swap = {node.all_input_nodes[0]: outputs[0]}
                    copy = self.gm.graph.node_copy(node, swap.__getitem__)
                    copy.meta.pop("val", None)
                    self.new_nodes.append(copy)
                    outputs = [copy]
        mode = fake_mode_of(self.gm)
        if mode is not None:
            for node in self.new_nodes:
                fill_meta(self.gm, node, mode)
        return tuple(outputs)

    def _traced(self, which: str) -> fx.GraphModule:
        """The pattern or the replacement traced on this place's shapes and numbers; equal places share it."""
        tensors = [value_of(n) for n in self._captured()]
        if not all(isinstance(t, torch.Tensor) for t in tensors):
            raise PassError("the graph's nodes carry no values (meta['val'])")
        numbers = {k: v for k, v in self.match.captures.items() if not isinstance(v, fx.Node)}
        shapes = tuple((t.dtype, str(tuple(t.shape)), str(t.stride()), t.device) for t in tensors)
        names = [k for k, v in self.match.captures.items() if isinstance(v, fx.Node)]
        key = (which, *names, shapes, tuple((k, type(v), v) for k, v in numbers.items()))
        if key not in self.rule._traced:

            def call(*values: torch.Tensor) -> Any:
                captures = {**numbers, **dict(zip(names, values, strict=True))}
                captures = {k: captures[k] for k in self.match.captures}
                if which == "replacement":
                    return self.rule.call_replacement(captures)
                return self.rule.pattern(**captures)

            self.rule._traced[key] = _need_trace(self.rule, self.context)(call, example_tensors(tensors))
        return self.rule._traced[key]

    def _exact(self) -> str:
        """Trace the pattern on this place's own shapes: sizes that were free in the match must agree now.

        Places that were matched through a view are not checked so, because there the shapes differ by intent.
        """
        if self.match.passed:
            return ""
        exact = self._traced("pattern")
        index = GraphIndex(exact.graph)
        calls = sorted((c.name, _numbers(c.arguments)) for c in index.calls.values())
        present = sorted((c.name, _numbers(c.arguments)) for c in map(_normal, self.match.nodes.values()))
        if calls != present:
            odd = next((a for a, b in zip(present, calls, strict=False) if a != b), ("?", ""))
            return f"{odd[0]} has other sizes than the pattern gives for these shapes"
        return ""

    def _check(self, outputs: tuple[fx.Node, ...]) -> str:
        for old, new in zip(self.match.outputs, outputs, strict=True):
            if new not in self.new_nodes:
                if self.mutations:
                    return "the result would be an input, which in-place writes could tell apart"
                if any(u.op == "output" for u in old.users):
                    return "an output of the graph would share memory with another value"
            a, b = value_of(old), value_of(new)
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and _kind(a) != _kind(b):
                return f"replacement gives {_kind(b)} instead of {_kind(a)}"
        if not self.context.verify:
            return ""
        result = self._verify(outputs)
        if isinstance(result, Difference):
            self.context.report.skipped = self.context.report.skipped or f"wrong at {self.match.outputs[0].name}"
            return f"verification failed: {result}"
        self.context.report.error = max(self.context.report.error or 0.0, result)
        return ""

    def _verify(self, outputs: tuple[fx.Node, ...]) -> Difference | float:
        inputs = self._captured()
        values = [value_of(n) for n in inputs]
        if not all(isinstance(v, torch.Tensor) for v in values):
            return Difference("the graph's nodes carry no values, so the replacement can't be verified")
        reals = example_tensors(values)
        old = part_of(self.gm, sorted(self.match.inner, key=lambda n: n._sort_key), inputs, self.match.outputs)
        new = part_of(self.gm, self.new_nodes, inputs, outputs)
        return compare(old, new, reals, tolerance=self.rule.tolerance, aliasing=bool(self.mutations))

    def _undo(self) -> None:
        for node in reversed(self.new_nodes):
            self.gm.graph.erase_node(node)
        self.new_nodes.clear()


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} on {tensor.device}"


def _normal(node: fx.Node) -> Call:
    call = call_of(node)
    if call is None:
        raise PassError(f"{node.name} is no call")
    return call


def _numbers(value: Any) -> str:
    """The numbers of an argument as text; tensors count as `_`."""
    if isinstance(value, fx.Node):
        return "_"
    if isinstance(value, dict):
        return ",".join(f"{k}={_numbers(v)}" for k, v in sorted(value.items()))
    if isinstance(value, (tuple, list)):
        return f"[{','.join(map(_numbers, value))}]"
    return repr(float(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else repr(value)


def rule(
    pattern: Callable[..., Any],
    replacement: Callable[..., Any],
    *,
    name: str | None = None,
    level: Level = "torch",
    examples: Sequence[torch.Tensor] = (),
    where: Callable[..., bool | str] | None = None,
    constants: Sequence[str] = (),
    through: Sequence[str] = ("views",),
    keep_shared: bool = False,
    repeat: bool = False,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    version: int = 1,
    tolerance: float | None = None,
) -> Rule:
    """A rewrite rule from two plain PyTorch functions with the same parameters.

    Parameters annotated as numbers (`c: float`) match constants of the program, the others match tensors. A function
    may return several tensors. Commutative ops match in both orders.

    Args:
        pattern: what to find.
        replacement: what to put there; parameters are matched by name.
        level: "torch" finds torch calls in whatever spelling (`x + y`, `torch.add(x, y)`, `x.add(y)`); "aten" and
            "joint" decompose the pattern as they decompose the program, so that it is found after decomposition.
        examples: at levels aten and joint, one tensor for each tensor parameter; only dtypes and ranks matter.
        where: called with the captures it names (fake tensors, numbers); returns False or a reason to refuse.
        constants: parameters that must be constants of the graph (weights).
        through: "views": look through views that stand inside the pattern where that is exact;
            "casts": look through dtype casts too, which changes the rounding.
        keep_shared: also match where an inner value is used elsewhere (it is then computed twice).
        repeat: sweep again until nothing matches.
        tolerance: relative error that `verify` accepts; None takes the dtype's.

    Raises:
        PassError: unknown level or name in `through`.
    """
    if unknown := set(through) - {"views", "casts"}:
        raise PassError(f"rules can't look through {sorted(unknown)}", fix='use "views" or "casts"')
    if level not in ("torch", "aten", "joint"):
        raise PassError(f"unknown level {level!r}", fix="use torch, aten or joint")
    rewrite = Rule(
        pattern,
        replacement,
        name=name or pattern.__name__,
        level=level,
        examples=examples,
        where=where,
        constants=constants,
        through=through,
        keep_shared=keep_shared,
        repeat=repeat,
    )
    rewrite.before, rewrite.after, rewrite.version, rewrite.tolerance = tuple(before), tuple(after), version, tolerance
    return rewrite
