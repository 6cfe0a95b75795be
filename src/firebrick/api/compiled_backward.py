"""`compiled_backward`: a backward over all graphs, hooks and custom Functions of a program as few graphs."""

from __future__ import annotations

import functools
import operator
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import fx
from torch.autograd import Variable

from firebrick import backends
from firebrick.api.settings import Settings
from firebrick.errors import BackendError, CompileError, LoweringError
from firebrick.extend import Pass, SubgraphCompiler, Target
from firebrick.report import recorder
from firebrick.runtime.engine_steps import ACCUMULATE, accumulate, layout_key, obstacle
from firebrick.runtime.training import is_compiled_node
from firebrick.trace import engine_capture
from firebrick.trace.engine_capture import Recorder

F = TypeVar("F", bound=Callable[..., Any])

_engine: Any = torch._C._dynamo.compiled_autograd
_local = threading.local()
_lock = threading.RLock()
_ASKING = ("torch.autograd.graph", "torch.distributed", "torch.utils.checkpoint")
"""Modules whose hooks ask torch's engine about the backward that runs."""


class _Refused(Exception):
    """The engine does not know this graph's key yet."""


class _Segment:
    """Calls that are one graph, compiled for each layout of its inputs."""

    def __init__(self, pure: Sequence[fx.Node], outside: set[fx.Node]) -> None:
        self.pure, inner = pure, set(pure)
        self.inputs = list(dict.fromkeys(n for p in pure for n in p.all_input_nodes if n not in inner))
        self.outputs = [p for p in pure if any(u not in inner for u in p.users) or p in outside]
        self.compiled: dict[Any, Callable[..., Sequence[Any]]] = {}

    def run(self, env: dict[fx.Node, Any], settings: Settings) -> None:
        """Compute its outputs."""
        values = [env[n] for n in self.inputs]
        key = repr(settings), *[layout_key(v) for v in values]
        present = [v for v in values if v is not None]
        run = self.compiled.get(key)
        if run is None:
            none = {i for i, v in enumerate(values) if v is None}
            gm = engine_capture.segment(self.pure, self.inputs, self.outputs, none)
            gm.meta["name"] = "backward"
            try:
                run = settings.compiler()(gm, [v.detach() for v in present])
                recorder.count("graphs of compiled backwards")
            except (LoweringError, BackendError) as error:  # torch's engine has given away what the nodes hold
                if isinstance(error, BackendError) and "the derivative for" not in str(error.__cause__):
                    raise  # eager mode lacks no derivative
                recorder.reason("fallback", str(error))
                run = gm.forward
            self.compiled[key] = run
        del values
        env.update(zip(self.outputs, run(*present), strict=True))


class _Program:
    """What the engine does in a backward: graphs, and plain calls between them."""

    def __init__(self, capture: Recorder, outputs: list[Any]) -> None:
        graph = capture.graph
        self.hooks, self.outputs, self.constants = capture.hooks, outputs, capture.constants
        self.inputs = [n for n in graph.nodes if n.op == "placeholder"][1:]
        outside = {n for n in outputs if n is not None}
        self.parts = [(_Segment(pure, outside), plain) for pure, plain in engine_capture.parts(graph)]
        self.last: list[list[fx.Node]] = []  # values that nobody needs after each part
        later = set(outside)
        for one, plain in reversed(self.parts):
            used = {*one.inputs, *one.outputs, *(n for p in plain for n in (p, *p.all_input_nodes))}
            self.last.insert(0, [n for n in used if n not in later])
            later |= used

    def run(self, inputs: list[Any], hooks: Sequence[Any], settings: Settings) -> list[Any]:
        """Run it on what the nodes of this backward hold."""
        env = dict(zip(self.inputs, [*inputs, *self.constants], strict=True))
        inputs.clear()  # what the nodes saved goes with the last part that needs it
        holders = Counter(t.untyped_storage().data_ptr() for t in env.values())
        for (one, plain), last in zip(self.parts, self.last, strict=True):
            if one.outputs:
                one.run(env, settings)
                new = [env[n] for n in one.outputs if isinstance(env[n], torch.Tensor)]
                holders.update(t.untyped_storage().data_ptr() for t in new if plain)
            for node in plain:
                self._plain(node, env, hooks, holders)
            for node in last:
                env.pop(node, None)
        return [None if n is None else env[n] for n in self.outputs]

    def _plain(self, node: fx.Node, env: dict[fx.Node, Any], hooks: Sequence[Any], holders: Counter[int]) -> None:
        def value(arg: fx.Node) -> Any:
            return hooks[arg.args[1]] if arg not in env else env[arg]  # type: ignore[index]

        args: Any = fx.node.map_aggregate(node.args, lambda a: value(a) if isinstance(a, fx.Node) else a)
        if node.target is ACCUMULATE:
            accumulate(args[0], args[1], holders)
            return
        result = env[node] = node.target(*args)  # type: ignore[operator]
        if node.target is not operator.getitem:
            flat = result if isinstance(result, (tuple, list)) else [result]
            holders.update(t.untyped_storage().data_ptr() for t in flat if isinstance(t, torch.Tensor))


class _Kept:
    """A program as the engine keeps it."""

    def __init__(self, program: _Program) -> None:
        self.program = program

    def __call__(self) -> None:
        """The engine wants what it keeps to be callable."""


