"""The one exception tree. Each error says what happened, where in the user's code, and what to do."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class UserLocation:
    """A place in the user's code; `line` and `column` count from 1, column 0 is unknown.

    nodes: numbers of the captured graph's nodes that were made there, once the compiler has counted them.
    """

    file: str
    line: int
    column: int = 0
    function: str = ""
    nodes: tuple[int, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        if self.column:
            place += f":{self.column}"
        return f"{place} in {self.function}" if self.function else place


class FirebrickError(Exception):
    """Root of all errors that Firebrick raises.

    Args:
        what: what happened, one sentence without a final stop.
        where: the user's source location, where one is known.
        fix: what the user can do about it.
    """

    def __init__(self, what: str, *, where: UserLocation | None = None, fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        text = what
        if where is not None:
            text += f"\n  at {where}"
        if fix:
            text += f"\n  fix: {fix}"
        super().__init__(text)


class ConfigError(FirebrickError, ValueError):
    """An unknown mode or option, or a value of the wrong type."""


class PlatformError(FirebrickError, RuntimeError):
    """Python, torch or the machine is not one that Firebrick supports."""


class Unsupported(FirebrickError, RuntimeError):
    """Capture met something that it can't put in a graph, and `fullgraph=True` forbids a graph break."""


class RecompileError(FirebrickError, RuntimeError):
    """A call fits nothing that was compiled, and the stance `fail_on_recompile` forbids compiling for it."""


class BackendError(FirebrickError, RuntimeError):
    """A backend is unknown, or raised, or returned something that can't be called."""


class CompileError(FirebrickError, RuntimeError):
    """The C++ or Triton compiler failed; the message carries its first lines."""


class LoweringError(FirebrickError, RuntimeError):
    """A graph can't be lowered to loops or library calls."""


class RefusedBackward(LoweringError):
    """Eager PyTorch raises in the backward of a graph, which it therefore runs itself."""


class SizesRefused(LoweringError):
    """A graph is not compiled with sizes that vary: it is to be captured with numbers."""


class SizesDecided(SizesRefused):
    """All sizes of a graph that could vary became numbers on the way."""


class WrapperRefused(LoweringError):
    """A graph with tensors of a class that has a `__torch_dispatch__` is not compiled: plain Python runs its frame."""

    kind = "tensor-subclass"
    """The row of graph breaks that says so."""


class HookRefused(WrapperRefused):
    """A tensor with a hook leaves the graph, where its gradient would be asked for without the hook."""

    kind = "unsupported-call"


class CacheError(FirebrickError, RuntimeError):
    """A cache entry is corrupt, foreign or of another schema, or can't be written."""


class PassError(FirebrickError, RuntimeError):
    """A pass or rewrite rule raised or left an illegal graph."""


class VerificationError(FirebrickError, RuntimeError):
    """A pass or a claimed subgraph gave other results than the graph that it replaced."""


class InternalError(FirebrickError, AssertionError):
    """A broken invariant of Firebrick itself; please report it."""
