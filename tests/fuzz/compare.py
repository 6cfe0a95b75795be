"""Runs a program plain and compiled and tells what differs."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import hashlib
import io
import random
import re
import signal
import sys
import types
import warnings

import torch

import firebrick

__all__ = ["Difference", "TimedOut", "compare"]

GLOBALS = ("COUNT", "TABLE", "SEEN", "WEIGHT", "NET", "SEQ", "GUARDED")
SECONDS = 20


class TimedOut(BaseException):
    pass


@dataclasses.dataclass(frozen=True)
class Difference:
    """`kind` groups failures of one cause; the rest is for people."""

    kind: str
    call: int
    plain: str
    compiled: str


@contextlib.contextmanager
def time_limit(seconds: float):
    def stop(*_):
        raise TimedOut

    old = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


def inputs(index: int) -> tuple:
    """Arguments of `main`: equal kinds with other values, another length, aliased arguments, gradients."""
    x = torch.tensor([1.0, -2.0, 0.5]) + index
    y = torch.tensor([0.25, 3.0, -1.0])
    m = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 4.0]])
    n, f, items, table = 3 + index % 2, 1.5, [3, 1, 2], {"a": 2, "b": 5}
    if index == 2:
        y, items = x, [4, 0, 5, 1]
    if index == 3:
        x = x.requires_grad_()
    return x, y, m, n, f, items, table, ("box", n, y)


_ADDRESS = re.compile(r" at 0x[0-9a-f]+", re.IGNORECASE)  # a text may have been turned to capitals
_RESUMED = re.compile(r"\.(resume|resumed|part)_at_\d+")


class _Canonical:
    """Text of object graphs in which identity and shared storage can be seen."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.keep: list[object] = []

    def text(self, value: object, depth: int = 0) -> str:
        if value is None or isinstance(value, bool | int | str | bytes | complex) and type(value) in _PLAIN:
            return _ADDRESS.sub("", repr(value))
        if isinstance(value, float):
            return f"{type(value).__name__}:{value!r}"
        if isinstance(value, type | types.BuiltinFunctionType | types.ModuleType | torch.dtype):
            return f"{getattr(value, '__name__', value)}"
        if id(value) in self.seen:
            return f"#{self.seen[id(value)]}"
        number = self.seen[id(value)] = len(self.seen)
        self.keep.append(value)
        if depth > 12:
            return "deep"
        return f"#{number}={self._inside(value, depth + 1)}"

    def _inside(self, value: object, depth: int) -> str:
        name = type(value).__name__
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, list | tuple | collections.deque):
            return f"{name}[{', '.join(self.text(v, depth) for v in value if not isinstance(v, Silent))}]"
        if isinstance(value, dict):
            items = ", ".join(f"{self.text(k, depth)}: {self.text(v, depth)}" for k, v in value.items())
            return f"{name}{{{items}}}"
        if isinstance(value, set | frozenset):
            members = sorted(_Canonical().text(v, depth) for v in value)  # their order is that of addresses
            return f"{name}{{{', '.join(members)}}}"
        if isinstance(value, torch.nn.Module):
            own = {k: v for k, v in vars(value).items() if not k.startswith("_")}
            return f"{name}({self.text(own, depth)}, {self.text(dict(value.state_dict()), depth)})"
        if isinstance(value, functools.partial):
            return f"partial({self.text(value.func, depth)}, {self.text(value.args, depth)})"
        if isinstance(value, types.FunctionType):
            cells = [c.cell_contents if _filled(c) else "<empty>" for c in value.__closure__ or ()]
            own = [self.text(c, depth) for c in cells]
            return f"function {value.__qualname__} {self.text(value.__defaults__, depth)} [{', '.join(own)}]"
        if isinstance(value, types.MethodType):
            return f"method {value.__func__.__qualname__} of {self.text(value.__self__, depth)}"
        if isinstance(value, BaseException):
            return f"{name}({_ADDRESS.sub('', str(value))})"
        own = getattr(value, "__dict__", None)
        if own is not None and not hasattr(value, "__next__"):
            return f"{name}({self.text(dict(own), depth)})"
        return name

    def _tensor(self, t: torch.Tensor) -> str:
        storage = self.storages.setdefault(t.untyped_storage().data_ptr(), len(self.storages))
        parts = [
            type(t).__name__,
            str(t.dtype),
            str(tuple(t.shape)),
            str(t.stride()),
            f"s{storage}+{t.storage_offset()}",
        ]
        parts += (
            ["grad"] * t.requires_grad
            + ["leaf"] * t.is_leaf
            + ["inference"] * t.is_inference()
            + [str(t.detach().tolist())]
        )
        return " ".join(parts)


