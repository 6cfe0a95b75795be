"""What `firebrick graph` shows of a captured graph: its nodes by module, who computes them, what was not fused and why,
and where rewrite rules match. Plain data, as text, and for the pictures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from firebrick import trace
from firebrick.api.explaining import count
from firebrick.config import Config
from firebrick.errors import FirebrickError
from firebrick.extend import PassReport, apply_passes, registry
from firebrick.extend.pass_runner import copy_graph
from firebrick.fakes.node_values import origins
from firebrick.ir.graph.labels import is_silent, library_of, op_name, step_labels, user_place
from firebrick.ir.kernels.tree import loop_sizes
from firebrick.ir.loops.dtypes import BY_TORCH
from firebrick.ir.loops.program import Extern
from firebrick.tools.costs import step_bytes
from firebrick.tools.subject import Captured, Graph


@dataclass(slots=True)
class NodeView:
    """One node. kind: input, call or output. constants: names of the tensors that it reads from the model.

    caption: the module that consists of this node alone.
    role: kernel, library, view (looks at memory), folded (computed once, ahead), gone (nothing is left of it) or
    eager. steps: who computes it.
    """

    id: int
    name: str
    op: str
    kind: str
    type: str
    inputs: list[int] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    module: str = ""
    place: str = ""
    text: str = ""
    role: str = ""
    steps: list[int] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    caption: str = ""

    @property
    def title(self) -> str:
        """What it does, after the module that does nothing else."""
        name = self.op if self.kind == "call" else "output" if self.kind == "output" else self.name
        return f"{self.caption}: {name}" if self.caption else name

    @property
    def by(self) -> str:
        """Its steps, or what became of it instead."""
        return " ".join(f"s{i}" for i in self.steps) or (self.role if self.role != self.op else "")


@dataclass(slots=True)
class StepView:
    """A kernel or a library call. loops: its loop sizes, or the op that is called."""

    id: int
    kind: str
    label: str
    loops: str
    nbytes: int
    nodes: list[int]


@dataclass(slots=True)
class RuleView:
    """A rewrite rule. nodes: where it matches; refused: why not at others."""

    name: str
    level: str
    enabled: bool
    nodes: list[list[int]] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    after: str = ""


@dataclass(slots=True)
class GraphView:
    """One captured graph. apart: pairs of steps that were not fused, with the reason. classes: module -> its class."""

    name: str
    nodes: list[NodeView] = field(default_factory=list)
    steps: list[StepView] = field(default_factory=list)
    apart: list[tuple[int, int, str]] = field(default_factory=list)
    rules: list[RuleView] = field(default_factory=list)
    classes: dict[str, str] = field(default_factory=dict)
    failure: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        nodes = [{**asdict(node), "title": node.title, "by": node.by} for node in self.nodes]
        return {**asdict(self), "nodes": nodes}


def view_graph(captured: Captured, graph: Graph) -> GraphView:
    """Describe one graph of a captured target."""
    root = captured.target.root
    modules = {} if root is None else dict(root.named_modules())
    plain = {name: m for name, m in modules.items() if not isinstance(m, (torch.nn.ModuleList, torch.nn.ModuleDict))}
    out = GraphView(graph.name, classes={name: type(m).__name__ for name, m in plain.items()}, failure=graph.failure)
    dotted = {name.replace(".", "_"): name for name in plain}
    named = () if root is None else (*root.named_parameters(), *root.named_buffers())
    parameters = {name.replace(".", "_"): name for name, _ in named}
    nodes = list(graph.gm.graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}
    for i, node in enumerate(nodes):
        if node.op == "get_attr":
            continue
        module = node.meta.get("module", "")
        where = user_place(node)
        sources = node.all_input_nodes
        out.nodes.append(
            NodeView(
                i,
                node.name,
                op_name(node),
                {"placeholder": "input", "output": "output"}.get(node.op, "call"),
                _type(node.meta.get("val")),
                [place[n] for n in sources if n.op != "get_attr"],
                [parameters.get(str(n.target), str(n.target)) for n in sources if n.op == "get_attr"],
                dotted.get(module, module),
                f"{where.file}:{where.line}" if where else "",
                _call_text(node),
            )
        )
    _add_steps(out, graph, nodes)
    _add_rules(out, graph)
    return out


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dtype = BY_TORCH.get(value.dtype)
        return f"{dtype.name if dtype else value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_type, value))})"
    return "" if value is None else type(value).__name__


def _call_text(node: fx.Node) -> str:
    if not node.op.startswith("call"):
        return ""
    args = [str(a) for a in node.args] + [f"{k}={v}" for k, v in node.kwargs.items()]
    return f"{op_name(node)}({', '.join(args)})"


# ---------------------------------------------------------------- kernels


def _add_steps(out: GraphView, graph: Graph, nodes: list[fx.Node]) -> None:
    """Enter kernels and library calls, and what becomes of the nodes that have none."""
    by_id = {node.id: node for node in out.nodes}
    if graph.stages is None:
        for view in out.nodes:
            view.role = "eager" if view.kind == "call" else ""
        return
    schedule = graph.stages.schedule
    labels = step_labels(graph.gm.graph, [(s.parts, library_of(s)) for s in schedule.steps])
    sizes = step_bytes(schedule)
    kernels = {k.name: k for k in schedule.kernels}
    step_of: dict[str, int] = {}
    for i, step in enumerate(schedule.steps):
        library = library_of(step)
        tree = () if isinstance(step, Extern) else kernels[step.kernel].loops
        loops = library if isinstance(step, Extern) else loop_sizes(tree) if tree else "tiles"
        parts = [p for p in sorted(step.parts) if p in by_id]
        out.steps.append(StepView(i, "library" if library else "kernel", labels[i], loops, sizes[i], parts))
        step_of.update(dict.fromkeys((step.name,) if isinstance(step, Extern) else step.nodes, i))
        for part in parts:
            by_id[part].steps.append(i)
            by_id[part].role = "library" if library else "kernel"
    reasons: dict[tuple[int, int], str] = {}
    for refusal in schedule.refusals:
        a, b = step_of.get(refusal.first), step_of.get(refusal.second)
        if a is not None and b is not None and a != b:
            why = re.sub(r"\bn\d+\b", lambda match: f"s{step_of.get(match[0], '?')}", refusal.reason)
            reasons.setdefault((min(a, b), max(a, b)), why)
    out.apart = [(a, b, why) for (a, b), why in sorted(reasons.items())]
    folded: set[int] = set()
    for node in out.nodes:
        if node.kind != "call" or node.role:
            continue
        node.role = "view" if is_silent(nodes[node.id]) else "gone"
        if node.role == "gone" and (node.constants or node.inputs) and all(i in folded for i in node.inputs):
            folded.add(node.id)
            node.role = "folded"


# ---------------------------------------------------------------- rules


def _add_rules(out: GraphView, graph: Graph) -> None:
    """Where every registered rule matches, each tried alone on the graph as it was captured."""
    config = replace(Config.from_env(), strict=False, verify_passes=False)
    by_id = {node.id: node for node in out.nodes}
    try:
        with torch.no_grad():
            aten = trace.trace_inference(graph.gm, graph.inputs, config)
    except FirebrickError:
        aten = None
    for name, enabled in registry.names().items():
        step = registry.get(name)
        source = graph.gm if step.level == "torch" else aten.gm if aten is not None and step.level == "aten" else None
        if source is None:
            continue
        copy = _LazyGraphModule(source, copy_graph(source.graph))
        copy.meta.update(source.meta)
        inner = {node.name: origins(node) for node in copy.graph.nodes}
        frozen = aten.frozen if aten is not None and step.level == "aten" else None
        (report,) = apply_passes(copy, [step], config=config, trace=trace.trace_function, frozen=frozen)
        view = _rule(report, enabled, inner)
        if view.nodes or view.refused:
            out.rules.append(view)
        for i in (k for ids in view.nodes for k in ids if k in by_id):
            by_id[i].rules.append(name)


def _rule(report: PassReport, enabled: bool, origins_of: dict[str, tuple[int, ...]]) -> RuleView:
    out = RuleView(report.name, report.level, enabled)
    for site in report.sites:
        if not site.applied:
            out.refused[site.reason] = out.refused.get(site.reason, 0) + 1
            continue
        names = [line.partition(" ")[0].lstrip("%") for line in site.before.splitlines()] or [site.node]
        matched = sorted({i for name in (*names, site.node) for i in origins_of.get(name, ())})
        out.nodes.append(matched)
        out.after = out.after or site.after
    return out


# ---------------------------------------------------------------- modules


@dataclass(slots=True)
class Group:
    """Nodes and groups of one call of a module, in program order. Calls are contiguous, so groups form no cycle."""

    path: str
    title: str
    children: list[Group | NodeView] = field(default_factory=list)

    def leaves(self) -> Iterator[NodeView]:
        """All nodes below."""
        for child in self.children:
            if isinstance(child, Group):
                yield from child.leaves()
            else:
                yield child


def group_nodes(view: GraphView) -> Group:
    """The tree of module calls. Paths that are no module of the target stand for themselves."""

    def above(path: str) -> list[str]:
        parts = path.split(".") if path else []
        prefixes = [".".join(parts[: n + 1]) for n in range(len(parts))]
        return [p for p in prefixes if p in view.classes or p == path]

    for node in view.nodes:
        node.caption = ""
    top = Group("", view.classes.get("", view.name))
    open_groups = [top]
    for node in view.nodes:
        wanted = above(node.module) if node.kind == "call" else []
        depth = 0
        while depth < len(wanted) and depth + 1 < len(open_groups) and open_groups[depth + 1].path == wanted[depth]:
            depth += 1
        del open_groups[depth + 1 :]
        for path in wanted[depth:]:
            parent = open_groups[-1]
            short = path.removeprefix(f"{parent.path}.") if parent.path else path
            group = Group(path, f"{short} · {view.classes[path]}" if path in view.classes else short)
            parent.children.append(group)
            open_groups.append(group)
        open_groups[-1].children.append(node)
    _flatten(top)
    return top


def _flatten(group: Group) -> None:
    """Put a module that is one node in its place."""
    for k, child in enumerate(group.children):
        if not isinstance(child, Group):
            continue
        _flatten(child)
        only = child.children[0]
        if len(child.children) == 1 and not isinstance(only, Group):
            short = child.title.partition(" · ")[0]
            only.caption = f"{short}.{only.caption}" if only.caption else short
            group.children[k] = only


# ---------------------------------------------------------------- text


def show_view(view: GraphView) -> str:
    """The graph as text: nodes by module with who computes them, then kernels, what is apart, and rules."""
    lines = [f"graph {view.name}"]
    if view.failure:
        lines.append(f"  runs on eager kernels: {view.failure.splitlines()[0]}")
    lines += _show_group(group_nodes(view), "  ")
    kinds = Counter(step.kind for step in view.steps)
    lines.append(f"steps: {count(kinds['kernel'], 'kernel')}, {count(kinds['library'], 'library call')}")
    lines += [f"  s{s.id} {s.label}  {s.loops if s.kind == 'kernel' else ''}".rstrip() for s in view.steps]
    if view.apart:
        lines.append("not fused")
        lines += [f"  s{a} s{b}: {why}" for a, b, why in view.apart]
    names = {node.id: node.name for node in view.nodes}
    if view.rules:
        lines.append("rules")
    for rule in view.rules:
        matched = "; ".join(", ".join(names[i] for i in ids if i in names) for ids in rule.nodes[:3])
        more = f" and {len(rule.nodes) - 3} more" if len(rule.nodes) > 3 else ""
        state = "on" if rule.enabled else "off"
        if rule.nodes:
            lines.append(f"  {rule.name} ({rule.level}, {state}) matches {len(rule.nodes)}: {matched}{more}")
        else:
            why, places = next(iter(rule.refused.items()))
            lines.append(f"  {rule.name} ({rule.level}, {state}) refused at {places}: {why}")
    return "\n".join(lines)


def _show_group(group: Group, indent: str) -> list[str]:
    lines = []
    for child in group.children:
        if isinstance(child, Group):
            lines.append(f"{indent}{child.title}")
            lines += _show_group(child, indent + "  ")
            continue
        by = child.by
        rules = f"  rules: {', '.join(child.rules)}" if child.rules else ""
        text = f"{child.name} = {child.text}" if child.kind == "call" else f"{child.kind} {child.name}"
        text = f"{child.caption}: {text}" if child.caption else text
        line = f"{_short(text)}  {child.type}  [{by}]{rules}" if by else f"{text}  {child.type}".rstrip()
        lines.append(f"{indent}{line}")
    return lines


def _short(text: str, most: int = 100) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def layers_of(children: Sequence[Group | NodeView]) -> list[list[int]]:
    """Positions of a group's children by layer: each below all that it reads."""
    leaves = [list(child.leaves()) if isinstance(child, Group) else [child] for child in children]
    home = {node.id: k for k, nodes in enumerate(leaves) for node in nodes}
    depth = [0] * len(children)
    for k, nodes in enumerate(leaves):
        for node in nodes:
            for source in node.inputs:
                above = home.get(source)
                if above is not None and above != k:
                    depth[k] = max(depth[k], depth[above] + 1)
    rows: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for k, d in enumerate(depth):
        rows[d].append(k)
    return rows