class _Call:
    """One backward: the engine collects what the nodes hold, and the program runs behind it.

    captures: its graph has a key that is new to the engine. begun: the program runs.
    """

    def __init__(self, real: Any, settings: Settings) -> None:
        self.real, self.settings = real, settings
        self.captures = self.begun = False
        self.callbacks: list[Callable[[], None]] = []
        self.collected: Any = None
        self.capture: Recorder | None = None

    def run(self, tensors: Any, grads: Any, keep: bool, *args: Any, **kwargs: Any) -> Any:
        """Run it. A new graph is collected before its nodes give away what they hold."""
        try:
            self._collect(tensors, grads, keep, args, kwargs)
        except _Refused:
            self.captures = True
            self._collect(tensors, grads, True, args, kwargs)
            program, inputs, hooks = self.collected
            for hook in (hooks[i] for i in program.hooks):
                if str(getattr(hook, "__module__", "")).startswith(_ASKING):
                    raise CompileError(
                        f"a hook of {hook.__module__} asks torch's engine about the backward that runs"
                    ) from None
            if not keep:
                self._collect(tensors, grads, False, args, kwargs)
        (program, inputs, hooks), self.collected, self.begun = self.collected, None, True
        if not keep:
            for node in filter(is_compiled_node, hooks):
                node.before = None  # goes with what is saved
        with torch.no_grad():
            outputs = program.run(inputs, hooks, self.settings)
            while self.callbacks:
                self.callbacks.pop(0)()
        return tuple(outputs)

    def _collect(self, tensors: Any, grads: Any, keep: bool, args: tuple[Any, ...], kwargs: Any) -> None:
        with _lock:
            before = _engine.set_autograd_compiler(self._recorder, False)
            try:
                self.real.run_backward(tensors, grads, keep, *args, **kwargs)
            finally:
                _engine.set_autograd_compiler(*before)

    def _recorder(self) -> Recorder:
        if not self.captures:
            raise _Refused
        self.capture = Recorder(lambda capture, outputs: (_take, _Kept(_Program(capture, outputs))))
        return self.capture

    def take(self, program: _Program, inputs: list[Any], hooks: Sequence[Any]) -> list[Any]:
        """Keep what the engine has collected; what it gives back only says which gradients there are."""
        self.collected = program, list(inputs), hooks
        inputs.clear()
        return [None if n is None else torch.empty(0) for n in program.outputs]


def _take(kept: _Kept, inputs: list[Any], _: Any, __: Any, hooks: Sequence[Any], ___: Any) -> list[Any]:
    return _local.call.take(kept.program, inputs, hooks)  # type: ignore[no-any-return]


class _Engine:
    """Takes the place of torch's engine while a block is open in some thread."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Call it when the backward is done."""
        call = getattr(_local, "call", None)
        (self.real.queue_callback if call is None or not call.begun else call.callbacks.append)(callback)

    def run_backward(
        self, tensors: Any, grads: Any, keep_graph: bool, create_graph: bool, *args: Any, **kwargs: Any
    ) -> Any:
        """Run a backward."""
        blocks, everything = getattr(_local, "blocks", ()), (tensors, grads, keep_graph, create_graph, *args)
        traced = torch._C._len_torch_dispatch_stack() > 0
        if not blocks or traced or getattr(_local, "call", None) is not None:
            return self.real.run_backward(*everything, **kwargs)
        block, cause = blocks[-1], obstacle(create_graph, tensors)
        if not cause and block.captures > block.settings.config.recompile_limit:
            cause = "there were as many of other shapes as recompile_limit says"
        if not cause:
            call = _local.call = _Call(self.real, block.settings)
            try:
                return call.run(*everything, **kwargs)
            except Exception as error:
                if call.begun or (call.capture is not None and call.capture.walks):
                    raise  # hooks were called, or nodes hold what stands for others
                cause = str(error) if isinstance(error, CompileError) else f"{type(error).__name__}: {error}"
                if call.captures:
                    _engine.clear_cache()  # it would take from the nodes what torch's engine needs
            finally:
                _local.call = None
                block.captures += call.captures
        result = self.real.run_backward(*everything, **kwargs)
        recorder.count("backwards by torch's engine")
        recorder.reason("backward by torch's engine", cause)
        recorder.warn_once(f"backward {cause}", f"firebrick: a backward is left to torch's engine, since {cause}")
        return result


class compiled_backward:
    """Compile each backward that runs in the block, or in the decorated function, over all graphs of a program.

    Hooks, gradients that are accumulated and custom Functions are part of it; what can't be compiled runs as plain
    Python between graphs. Without a function: a context manager and a decorator. `compile` has it as
    `options={"compiled_backward": True}`.

    Args:
        fn: a function to decorate.
        backend, mode, options, passes: as in `compile`.
    """

    def __new__(cls, fn: Any = None, **arguments: Any) -> Any:
        """Make a block; with a function, the function in one."""
        block = super().__new__(cls)
        if fn is None:
            return block
        block.__init__(**arguments)  # type: ignore[misc]
        return block(fn)

    def __init__(
        self,
        *,
        backend: str | Callable[..., Any] | Target | SubgraphCompiler | None = None,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
        passes: Sequence[Pass] = (),
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings or Settings.make(
            backend or backends.FIREBRICK, mode=mode, options=options, passes=passes
        )
        self.captures = 0

    def __enter__(self) -> compiled_backward:
        with _lock:
            if not isinstance(Variable._execution_engine, _Engine):
                Variable._execution_engine = _Engine(Variable._execution_engine)  # type: ignore[assignment]
        _local.blocks = [*getattr(_local, "blocks", ()), self]
        return self

    def __exit__(self, *error: object) -> None:
        _local.blocks = _local.blocks[:-1]

    def __call__(self, fn: F) -> F:
        """Return `fn` in this block."""

        @functools.wraps(fn)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fn(*args, **kwargs)

        return inside  # type: ignore[return-value]
