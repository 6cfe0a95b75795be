"""Passes over TorchScript graphs: registered, ordered, switched on and off, checked.

A pass is a function over a graph's nodes, or a pattern and a replacement: plain functions that torch.jit can script,
or text in TorchScript's own IR. `optimize` runs them on a module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from firebrick.config import Config
from firebrick.errors import PassError, VerificationError
from firebrick.extend import Difference, Pass, PassRegistry, PassReport, compare
from firebrick.extend.claimed_group import group_of
from firebrick.report import recorder

registry = PassRegistry()
"""The TorchScript passes of this process."""

_Text = str | Callable[..., Any]


class ScriptPass(Pass):
    """A pass over a `torch._C.Graph`: `function(graph)` returns whether it changed something."""

    level = "torchscript"

    def __init__(self, name: str, function: Callable[[Any], Any]) -> None:
        self.name, self.function = name, function

    def run(self, gm: Any) -> bool:
        """Change the graph in place."""
        before = _canonical(gm)
        changed = self.function(gm)
        return changed if isinstance(changed, bool) else _canonical(gm) != before


def register_pass(
    pattern: _Text | None = None,
    replacement: _Text | None = None,
    *,
    name: str | None = None,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    tolerance: float | None = None,
    enabled: bool = True,
) -> Any:
    """Register a pass for `optimize`.

    With a pattern and a replacement (functions or IR text) it rewrites; with one function over a graph it is that
    function; with neither it decorates such a function.

    Raises:
        PassError: the name is taken, or a pattern can't be scripted.
    """

    def add(step: ScriptPass) -> ScriptPass:
        step.before, step.after, step.tolerance = tuple(before), tuple(after), tolerance
        registry.register(step, enabled=enabled)
        return step

    if replacement is not None:
        if pattern is None:
            raise PassError("a replacement needs a pattern")
        return add(script_rule(pattern, replacement, name=name))
    if pattern is None:
        return lambda function: add(ScriptPass(name or function.__name__, function))
    if not callable(pattern):
        raise PassError("a pattern needs a replacement")
    return add(ScriptPass(name or pattern.__name__, pattern))


def enable(*names: str) -> None:
    """Run these passes in later calls of `optimize`."""
    registry.enable(*names)


def disable(*names: str) -> None:
    """Leave these passes out of later calls of `optimize`."""
    registry.disable(*names)


def script_rule(pattern: _Text, replacement: _Text, *, name: str | None = None) -> ScriptPass:
    """A pass that replaces a pattern. Numbers that the functions take as `float` or `int` match any value.

    Raises:
        PassError: a function can't be scripted, or a text is no IR.
    """
    texts = [_ir_text(pattern), _ir_text(replacement)]
    if name is None:
        name = getattr(pattern, "__name__", "rule")

    def rewrite(graph: Any) -> bool:
        untouched = graph.copy()
        for each in (untouched, graph):
            _own_constants(each)
        torch._C._jit_pass_custom_pattern_based_rewrite_graph(texts[0], texts[1], graph)
        for each in (untouched, graph):
            torch._C._jit_pass_constant_pooling(each)  # type: ignore[attr-defined]
        return _canonical(graph) != _canonical(untouched)

    return ScriptPass(name, rewrite)


def _canonical(graph: Any) -> str:
    return str(torch._C._jit_pass_canonicalize(graph))


def _own_constants(graph: Any) -> None:
    """Give every use its own copy of a number: PyTorch's matcher wants inner nodes to have no use outside."""
    for node in nodes_of(graph, "prim::Constant"):
        uses = [] if node.mustBeNone() or isinstance(node.output().toIValue(), torch.Tensor) else node.output().uses()
        for use in uses[1:]:
            copy = graph.createClone(node, lambda value: value)
            copy.insertBefore(node)
            use.user.replaceInput(use.offset, copy.output())


def _ir_text(source: _Text) -> str:
    if isinstance(source, str):
        try:
            torch._C.parse_ir(source)
        except RuntimeError as error:
            raise PassError(f"the pattern is no TorchScript IR: {error}") from error
        return source
    try:
        graph = torch.jit.script(source).graph.copy()
    except Exception as error:
        raise PassError(f"{getattr(source, '__name__', source)} can't be scripted: {error}") from error
    torch._C._jit_pass_inline(graph)
    torch._C._jit_pass_dce(graph)
    return "\n".join(line.split(" # ")[0] for line in str(graph).splitlines())


def nodes_of(graph: Any, kind: str | None = None) -> list[Any]:
    """All nodes of a graph and of its nested blocks, or those of one kind, in order."""
    nodes: list[Any] = []
    for node in graph.nodes():
        if kind is None or node.kind() == kind:
            nodes.append(node)
        for block in node.blocks():
            nodes += nodes_of(block, kind)
    return nodes


def overload_of(node: Any) -> Any:
    """The operator that a node calls; None where torch has no such one for Python."""
    if node.schema() == "(no schema)":
        return None
    schema = torch._C.parse_schema(node.schema())
    namespace, _, name = schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return getattr(packet, schema.overload_name or "default", None)


