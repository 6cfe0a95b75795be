"""A claimed group at run time: compiled when it first runs, again for other shapes, and never in the way.

Whatever the compiler does (raise, hang, return something else than it should) the group's own graph is there to run
instead, with one warning that names the compiler.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import fx

from firebrick.code_digest import content_digest
from firebrick.config import Config
from firebrick.errors import BackendError, FirebrickError, VerificationError
from firebrick.extend.subgraph_compiler import SubgraphCompiler
from firebrick.extend.verify import Difference, compare
from firebrick.fakes.node_values import values_for
from firebrick.report import recorder
from firebrick.runtime.source import whole_file

_Key = tuple[Any, ...]


class CompiledGroup(torch.nn.Module):
    """Runs one group. `compiles`, `loads` and `calls` count what happened; `broken` holds failures by shapes."""

    graph: fx.GraphModule

    def __init__(self, compiler: SubgraphCompiler, graph: fx.GraphModule, *, name: str, config: Config) -> None:
        super().__init__()
        # Kept out of the module tree, so that a claimed group adds nothing to parameters() of the caller's module.
        self.__dict__["graph"] = graph
        self.compiler, self.name, self.config = compiler, name, config
        self.compiles = self.loads = self.calls = 0
        self.broken: dict[_Key, str] = {}
        self._compiled: dict[_Key, Callable[..., Any]] = {}
        self._strides: dict[_Key, list[tuple[int, ...]]] = {}
        self._lock = threading.Lock()
        plain = [t for t in vars(graph).values() if isinstance(t, torch.Tensor)]
        self._constants = [*graph.parameters(), *graph.buffers(), *plain]
        self._seen = _versions(self._constants)

    def forward(self, *inputs: Any) -> list[torch.Tensor]:
        """The group's outputs."""
        self.calls += 1
        if torch.is_grad_enabled() and any(_requires_grad(t) for t in (*inputs, *self._constants)):
            return list(self.graph(*inputs))  # engines give no gradients; the graph's own ops do
        versions = _versions(self._constants)
        if versions != self._seen:
            with self._lock:
                self._compiled.clear()
                self.broken.clear()
                self._seen = versions
        key = tuple((t.shape, t.dtype) if isinstance(t, torch.Tensor) else t for t in inputs)
        run = self._compiled.get(key)
        if run is None:
            return self._first(key, inputs)
        try:
            return self._settle(key, _as_list(run(*self._prepared(inputs))))
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything; PyTorch runs the group then
            self._give_up(key, f"raised {type(error).__name__} at run time: {error}", error)
            return list(self.graph(*inputs))

    def _prepared(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Inputs as the engine wants them; the group's own graph takes them as they are, for its views' sake."""
        if not self.compiler.contiguous:
            return inputs
        return tuple(t.contiguous() if isinstance(t, torch.Tensor) else t for t in inputs)

    def _first(self, key: _Key, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
        with self._lock:
            if key in self.broken or key in self._compiled:
                if key in self.broken:
                    return list(self.graph(*inputs))
                return self._settle(key, _as_list(self._compiled[key](*self._prepared(inputs))))
            try:
                run = self._build(self._prepared(inputs))
                result = self._check(key, run, inputs)
            except Exception as error:  # noqa: BLE001 - as above
                reason = str(error) if isinstance(error, FirebrickError) else f"{type(error).__name__}: {error}"
                self._give_up(key, reason, error)
                return list(self.graph(*inputs))
            self._compiled[key] = run
        return result

    def _settle(self, key: _Key, outputs: list[Any]) -> list[torch.Tensor]:
        """Give each output the strides that the rest of the graph was compiled for."""
        strides = self._strides[key]
        if all(o.stride() == s for o, s in zip(outputs, strides, strict=True)):
            return outputs
        return [
            o if o.stride() == s else torch.empty_strided(o.shape, s, dtype=o.dtype, device=o.device).copy_(o)
            for o, s in zip(outputs, strides, strict=True)
        ]

    def _give_up(self, key: _Key, reason: str, error: Exception) -> None:
        self.broken[key] = reason
        self._compiled.pop(key, None)
        recorder.reason("subgraph compiler failed", f"{self.compiler.name}: {reason.splitlines()[0]}")
        text = f"subgraph compiler {self.compiler.name} failed on {self.name}, which runs in PyTorch instead: {reason}"
        if self.config.strict:
            if isinstance(error, VerificationError):
                raise error
            raise BackendError(text) from error
        recorder.warn_once(f"subgraph compiler {self.compiler.name}", text, stacklevel=5)

    def _check(self, key: _Key, run: Callable[..., Any], inputs: tuple[Any, ...]) -> list[torch.Tensor]:
        """Run once beside the group's graph: number, shapes and dtypes must agree; values under `verify_passes`."""
        with torch.no_grad():
            expected = list(self.graph(*inputs))
            actual = _as_list(run(*self._prepared(inputs)))
        if len(actual) != len(expected):
            raise BackendError(f"returned {len(actual)} outputs instead of {len(expected)}")
        for i, (a, b) in enumerate(zip(expected, actual, strict=True)):
            if not isinstance(b, torch.Tensor):
                raise BackendError(f"output {i} is a {type(b).__name__}, not a tensor")
            if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
                raise BackendError(
                    f"output {i} is {b.dtype} {tuple(b.shape)} on {b.device} "
                    f"instead of {a.dtype} {tuple(a.shape)} on {a.device}"
                )
        if self.config.verify_passes:
            result = compare(
                lambda *_: expected, lambda *_: actual, [], tolerance=self.compiler.tolerance, aliasing=False
            )
            if isinstance(result, Difference):
                raise VerificationError(f"{self.compiler.name} computes {self.name} wrong: {result}")
        self._strides[key] = [a.stride() for a in expected]
        return self._settle(key, actual)

    def _build(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        file = self._cache_file(inputs)
        if file is not None:
            loaded = self._load(file, inputs)
            if loaded is not None:
                return loaded
        graph = values_for(self.graph, inputs)
        limit = self.compiler.timeout if self.compiler.timeout is not None else self.config.build_timeout
        with recorder.timed(f"subgraph compiler {self.compiler.name}"):
            compiled = _within(limit, lambda: self.compiler.compile(graph, list(inputs)))
        if not callable(compiled):
            raise BackendError(f"compile returned a {type(compiled).__name__}, which can't be called")
        self.compiles += 1
        if file is not None:
            data = self.compiler.serialize(compiled)
            if data is not None:
                _write(file, data)
        return compiled

    def _load(self, file: Path, inputs: Sequence[Any]) -> Callable[..., Any] | None:
        try:
            stored = file.read_bytes()
        except OSError:
            return None
        digest, data = stored[:32], stored[32:]
        if hashlib.blake2b(data, digest_size=32).digest() != digest:
            recorder.reason("cache entry broken", file.name)
            return None
        try:
            loaded = self.compiler.deserialize(data, values_for(self.graph, inputs), list(inputs))
        except Exception as error:  # noqa: BLE001 - an entry that the engine no longer reads is only a miss
            recorder.reason("cache entry broken", f"{self.compiler.name}: {error}")
            return None
        self.loads += 1
        return loaded

    def _cache_file(self, inputs: Sequence[Any]) -> Path | None:
        if not self.config.cache or not self.compiler.can_serialize:
            return None
        shapes = [(tuple(t.shape), str(t.dtype), t.stride()) for t in inputs if isinstance(t, torch.Tensor)]
        key = content_digest(
            [self.compiler.name, self.compiler.version, torch.__version__, shapes],
            type(self.compiler),
            graph_text(self.graph),
            self._constants,
        )
        return self.config.cache_dir / "groups" / key


def graph_text(gm: fx.GraphModule) -> str:
    """The graph's nodes by number, so that equal graphs with other names have the same text."""
    names = {n.name: f"%{i}" for i, n in enumerate(gm.graph.nodes)}
    lines = []
    for node in gm.graph.nodes:
        if node.op == "output":
            lines.append(f"output {[names[n.name] for n in node.all_input_nodes]}")
        elif node.op in ("placeholder", "get_attr"):
            lines.append(f"{names[node.name]} = {node.op}")
        else:
            arguments = (_text(node.args, names), _text(node.kwargs, names))
            lines.append(f"{names[node.name]} = {_target_text(node)} {arguments}")
    return "\n".join(lines)


def _text(value: Any, names: dict[str, str]) -> str:
    if isinstance(value, fx.Node):
        return names[value.name]
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_text(v, names) for v in value)}]"
    if isinstance(value, dict):
        return ", ".join(f"{k}={_text(v, names)}" for k, v in value.items())
    return repr(value)


