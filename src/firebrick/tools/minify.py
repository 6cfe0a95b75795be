"""`firebrick minify`: cuts a graph that compiles wrongly down to a few ops, and writes them as a script."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import fx

from firebrick.errors import ConfigError, FirebrickError
from firebrick.extend.verify import ValueRecorder, copies_of
from firebrick.tools.probe import Prober, Problem
from firebrick.tools.subject import Captured


@dataclass(frozen=True, slots=True)
class Case:
    """A graph with the values that it is called on. values: also those of its attributes, by node name."""

    gm: fx.GraphModule
    values: dict[str, Any]

    @property
    def size(self) -> int:
        """Number of calls."""
        return sum(n.op.startswith("call") for n in self.gm.graph.nodes)


@dataclass(slots=True)
class Minified:
    """The smallest program found. data: a file of tensors that it needs beside it, where random ones don't do."""

    problem: Problem
    script: str
    before: int
    after: int
    tries: int = 0
    data: dict[str, torch.Tensor] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the script, and the tensors that it loads."""
        path.write_text(self.script.replace(_DATA, path.with_suffix(".pt").name), encoding="utf-8")
        if self.data:
            torch.save(self.data, path.with_suffix(".pt"))


def minify(captured: Captured, backend: str, *, seconds: float, timeout: float) -> Minified:
    """Find the first graph that compiles wrongly and shrink it as long as the same thing is wrong.

    Raises:
        ConfigError: every graph does what it does in eager mode, or can't be written as a script.
    """
    with TemporaryDirectory(prefix="firebrick-minify-") as folder:
        search = _Search(backend, Path(folder), timeout, time.monotonic() + seconds)
        try:
            for graph in captured.graphs:
                case = Case(graph.gm, _values_of(graph.gm, graph.inputs)[0])
                for keep in (False, True):  # random data make a script without a file
                    problem = search.begin(case, keep)
                    if problem is not None:
                        return search.run(case)
        finally:
            search.prober.close()
    fix = "give the inputs that fail, or name another backend by --backend" if captured.error is None else ""
    raise ConfigError(_no_problem(captured), fix=fix or "make it run in plain Python first")


def _no_problem(captured: Captured) -> str:
    name, error = captured.target.name, captured.error
    refused = sum(_values_of(g.gm, g.inputs)[1] is not None for g in captured.graphs)
    count = len(captured.graphs) - (0 if error is None else refused)  # the one in which it ended shows nothing
    what = f"{count} graph{'s' * (count != 1)}"
    if error is None:
        also = f", {refused} of which raise{'s' * (refused == 1)} the same error in both" if refused else ""
        return f"{name} compiles, and its {what} do what they do in eager mode{also}"
    try:
        captured.target()
    except FirebrickError:
        return f"{error.what}, compiled or not; what was compiled before, {what}, does what it does in eager mode"
    return f"{error.what} only while its graphs are captured, and no graph shows that"


def _values_of(gm: fx.GraphModule, inputs: tuple[Any, ...]) -> tuple[dict[str, Any], Exception | None]:
    """The value of every node, computed by eager kernels; those that are written later as they were before.

    They end where eager raises, with its error.
    """
    recorder = ValueRecorder(gm)
    try:
        with torch.no_grad():
            recorder.run(*copies_of(inputs))
    except Exception as error:  # noqa: BLE001  the program's own
        return recorder.values, error
    return recorder.values, None


class _Search:
    """Tries smaller and smaller cases in another process."""

    def __init__(self, backend: str, folder: Path, timeout: float, end: float) -> None:
        self.backend, self.folder, self.end = backend, folder, end
        self.prober = Prober(timeout)
        self.answers: dict[str, Problem | None] = {}
        self.problem: Problem | None = None
        self.keep_data = False

    def begin(self, case: Case, keep_data: bool) -> Problem | None:
        """Look at a whole graph; what is wrong with it is what is looked for from here on."""
        self.keep_data = keep_data
        self.problem = self._probe(case)
        return self.problem

    def run(self, case: Case) -> Minified:
        """The smallest case with the problem."""
        assert self.problem is not None
        before, best = case.size, case
        while time.monotonic() < self.end:
            smaller = next((c for c in _smaller(best) if self._has_problem(c)), None)
            if smaller is None:
                break
            best = smaller
        problem = self._probe(best) or self.problem
        script = _script(best, self.backend, self.keep_data, problem)
        data = _data(best) if self.keep_data else {}
        return Minified(problem, script, before, best.size, len(self.answers), data)

    def _has_problem(self, case: Case) -> bool:
        assert self.problem is not None
        return time.monotonic() < self.end and self.problem.is_like(self._probe(case))

    def _probe(self, case: Case) -> Problem | None:
        script = _script(case, self.backend, self.keep_data, None)
        key = f"{self.keep_data} {script}"
        if key not in self.answers:
            path = self.folder / "case.py"
            Minified(Problem("", ""), script, 0, 0, 0, _data(case) if self.keep_data else {}).write(path)
            self.answers[key] = self.prober(path)
        return self.answers[key]


# ---------------------------------------------------------------- smaller cases


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with fewer calls, the greatest steps first: cut from the end, from the start, then chunk by chunk."""
    calls = [n.name for n in case.gm.graph.nodes if n.op.startswith("call")]
    tensors = [name for name in calls if isinstance(case.values.get(name), torch.Tensor)]
    raising = next((name for name in calls if name not in case.values), None)  # what follows never ran
    if raising is not None and [n.name for n in _results(case.gm.graph)] != [raising]:
        yield from _smaller_by(case, partial(_end_at, raising))
    step = len(tensors) // 2
    while step:
        for name in tensors[len(tensors) - 1 - step :: -step]:
            yield from _smaller_by(case, partial(_end_at, name))
        step //= 2
    size = len(calls) // 2
    while size:
        for start in range(0, len(calls), size):
            chunk = set(calls[start : start + size])
            yield from _smaller_by(case, partial(_cut, chunk, case.values))
        size //= 2
    for name in calls:
        yield from _smaller_by(case, partial(_bypass, name, case.values))
    results = _results(case.gm.graph)
    for k in range(len(results)) if len(results) > 1 else ():
        yield from _smaller_by(case, partial(_end_at, results[k].name))