class OptimizedScript(nn.Module):
    """A TorchScript program after passes: call it like the module. `reports` tells what each pass did."""

    graph: Any
    script: Any

    def __init__(self, graph: Any, parameters: Sequence[str], name: str) -> None:
        super().__init__()
        self.parameters_of_call = list(parameters)
        self.reports: list[PassReport] = []
        self.set_graph(graph, name)

    def set_graph(self, graph: Any, name: str = "forward") -> None:
        """Run another graph from now on."""
        self.__dict__["graph"] = graph
        keys = [node.inputsAt(0).toIValue() for node in nodes_of(graph, "firebrick::group")]
        self.__dict__["groups"] = [group_of(key) for key in keys]  # they live as long as what calls them
        self.__dict__["script"] = torch._C._create_function_from_graph(name, graph)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program."""
        rest = self.parameters_of_call[len(args) :]
        return self.script(*args, *(kwargs[name] for name in rest if name in kwargs))

    def save(self, path: str) -> None:
        """Write a file that `torch.jit.load` reads."""
        self.script.save(path)


def optimize(
    module: torch.jit.ScriptModule | torch.jit.ScriptFunction[Any, Any],
    passes: Sequence[Pass] = (),
    *,
    samples: Sequence[Sequence[Any]] = (),
    verify: bool | None = None,
    config: Config | None = None,
) -> OptimizedScript:
    """Inline and freeze a module, run the registered passes that are on and `passes` on its graph.

    With `verify`, each pass that changed something is checked on `samples` (tuples of arguments); a wrong one is
    named in a warning and skipped. `Config.strict` raises.

    Raises:
        PassError: the module writes its own attributes, so that its graph alone is not the program.
        PassError, VerificationError: a pass failed, under `config.strict`.
    """
    config = config or Config.from_env()
    verify = (config.verify_passes if verify is None else verify) and bool(samples)
    graph, parameters = frozen_graph(module)
    optimized = OptimizedScript(graph, parameters, "forward")
    for step in registry.active("torchscript", passes, config):
        report = PassReport(step.name, "torchscript")
        optimized.reports.append(report)
        candidate = optimized.graph.copy()
        start = time.perf_counter()
        try:
            report.changed = step.run(candidate)
            if report.changed:
                torch._C._jit_pass_dce(candidate)
                torch._C._jit_pass_lint(candidate)
                _accept(optimized, step, candidate, samples if verify else (), report)
        except VerificationError:
            raise
        except Exception as error:
            report.changed, report.skipped = False, f"raised {type(error).__name__}: {error}"
            if config.strict:
                raise PassError(f"pass {step.name} failed: {error}") from error
        report.seconds = time.perf_counter() - start
        if report.skipped:
            if config.strict:
                raise VerificationError(f"pass {step.name} changes results: {report.skipped}")
            recorder.warn_once(f"pass {step.name}", f"pass {step.name} was skipped: {report.skipped}")
    return optimized


def _accept(optimized: OptimizedScript, step: Pass, candidate: Any, samples: Any, report: PassReport) -> None:
    before = optimized.graph
    reference = optimized.script
    optimized.set_graph(candidate)
    for sample in samples:
        result = compare(reference, optimized.script, sample, tolerance=step.tolerance)
        if isinstance(result, Difference):
            optimized.set_graph(before)
            report.changed, report.skipped = False, f"verification failed: {result}"
            return
        report.error = max(report.error or 0.0, result)


def frozen_graph(module: Any) -> tuple[Any, list[str]]:
    """A copy of the module's inlined graph with its weights as constants, and the names of its parameters.

    Raises:
        PassError: the module keeps state between calls.
    """
    if isinstance(module, torch.jit.ScriptFunction):
        graph = module.graph.copy()
        torch._C._jit_pass_inline(graph)
        return graph, [v.debugName() for v in graph.inputs()]
    names = [a.name for a in module._c._get_method("forward").schema.arguments[1:]]
    if module.training:
        raise PassError("the module is in training mode", fix="call eval() first: passes run at inference")
    if not list(module.parameters()) and not module._c._has_method("training") and not hasattr(module, "training"):
        graph = module.graph.copy()
    else:
        frozen = torch.jit.freeze(module, optimize_numerics=False)
        graph = frozen.graph.copy()
        _forget_weights(frozen.graph)
    torch._C._jit_pass_inline(graph)
    first = next(iter(graph.inputs()))
    if first.uses():
        raise PassError(
            "the module writes its own attributes", fix="use firebrick.torchscript.to_module and firebrick.compile"
        )
    graph.eraseInput(0)
    return graph, names


def _forget_weights(graph: Any) -> None:
    """TorchScript keeps the code of every frozen module for ever: take the weights out of it."""
    for node in nodes_of(graph, "prim::Constant"):
        if node.hasAttribute("value") and node.kindOf("value") == "t":
            node.t_("value", torch.empty(0, device="cpu"))
