"""What a command works on: a script, `module:function`, or a named model; called plainly or with frames captured."""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import fx

from firebrick import pipeline
from firebrick.api.settings import Settings
from firebrick.api.switches import OUTER, Switch
from firebrick.capture import hook
from firebrick.capture.frame import FrameReport
from firebrick.config import Config
from firebrick.errors import ConfigError, FirebrickError, UserLocation
from firebrick.extend.verify import copies_of, example_tensors
from firebrick.fakes.segments import is_cut, segments
from firebrick.ir.graph.nested import Nested
from firebrick.tools.models import check_name, load_target


@dataclass(frozen=True, slots=True)
class Target:
    """A call. script: it is a program of its own, whose prints go to stderr, those of its first run only."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    script: bool = False

    @classmethod
    def load(cls, text: str, *args: str) -> Target:
        """Find what the command line names; the arguments are a script's.

        Raises:
            ConfigError: there is no such target.
        """
        check_name(text)
        if text.endswith(".py"):
            return cls(text, _Script(text, args), script=True)
        return cls(text, *load_target(text))

    def __call__(self) -> Any:
        """Make the call; only a script decides itself about gradients.

        Raises:
            FirebrickError: it raises, which is the cause.
        """
        try:
            with nullcontext() if self.script else torch.no_grad():
                return self.fn(*self.args, **self.kwargs)
        except FirebrickError:
            raise
        except Exception as error:
            text = f"{self.name} raises {type(error).__name__}: {error}".partition("\n")[0]
            raise FirebrickError(text, where=_user_place(error), fix="make it run in plain Python first") from error

    @property
    def root(self) -> torch.nn.Module | None:
        """The module that is called, if it is one."""
        owner = getattr(self.fn, "__self__", self.fn)
        return owner if isinstance(owner, torch.nn.Module) else None

    def submodule(self, path: str) -> Target:
        """The first call that the target makes of one of its modules; the path may begin with the target's own name.

        Raises:
            ConfigError: it has no such module, or does not call it.
        """
        root = self.root
        if root is None:
            fix = "give a named model, or module:function that returns a module with its arguments"
            raise ConfigError(f"{self.name} has no modules by name", fix=fix)
        modules = dict(root.named_modules())
        inner = path.partition(".")[2] if path.partition(".")[0] == self.name and path not in modules else path
        if inner not in modules:
            near = ", ".join(_near(inner, list(modules))) or ", ".join(name for name, _ in root.named_children())
            raise ConfigError(f"{self.name} has no module {path!r}", fix=f"near names: {near}")
        calls: list[tuple[Any, Any]] = []

        def note(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            calls.append((args, kwargs))

        with modules[inner].register_forward_pre_hook(note, with_kwargs=True):
            self()
        if not calls:
            raise ConfigError(f"{self.name} does not call its module {path!r}", fix="name one that its forward calls")
        return Target(f"{self.name}.{inner}" if inner else self.name, modules[inner], *calls[0])


def dotted_names(root: torch.nn.Module | None) -> dict[str, str]:
    """Capture's flat names of modules -> their names in the tree."""
    return {} if root is None else {name.replace(".", "_"): name for name, _ in root.named_modules()}


def _near(path: str, names: list[str]) -> list[str]:
    """Names that look like `path`: those that end alike first."""
    last = path.rpartition(".")[2]
    ending = [n for n in names if n.rpartition(".")[2] == last]
    return list(dict.fromkeys([*difflib.get_close_matches(path, names, 4, 0.5), *ending[:2]]))


def _user_place(error: BaseException) -> UserLocation | None:
    """The innermost line of the user's own code in a traceback."""
    installed = tuple(str(Path(module.__file__ or "").parent) + os.sep for module in (torch, pipeline))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((*installed, "<"))]
    own = [f for f in frames if "site-packages" not in f.filename] or frames
    return UserLocation(own[-1].filename, own[-1].lineno or 0, function=own[-1].name) if own else None