def _target_text(node: fx.Node) -> str:
    if isinstance(node.target, (str, torch._ops.OpOverload)):
        return str(node.target)
    return f"{getattr(node.target, '__module__', '')}.{getattr(node.target, '__name__', type(node.target).__name__)}"


def _within(seconds: float, work: Callable[[], Any]) -> Any:
    """Run `work` in a thread of its own and give up on it after `seconds`.

    Raises:
        BackendError: it took longer; the thread goes on but nobody waits for it.
    """
    box: list[Any] = []
    grad = torch.is_grad_enabled()

    def target() -> None:
        try:
            with torch.set_grad_enabled(grad):
                box.extend((True, work()))
        except BaseException as error:  # noqa: BLE001 - carried to the waiting thread
            box.extend((False, error))

    thread = threading.Thread(target=target, daemon=True, name="firebrick subgraph compiler")
    start = time.perf_counter()
    thread.start()
    thread.join(seconds)
    if not box:
        raise BackendError(
            f"compile took longer than {time.perf_counter() - start:.1f} s",
            fix="raise the compiler's `timeout` or the option build_timeout",
        )
    done, value = box
    if done:
        return value
    raise value


def _write(file: Path, data: bytes) -> None:
    """Write the entry with its checksum; a failure costs a warning, never the run."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file, file.parent) as out:
            out.write(hashlib.blake2b(data, digest_size=32).digest() + data)
    except OSError as error:
        recorder.warn_once("group cache", f"can't write {file.parent.name} cache entries: {error.strerror}")


def _versions(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Something that changes when a tensor is written in place or its data is exchanged."""
    return tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


