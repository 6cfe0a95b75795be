"""Compile with a backend that runs graphs eagerly, and compare with plain Python."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from firebrick.capture import hook
from firebrick.capture.frame import Capture, FrameReport
from firebrick.config import Config

if TYPE_CHECKING:
    from collections.abc import Callable


class Compiled:
    """A compiled callable that counts what was captured."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.frames: list[FrameReport] = []
        self.graphs: list[torch.fx.GraphModule] = []
        self.calls = 0
        capture = Capture(self._backend, Config(strict=True, **options), on_frame=self.frames.append, scope=self)
        self._fn = hook.Wrapped(fn, capture, self)

    def _backend(self, gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        gm.graph.lint()
        self.graphs.append(gm)

        def run(*tensors: torch.Tensor) -> Any:
            self.calls += 1
            return gm.forward(*tensors)

        return run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fn(*args, **kwargs)

    @property
    def breaks(self) -> list[str]:
        """Names of the graph breaks."""
        return [frame.break_.kind.name for frame in self.frames if frame.break_ is not None]

    @property
    def ops(self) -> int:
        """Calls captured in all graphs."""
        return sum(frame.op_count for frame in self.frames)


def outcome(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[str, Any]:
    """What a call gives: its result or the exception's class and text."""
    try:
        return "returned", fn(*args)
    except Exception as error:  # noqa: BLE001  exceptions are compared too
        return "raised", (type(error), str(error))


def assert_same(got: Any, want: Any) -> None:
    """Deep comparison; tensors by value, dtype and requires_grad, objects by class and attributes."""
    assert type(got) is type(want), (got, want)
    if got is want:  # a flag's inverse has it as its own
        return
    if isinstance(want, torch.Tensor):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert got.requires_grad == want.requires_grad
        assert torch.equal(got.detach(), want.detach()) or torch.allclose(got.detach(), want.detach(), equal_nan=True)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            assert_same(one, other)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_same(got[key], want[key])
    elif isinstance(want, (set, frozenset, str, int, float, bytes, complex, type, type(None))):
        assert got == want or want != want
    elif hasattr(want, "__dict__") and not callable(want):
        assert_same(vars(got), vars(want))


def check(
    fn: Callable[..., Any], *args: Any, graphs: int | None = 1, breaks: int | None = 0, calls: int = 2
) -> Compiled:
    """Call plain and compiled on copies of the arguments; results, exceptions and changed arguments must agree."""
    compiled = Compiled(fn)
    for _ in range(calls):
        plain_args, compiled_args = copy.deepcopy(args), copy.deepcopy(args)
        want = outcome(fn, plain_args)
        got = outcome(compiled, compiled_args)
        assert got[0] == want[0], (got, want)
        assert_same(got[1], want[1])
        assert_same(compiled_args, plain_args)
    if graphs is not None:
        assert len(compiled.graphs) == graphs, [str(gm.graph) for gm in compiled.graphs]
    if breaks is not None:
        assert len(compiled.breaks) == breaks, [frame.break_ for frame in compiled.frames]
    return compiled


def check_change(fn: Callable[..., Any], change: Callable[[], Any], *args: Any) -> Compiled:
    """Compiled as plain before and after a change that makes a difference."""
    compiled = Compiled(fn)
    before = outcome(fn, args)
    for _ in range(3):
        assert_same(outcome(compiled, args)[1], before[1])
    change()
    after = outcome(fn, args)
    assert repr(after) != repr(before), "the change makes no difference"
    for _ in range(3):
        assert_same(outcome(compiled, args)[1], after[1])
    return compiled
