"""Runs a program plain and compiled and tells what differs.

A program with `drive(main, call)` (see `features/frame.py`) is driven by it, another one is called with `inputs`.
With the backend "eager" everything is compared bit by bit; with others numbers of tensors and floats are compared within
rounding, and of errors the type.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import gc
import hashlib
import io
import random
import re
import signal
import sys
import traceback
import types
import warnings
import weakref
from typing import TYPE_CHECKING

import torch
from torch.autograd import forward_ad

import firebrick

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Difference", "TimedOut", "as_near", "compare"]

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

    def __init__(self, exact: bool = True) -> None:
        self.exact = exact
        self.values: list[torch.Tensor] = []
        """Where not exact: numbers whose places in the text are empty."""
        self.seen: dict[int, int] = {}
        self.storages: dict[int, tuple[int, int]] = {}
        """Address of a storage -> its number, and the offset of the tensor by which it was met: where in its memory a
        result begins is open, where two begin that share memory is not."""
        self.keep: list[object] = []

    def text(self, value: object, depth: int = 0) -> str:
        if value is None or isinstance(value, bool | int | str | bytes | complex) and type(value) in _PLAIN:
            return _ADDRESS.sub("", repr(value))
        if isinstance(value, float):
            return f"{type(value).__name__}:{repr(value) if self.exact else self._later(torch.tensor(value))}"
        if isinstance(value, weakref.ref):
            return "reference"  # whether it is dead is asked when results are gone
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
        if isinstance(value, Silent):
            return "silent"
        if isinstance(value, list | tuple | collections.deque):
            return f"{name}[{', '.join(self.text(v, depth) for v in value if not isinstance(v, Silent))}]"
        if isinstance(value, dict):
            items = ", ".join(f"{self.text(k, depth)}: {self.text(v, depth)}" for k, v in value.items())
            return f"{name}{{{items}}}"
        if isinstance(value, set | frozenset):
            members = sorted(_Canonical(self.exact).text(v, depth) for v in value)  # their order is that of addresses
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
        parts = [type(t).__name__, str(t.dtype), str(tuple(t.shape)), str(t.device)]
        if t.layout == torch.strided:
            # The stride of an axis with one element says nothing, and in a tensor without elements none does.
            told = [self.exact or (n > 1 and t.numel() > 0) for n in t.shape]
            parts.append(str([s if tell else "-" for tell, s in zip(told, t.stride(), strict=True)]))
            parts += ["neg"] * t.is_neg() + ["conj"] * t.is_conj()
            if t.device.type != "meta" and (self.exact or t.numel()):
                new = len(self.storages), t.storage_offset() if not self.exact else 0
                storage, first = self.storages.setdefault(t.untyped_storage().data_ptr(), new)
                parts.append(f"s{storage}{t.storage_offset() - first:+}")
        else:
            parts.append(str(t.layout))
        parts += ["grad"] * t.requires_grad + ["leaf"] * t.is_leaf + ["inference"] * t.is_inference()
        if t.is_leaf and t.requires_grad and t.grad is not None:
            parts.append(f"gradient {self.text(t.grad)}")
        if t.device.type != "meta":
            plain = t.detach() if t.layout == torch.strided else t.detach().to_dense()
            parts.append(str(plain.tolist()) if self.exact else self._later(plain))
        return " ".join(parts)

    def _later(self, t: torch.Tensor) -> str:
        self.values.append(t.detach().clone())
        return f"<{len(self.values)}>"


_TOLERANCES = {torch.float64: 1e-8, torch.complex128: 1e-8, torch.bfloat16: 4e-2, torch.float16: 8e-3}


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether numbers are the same within rounding, relative to the largest of the tensor."""
    if one.shape != other.shape:
        return False
    if not (one.dtype.is_floating_point or one.dtype.is_complex):
        return torch.equal(one, other)
    finite = one[one.isfinite()].abs()
    size = finite.max().item() if finite.numel() else 0.0
    bound = _TOLERANCES.get(one.dtype, 2e-4) * (1 + size)
    return torch.allclose(other, one, rtol=0, atol=bound, equal_nan=True)