def _results(graph: fx.Graph) -> list[fx.Node]:
    return list(graph.output_node().all_input_nodes)


def _smaller_by(case: Case, change: Callable[[fx.Graph, dict[str, fx.Node]], bool]) -> Iterator[Case]:
    """The case after a change, without what is then unused; none if that is no smaller."""
    graph = fx.Graph()
    copy_of: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(case.gm.graph, copy_of))
    nodes = {old.name: new for old, new in copy_of.items()}
    values = {new.name: case.values[old] for old, new in nodes.items() if old in case.values}
    before = len(graph.nodes)
    if not change(graph, nodes):
        return
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    for node in list(graph.nodes):
        if node.op == "placeholder" and not node.users:
            graph.erase_node(node)
        elif node.op == "placeholder" and node.name not in values:
            values[node.name] = case.values[str(node.meta["cut"])]
    if not _results(graph) or len(graph.nodes) > before:
        return
    smaller = Case(fx.GraphModule(case.gm, graph), values)
    if smaller.size < case.size or len(_results(graph)) < len(_results(case.gm.graph)):
        yield smaller


def _end_at(name: str, graph: fx.Graph, nodes: dict[str, fx.Node]) -> bool:
    graph.output_node().args = ((nodes[name],),)
    return True


def _cut(chunk: set[str], values: dict[str, Any], graph: fx.Graph, nodes: dict[str, fx.Node]) -> bool:
    """Make inputs of the chunk's results."""
    first = next(iter(graph.nodes))
    changed = False
    for name in chunk:
        node = nodes[name]
        if not any(user.name not in chunk for user in node.users) or node in _results(graph):
            continue
        if not isinstance(values.get(name), torch.Tensor):
            return False
        with graph.inserting_before(first):
            placeholder = graph.placeholder(f"{name}_value")
        placeholder.meta = {"cut": name}
        node.replace_all_uses_with(placeholder)
        changed = True
    return changed