# ------------------------------------------------------------------ groups as operators

_groups: WeakValueDictionary[str, CompiledGroup] = WeakValueDictionary()
_numbers = itertools.count()
_library = torch.library.Library("firebrick", "FRAGMENT")
_library.define("group(str key, Tensor[] inputs) -> Tensor[]")


def _run_group(key: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    outputs = _groups[key](*inputs)
    addresses = {t.untyped_storage().data_ptr() for t in inputs if t.numel()}
    # An operator's outputs may not share memory with its inputs.
    return [o.clone() if o.numel() and o.untyped_storage().data_ptr() in addresses else o for o in outputs]


def _fake_group(key: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    outputs: Any = _groups[key].graph.graph.output_node().args[0]
    values = [o.meta.get("val") for o in outputs]
    return [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device) for v in values]


_library.impl("group", _run_group, "CompositeExplicitAutograd")
_library.impl("group", _fake_group, "Meta")


def group_op() -> Any:
    """The operator `firebrick::group(str key, Tensor[] inputs) -> Tensor[]`."""
    return torch.ops.firebrick.group.default


class GroupKey(str):
    """The name by which the operator finds a group; a graph whose nodes hold it keeps the group."""

    __slots__ = ("group",)
    group: CompiledGroup

    @classmethod
    def of(cls, group: CompiledGroup) -> GroupKey:
        """A new key."""
        name = f"{group.compiler.name}.{group.name}.{next(_numbers)}"
        key = cls(name)
        key.group = _groups[name] = group
        return key


def group_of(key: str) -> CompiledGroup:
    """The group that is called by a name; whoever goes on calling it keeps this object."""
    return _groups[key]


def groups_in(graph: fx.Graph) -> list[CompiledGroup]:
    """The groups that a graph calls through the operator."""
    return [_groups[node.args[0]] for node in graph.nodes if node.target is group_op()]