class Silent:
    """Objects that take no part in comparisons."""


_PLAIN = (bool, int, str, bytes, complex)


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def _states(space: dict) -> str:
    """What the next random numbers depend on."""
    own, generator = space.get("RANDOM"), space.get("GENERATOR")
    found = [random.getstate(), own and own.getstate(), torch.get_rng_state().tolist()]
    found.append(generator and generator.get_state().tolist())
    return hashlib.sha256(repr(found).encode()).hexdigest()


def observe(space: dict, function, arguments: tuple) -> dict[str, str]:
    """Everything that a call does which somebody could see."""
    printed = io.StringIO()
    result = error = None
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(*arguments)
        except TimedOut:
            raise
        except Exception as raised:
            error = raised
    canonical = _Canonical()
    text = canonical.text
    chain = []
    while error is not None and len(chain) < 3:
        words = "" if isinstance(error, RecursionError) else str(error)  # they tell where the last of many calls was
        chain.append(f"{type(error).__name__}: {_RESUMED.sub('', _ADDRESS.sub('', words))}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    seen = {
        "error": " <- ".join(chain),
        "printed": _ADDRESS.sub("", printed.getvalue()),
        "result": text(result),
        "arguments": text(list(arguments)),
        "globals": text({name: space.get(name) for name in GLOBALS}),
        "classes": text([getattr(space.get("Box"), name, None) for name in ("scale", "made")]),
        "random": _states(space),
        "state": f"grad {torch.is_grad_enabled()} inference {torch.is_inference_mode_enabled()} autocast {torch.is_autocast_enabled('cpu')} exception {sys.exc_info()[0]}",
    }
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    return seen


def load(text: str, name: str) -> dict:
    """Execute a program's text in a namespace of its own."""
    module = sys.modules[name] = types.ModuleType(name)  # dataclasses ask for it
    torch.manual_seed(0)
    space = module.__dict__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, f"<{name}>", "exec"), space)
    return space


def compare(text: str, calls: int = 4, backend: str = "eager") -> Difference | None:
    """The first difference between plain and compiled, over several calls with other arguments; None if there is none.

    Raises:
        TimedOut: a call takes too long.
        Exception: the program itself can't be loaded.
    """
    plain_space, space = load(text, "program"), load(text, "program")
    plain = plain_space["main"]
    compiled = firebrick.compile(space["main"], backend=backend)
    for call in range(calls):
        outcomes = []
        for where, function in ((plain_space, plain), (space, compiled)):
            *arguments, (_, n, t) = inputs(call)
            arguments.append(where["Loud" if call % 2 else "Box"](n, t) if "Box" in where else None)
            with time_limit(SECONDS):
                torch.manual_seed(call)
                random.seed(call)
                outcomes.append(observe(where, function, tuple(arguments)))
        for key, expected in outcomes[0].items():
            found = outcomes[1][key]
            if expected != found:
                kind = key
                if key == "error":
                    kind = f"error {found.partition(':')[0] or '-'} for {expected.partition(':')[0] or '-'}"
                    if "firebrick" in found or "InternalError" in found:
                        kind = f"error {found.partition(':')[0]}"
                return Difference(kind, call, expected, found)
    return None