class _Script:
    """A program that can be run again and again: its code is the same each time, so that what was compiled is met."""

    def __init__(self, path: str, args: Sequence[str] = ()) -> None:
        self.path, self.args = path, args
        self.code: CodeType | None = None
        self.module: ModuleType | None = None  # whose globals all runs share; None: new ones for each

    def __call__(self) -> None:
        first, path = self.code is None, self.path
        self.code = self.code or compile(Path(path).read_bytes(), path, "exec")
        before, directory, main = sys.argv, str(Path(path).resolve().parent), sys.modules["__main__"]
        module = self.module or ModuleType("__main__")
        module.__file__ = path
        sys.argv, sys.modules["__main__"] = [path, *self.args], module
        sys.path.insert(0, directory)
        try:
            with nullcontext(sys.stderr) if first else open(os.devnull, "w") as out, redirect_stdout(out):
                exec(self.code, module.__dict__)
        except SystemExit as end:
            if end.code:
                raise ConfigError(f"{path} ended with {end.code!r}") from None
        finally:
            sys.argv, sys.modules["__main__"] = before, main
            sys.path.remove(directory)


@dataclass(slots=True)
class Graph:
    """A captured graph with the inputs of its first call, and what the stages make of it, or why they can't."""

    gm: fx.GraphModule
    inputs: tuple[Any, ...]
    stages: pipeline.Stages | None = None
    failure: str = ""

    @property
    def name(self) -> str:
        """Name of the function that it comes from."""
        name = str(self.gm.meta.get("name") or "graph")
        stacks = [node.meta.get("stack") or () for node in self.gm.graph.nodes] if name == "graph" else []
        functions = [place.function for place in next(filter(None, stacks), ()) if place.function]
        named = [function for function in functions if "<locals>" not in function]  # not the wrapper of a decorator
        return next(iter((*named, *functions)), name)


@dataclass(slots=True)
class Captured:
    """All graphs of one call, in the order in which they first ran, and the reports of its frames.

    error: what ended the call, if it did not end by itself.
    """

    target: Target
    graphs: list[Graph] = field(default_factory=list)
    reports: list[FrameReport] = field(default_factory=list)
    error: FirebrickError | None = None

    def breaks(self) -> list[dict[str, str]]:
        """Place, cause and fix of each graph break."""
        graph_breaks = [r.break_ for r in self.reports if r.break_ is not None]
        return [{"place": str(b.unsupported().where or ""), "cause": str(b), "fix": b.kind.fix} for b in graph_breaks]


@contextmanager
def offered(settings: Settings, on_frame: Callable[[FrameReport], None] | None = None) -> Iterator[None]:
    """Offer the frames that run in the block to capture, and its graphs to the backend of `settings`.

    Functions that the program itself compiles are offered like others.
    """
    scope = object()
    with Switch(OUTER), hook.installed(settings.capturer(scope, on_frame), scope):
        yield


def _parts(gm: fx.GraphModule, inputs: tuple[Any, ...]) -> Iterator[Graph]:
    """The graph, or those around, in and behind its branches and loops, which are compiled each on its own."""
    if not is_cut(gm):
        yield Graph(gm, inputs)
        return
    bodies = [body.graph for n in gm.graph.nodes if isinstance(n.target, Nested) for body in n.target.bodies]
    for part in (*(s.graph for s in segments(gm)), *bodies):
        if part is not None:
            values = [node.meta["val"] for node in part.graph.nodes if node.op == "placeholder"]
            yield from _parts(part, tuple(example_tensors(values)))


def capture(target: Target, *, stages: bool = True, errors: bool = True) -> Captured:
    """Call a target once with its graphs run on eager kernels, and keep them; `stages` also looks at what they become.

    errors: what the call raises is raised, not kept.

    Raises:
        ConfigError: nothing was captured.
        FirebrickError: the target raises.
    """
    out = Captured(target)

    def keep(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        out.graphs += _parts(gm, tuple(copies_of(inputs)))
        return gm.forward

    try:
        with offered(Settings.make(keep), out.reports.append):
            target()
    except FirebrickError as error:
        if errors or not out.graphs:
            raise
        out.error = error
    if not out.graphs:
        causes = "; ".join(b["cause"] for b in out.breaks())
        raise ConfigError(f"no graph was captured from {target.name}", fix=causes or "it calls no torch functions")
    for graph in out.graphs if stages else ():
        try:
            with torch.no_grad():
                graph.stages = pipeline.inspect_graph(graph.gm, graph.inputs, Config.from_env())
        except FirebrickError as error:
            graph.failure = str(error)
    return out