def _bypass(name: str, values: dict[str, Any], graph: fx.Graph, nodes: dict[str, fx.Node]) -> bool:
    """Put an argument in a call's place."""
    node, mine = nodes[name], values.get(name)
    for source in node.all_input_nodes:
        theirs = values.get(source.name)
        if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
            continue
        if (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype):
            node.replace_all_uses_with(source)
            return True
    return False


# ---------------------------------------------------------------- the script

_DATA = "@DATA@"
_HEAD = '''"""{why}

Made by `firebrick minify`. Run it: it ends with status 1 while the problem is there.
"""

import sys
{path}
import torch
{imports}
from firebrick.tools.probe import check


class Repro(torch.nn.Module):
    def __init__(self):
        super().__init__(){attributes}

{forward}


def inputs():
{inputs}


def problem():
    torch.manual_seed(0)
    model = Repro().eval()
    with torch.no_grad():
        return check(model, inputs(), "{backend}")


if __name__ == "__main__":
    found = problem()
    print(found or "no problem")
    sys.exit(found is not None)
'''


def _data(case: Case) -> dict[str, torch.Tensor]:
    """The tensors that a case's script loads."""
    named = [(n, str(n.target) if n.op == "get_attr" else n.name) for n in case.gm.graph.nodes]
    return {
        name: case.values[n.name].clone()
        for n, name in named
        if n.op in ("placeholder", "get_attr") and isinstance(case.values.get(n.name), torch.Tensor)
    }


def _script(case: Case, backend: str, keep_data: bool, problem: Problem | None) -> str:
    """The case as a program.

    Raises:
        ConfigError: the graph holds what can't be written as text.
    """
    graph = case.gm.graph
    code = graph.python_code("self")
    used = {n: v for n, v in code.globals.items() if n != "torch" and re.search(rf"\b{n}\b", code.src)}
    imports = "".join(sorted(_import(name, value) for name, value in used.items()))
    forward = "\n".join(f"    {line}".rstrip() for line in code.src.strip().splitlines())
    load = f'torch.load(Path(__file__).with_name("{_DATA}"))'
    attributes = [f"        data = {load}"] if keep_data else []
    for name in dict.fromkeys(str(n.target) for n in graph.nodes if n.op == "get_attr"):
        tensor = attrgetter(name)(case.gm)
        content = f'data["{name}"]' if keep_data else _random(tensor)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        text = f"{name} = torch.nn.Parameter({content})" if is_parameter else f'register_buffer("{name}", {content})'
        attributes.append(f"        self.{text}")
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    rows = [f"    data = {load}"] if keep_data else ["    torch.manual_seed(1)"]
    items = [f'data["{n.name}"]' if keep_data else _random(case.values[n.name]) for n in placeholders]
    rows += ["    return (", *(f"        {item}," for item in items), "    )"] if items else ["    return ()"]
    why = str(problem).replace("\\", "\\\\").replace('"""', "'''") if problem else "A case."
    parts = {
        "path": "from pathlib import Path\n" if keep_data else "",
        "attributes": "".join(f"\n{line}" for line in attributes),
        "inputs": "\n".join(rows),
    }
    return _HEAD.format(why=why, imports=imports, backend=backend, forward=forward, **parts)


def _import(name: str, value: Any) -> str:
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if isinstance(value, float) and (math.isinf(value) or math.isnan(value)):
        return f"from math import {name}\n"
    if value is type(None):
        return f"{name} = type(None)\n"
    if not module or "." in qualified or "<" in qualified:
        raise ConfigError(f"the graph calls {name}, which can't be written in a script")
    return f"from {module} import {qualified} as {name}\n"


def _random(value: Any) -> str:
    """Text that makes a random tensor like a value; floats are normal, integers small enough to be indices."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    shape, dtype = tuple(value.shape), value.dtype
    if dtype.is_floating_point or dtype.is_complex:
        text = f"torch.randn({shape}, dtype={dtype})"
    elif dtype == torch.bool:
        text = f"torch.rand({shape}) > 0.5"
    else:
        low, high = (int(value.min()), int(value.max())) if value.numel() else (0, 1)
        text = f"torch.randint({low}, {high + 1}, {shape}, dtype={dtype})"
    if not value.is_contiguous() and 0 not in value.stride():
        text = f"torch.empty_strided({shape}, {value.stride()}, dtype={dtype}).copy_({text})"
    return text