def as_near(expected: torch.Tensor, found: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether numbers are as near to those of double precision as plain ones are: little is left of gradients that
    cancel but rounding, in either."""
    if not expected.dtype.is_floating_point or not expected.shape == found.shape == reference.shape:
        return False
    one, other, ref = expected.double(), found.double(), reference.double()
    if not torch.stack([one, other, ref]).isfinite().all() or not ref.numel():
        return False
    bound = _TOLERANCES.get(expected.dtype, 2e-4) * (1 + ref.abs().max())
    return bool((other - ref).abs().max() <= 1.1 * (one - ref).abs().max() + bound)


class Silent:
    """Objects that take no part in comparisons."""

    def __init__(self, function: Callable[..., object] | None = None) -> None:
        self.function = function

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)


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


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Everything that a call did which somebody could see: texts, and the numbers that are compared within rounding.

    told: what was raised and where, in full; for people, since words and places may differ.
    """

    texts: dict[str, str]
    values: list[torch.Tensor]
    told: str = ""


def observe(space: dict, function, arguments: tuple, exact: bool = True) -> Outcome:
    """Call a function and look at what it did."""
    printed, device = io.StringIO(), torch.get_default_device()
    result = error = None
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(*arguments)
        except TimedOut:
            raise
        except Exception as raised:
            error = raised
    trail = "" if error is None else "".join(traceback.format_exception(error, limit=-6))
    canonical = _Canonical(exact)
    text = canonical.text
    chain = []
    while error is not None and len(chain) < (3 if exact else 1):
        words = "" if isinstance(error, RecursionError) else str(error)  # they tell where the last of many calls was
        if not exact:
            told = "firebrick" in words.lower() or type(error).__name__ == "BackendError"
            words = words.partition("\n")[0] if told else ""
        chain.append(f"{type(error).__name__}: {_RESUMED.sub('', _ADDRESS.sub('', words))}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    driven = "drive" in space
    names = sorted(name for name in space if name.isupper()) if driven else GLOBALS
    seen = {
        "error": " <- ".join(chain),
        "printed": _ADDRESS.sub("", printed.getvalue()),
        "result": text(result),
        "arguments": "" if driven else text(list(arguments)),
        "globals": text({name: space.get(name) for name in names}),
        "classes": text([getattr(space.get("Box"), name, None) for name in ("scale", "made")]),
        "random": _states(space),
        "state": f"grad {torch.is_grad_enabled()} inference {torch.is_inference_mode_enabled()} autocast {torch.is_autocast_enabled('cpu')} dtype {torch.get_default_dtype()} device {torch.get_default_device()} exception {sys.exc_info()[0]}",
    }
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None if device.type == "cpu" else device)
    while forward_ad._current_level >= 0:
        forward_ad.exit_dual_level()
    values = canonical.values
    if space.get("WATCHED"):
        del result, error, canonical, text
        gc.collect()
        seen["dead"] = str([reference() is None for reference in space["WATCHED"]])
    return Outcome(seen, values, trail)


def load(
    text: str,
    name: str,
    compile_: Callable[..., object] = lambda f, **_: f,
    block: Callable[[], object] = contextlib.nullcontext,
) -> dict:
    """Execute a program's text in a namespace of its own.

    `COMPILE` there is what compiles, or leaves as it is: for programs that compile more than `main`; `BLOCK` is
    `compiled_backward`, or nothing.
    """
    module = sys.modules[name] = types.ModuleType(name)  # dataclasses ask for it
    torch.manual_seed(0)
    space = module.__dict__
    space["COMPILE"], space["BLOCK"] = Silent(compile_), Silent(block)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, f"<{name}>", "exec"), space)
    return space


def compare(text: str, calls: int = 4, backend: str = "eager", strict: bool | None = None) -> Difference | None:
    """The first difference between plain and compiled, over several calls with other arguments; None if there is none.

    Args:
        text: the program.
        calls: how often it is called.
        backend: what compiles it, if it has no `BACKEND` of its own.
        strict: whether what can't be compiled raises; what the environment says if left out.

    Raises:
        TimedOut: a call takes too long.
        Exception: the program itself can't be loaded.
    """
    named = re.search(r"^BACKEND = ['\"](\w+)['\"]", text, re.MULTILINE)
    backend = named.group(1) if named else backend
    options = None if strict is None or backend != "firebrick" else {"strict": strict}
    compile_ = functools.partial(firebrick.compile, backend=backend, options=options)
    block = functools.partial(firebrick.compiled_backward, backend=backend, options=options)
    plain_space, space = load(text, "program"), load(text, "program", compile_, block)
    plain = plain_space["main"]
    compiled = compile_(space["main"])
    exact = backend == "eager"
    for call in range(calls):
        outcomes = []
        for where, function in ((plain_space, plain), (space, compiled)):
            if "drive" in where:
                function, arguments = where["drive"], (function, call)
            else:
                *arguments, (_, n, t) = inputs(call)
                arguments.append(where["Loud" if call % 2 else "Box"](n, t) if "Box" in where else None)
            with time_limit(SECONDS):
                torch.manual_seed(call)
                random.seed(call)
                outcomes.append(observe(where, function, tuple(arguments), exact))
        difference = _difference(*outcomes, call)
        if "When use_reentrant=True" in outcomes[0].told:
            return None  # such checkpoints are compiled as others, which have the gradients that eager mode refuses
        if difference is not None and difference.kind in ("value", "globals", "result") and not exact:
            if outcomes[0].texts["error"]:
                return None  # which gradients an engine had accumulated before an error is its own matter
            difference = _difference(*outcomes, call, wide(text, call))
        if difference is not None:
            return difference
        if not exact and any(_far(value) for value in outcomes[0].values):
            return None
    return None


def _far(t: torch.Tensor) -> bool:
    """Whether a training has left all bounds: a rounding in one call is then anything in the next."""
    return (t.dtype.is_floating_point or t.dtype.is_complex) and bool((t.abs() > 1e3).any())


def wide(text: str, call: int) -> list[torch.Tensor]:
    """The numbers of a call in double precision; none where the program does something else then."""
    space = load(text, "wide")
    for name, value in [*space.items()]:
        if isinstance(value, torch.nn.Module):
            value.double()
        elif isinstance(value, torch.Tensor):
            space[name] = _doubled(value)
    if "given" in space:
        given = space["given"]
        space["given"] = Silent(lambda *args, **kwargs: _doubled(given(*args, **kwargs)))
    values: list[torch.Tensor] = []
    for k in range(call + 1):
        arguments = [_doubled(a) if isinstance(a, torch.Tensor) else a for a in inputs(k)]
        torch.set_default_dtype(torch.float64)
        with time_limit(SECONDS):
            torch.manual_seed(k)
            random.seed(k)
            if "drive" in space:
                outcome = observe(space, space["drive"], (space["main"], k), exact=False)
            else:
                *arguments, (_, n, t) = arguments
                box = space["Loud" if k % 2 else "Box"](n, t) if "Box" in space else None
                outcome = observe(space, space["main"], (*arguments, box), exact=False)
        values = [] if outcome.texts["error"] else outcome.values
    return values


def _doubled(t: torch.Tensor) -> torch.Tensor:
    return t.detach().double().requires_grad_(t.requires_grad) if t.dtype == torch.float32 else t


def _difference(
    wanted: Outcome, got: Outcome, call: int, reference: list[torch.Tensor] | None = None
) -> Difference | None:
    for key, expected in wanted.texts.items():
        found = got.texts[key]
        if expected != found:
            kind = key
            if key == "error":
                kind = f"error {found.partition(':')[0] or '-'} for {expected.partition(':')[0] or '-'}"
                if "firebrick" in found or "InternalError" in found:
                    kind = f"error {found.partition(':')[0]}"
                expected, found = (f"{text}\n{side.told}" for text, side in ((expected, wanted), (found, got)))
            return Difference(kind, call, expected, found)
    exact = reference if reference and len(reference) == len(wanted.values) else wanted.values
    for number, (expected, found, ref) in enumerate(zip(wanted.values, got.values, exact, strict=True), 1):
        if not (_close(expected, found) or as_near(expected, found, ref)):
            words = f"<{number}> in {wanted.texts['result']}: "
            return Difference("value", call, words + str(expected.tolist()), words + str(found.tolist()))
    return None
