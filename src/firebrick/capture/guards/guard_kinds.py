"""Guards: what must be true of a frame for a compiled entry to stand for it.

A guard is a row of data: a kind, a source and a payload. `KINDS` has one row a kind: its meaning, how it prints,
how a failure reads. `build_plan` turns guards into a `Plan`, which the frame hook evaluates natively; what Python
is here serves printing and explaining only.
"""

from __future__ import annotations

import itertools
import operator
import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from firebrick import _native
from firebrick.capture.guards.size_conditions import shape_holds, shape_leaves, shape_text, shape_value
from firebrick.capture.guards.sources import Global, Source, shown_key
from firebrick.capture.guards.torch_state import STATE_KINDS, state_text, state_value

if TYPE_CHECKING:
    from firebrick._native import Frame


class _Gone:
    """Stands for an object that died; one is like nothing else, and a plan that refers to it dies at once."""


class Ref:
    """An object that a guard knows by identity, without keeping it alive where that can be avoided."""

    __slots__ = ("_get", "address", "text")

    def __init__(self, value: Any, text: str = "") -> None:
        self.address, self.text = id(value), text or describe(value)
        self._get: Callable[[], Any]
        try:
            self._get = weakref.ref(value)
        except TypeError:
            self._get = lambda: value

    def get(self) -> Any:
        """The object; when it is gone, one that is nothing else."""
        target = self._get()
        return _Gone() if target is None and self.address != id(None) else target

    def __hash__(self) -> int:
        return self.address

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other.address == self.address and other._get() is self._get()

    def __repr__(self) -> str:
        return self.text


_DTYPE_NAMES = {
    getattr(torch, f"{kind}{bits}"): f"{kind[0]}{bits}"
    for kind, sizes in (("float", (16, 32, 64)), ("int", (8, 16, 32, 64)), ("uint", (8,)), ("complex", (64, 128)))
    for bits in sizes
}


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What is guarded of a tensor; a size or stride of None may be anything."""

    type: type
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    codes: tuple[int, int, int, int]
    """Torch's numbers of dtype, device type, device index and layout."""
    keys: int

    @classmethod
    def of(cls, tensor: torch.Tensor, dynamic: Iterable[int] = ()) -> TensorMeta:
        """Read from a tensor; the sizes of the dimensions `dynamic` and the strides that follow from them are free."""
        dtype, device_type, device_index, layout, requires_grad, keys, sizes, strides = _native.tensor_meta(tensor)
        free = {d % max(len(sizes), 1) for d in dynamic}
        return cls(
            type(tensor),
            tensor.dtype,
            tensor.device,
            tensor.layout,
            bool(requires_grad),
            tuple(None if d in free else size for d, size in enumerate(sizes)),
            # a stride larger than that of a free dimension is a multiple of its size
            tuple(None if any(n >= strides[f] > 0 for f in free - {d}) else n for d, n in enumerate(strides)),
            (dtype, device_type, device_index, layout),
            keys,
        )

    def native(self) -> tuple[Any, ...]:
        """As the native check takes it."""
        return (self.type, *self.codes, int(self.requires_grad), self.keys, self.sizes, self.strides)

    def __str__(self) -> str:
        name = _DTYPE_NAMES.get(self.dtype, str(self.dtype).removeprefix("torch."))
        text = f"{name}[{', '.join('?' if size is None else str(size) for size in self.sizes)}] {self.device}"
        if self.layout is not torch.strided:
            text += f" {str(self.layout).removeprefix('torch.')}"
        elif not _is_contiguous(self.sizes, self.strides):
            text += f" strides [{', '.join('?' if stride is None else str(stride) for stride in self.strides)}]"
        if self.requires_grad:
            text += " grad"
        return text if self.type in (torch.Tensor, torch.nn.Parameter) else f"{self.type.__name__} {text}"


def _is_contiguous(sizes: tuple[int | None, ...], strides: tuple[int | None, ...]) -> bool:
    expected: int | None = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride is not None and expected is not None and stride != expected:
            return False
        expected = None if size is None or expected is None else expected * max(size, 1)
    return True


def describe(value: Any) -> str:
    """A short, stable name of an object: no addresses."""
    if isinstance(value, type) or (callable(value) and not hasattr(type(value), "__getattr__")):
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if isinstance(name, str):
            return name if module in (None, "builtins") else f"{module}.{name}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, torch.Tensor):
        return "a nested tensor" if value.is_nested else str(TensorMeta.of(value))
    if type(value) in (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    if type(value) in (tuple, list, dict, set, frozenset):
        return f"{type(value).__name__} of {len(value)}"
    return f"a {type(value).__qualname__}"


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """A fact of `source` that must hold; `KINDS[kind]` says which. Guards of torch's global state have no source."""

    kind: str
    source: Source | None = None
    payload: Any = None

    def __str__(self) -> str:
        show = KINDS[self.kind].show
        text = show.format(source=self.source, payload=self.payload) if isinstance(show, str) else show(self)
        return f"global {text}" if self.source is not None and isinstance(self.source.root(), Global) else text

    def same(self, other: Guard) -> bool:
        """Whether both say the same; 1, 1.0 and True are different constants."""
        if self.kind != other.kind or self.source != other.source or type(self.payload) is not type(other.payload):
            return False
        if isinstance(self.payload, (Ref, TensorMeta, Source)) or self.kind in GROUP_KINDS:
            return bool(self.payload == other.payload)
        return _native.same_constant(self.payload, other.payload)

    def sources(self) -> tuple[Source, ...]:
        """All sources that the guard looks at."""
        if self.kind == "SHAPE":
            return tuple(dict.fromkeys(leaf[1] for leaf in shape_leaves(self.payload)))
        if self.kind in GROUP_KINDS:
            return tuple(self.payload)
        others = (self.payload,) if self.kind == "SAME" else ()
        return others if self.source is None else (self.source, *others)

    def holds(self, frame: Frame) -> bool:
        """Evaluate in Python, for explanations; the hook evaluates natively."""
        try:
            if self.kind == "SHAPE":
                return shape_holds(self.payload, frame)
            if self.kind in GROUP_KINDS:
                return KINDS[self.kind].holds([source.evaluate(frame) for source in self.payload], None)
            if self.kind == "SAME":
                return self.sources()[0].evaluate(frame) is self.payload.evaluate(frame)
            return KINDS[self.kind].holds(None if self.source is None else self.source.evaluate(frame), self.payload)
        except Exception:  # noqa: BLE001  a property or __eq__ of the user's may raise anything; then the guard fails
            return False

    def explain(self, frame: Frame) -> str:
        """Say how a failing guard's value differs, in the user's terms."""
        if self.kind in GROUP_KINDS:
            return self._explain_group(frame)
        if self.source is None:
            return self._explained("", None)
        try:
            value = self.source.evaluate(frame)
        except (LookupError, AttributeError, TypeError):
            return f"{self.source} is gone"
        except Exception as error:  # noqa: BLE001  raised by code of the user's
            return f"{self.source} raises {type(error).__name__}"
        try:
            return self._explained(str(self.source), value)
        except Exception:  # noqa: BLE001  a value of another kind: no length, no keys ...
            return f"{self} was true, now {self.source} is {describe(value)}"

    def _explained(self, source: str, value: Any) -> str:
        explain = KINDS[self.kind].explain
        if isinstance(explain, str):
            return explain.format(source=source, value=value, payload=self.payload)
        return explain(source, value, self.payload)

    def remedy(self) -> str:
        """What a user can do if the guard fails again and again."""
        names = " and ".join(str(source) for source in self.sources())
        return KINDS[self.kind].remedy.format(source=names or KINDS[self.kind].name)

    def _explain_group(self, frame: Frame) -> str:
        try:
            values = [source.evaluate(frame) for source in self.sources()]
        except (LookupError, AttributeError, TypeError):
            return f"{' or '.join(str(source) for source in self.sources())} is gone"
        if self.kind == "SHAPE":
            now = dict.fromkeys(
                f"{shape_text(leaf)} is {shape_value(leaf, frame)}" for leaf in shape_leaves(self.payload)
            )
            return f"{shape_text(self.payload)} was true, now {', '.join(now)}"
        related = operator.is_ if self.kind == "DISTINCT" else _overlapping
        for i, j in itertools.combinations(range(len(values)), 2):
            if related(values[i], values[j]):
                return self._explained(str(self.payload[i]), str(self.payload[j]))
        return str(self)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of guard."""

    name: str
    doc: str
    holds: Callable[[Any, Any], bool]
    show: str | Callable[[Guard], str]
    explain: str | Callable[[str, Any, Any], str]
    stable: Callable[[Any], bool] = lambda payload: False
    """Whether the same object passes for good."""
    native: Callable[[Any], Any] = lambda payload: payload
    """The payload as the native check takes it."""
    check: str = ""
    """Native check; empty where it has the kind's name."""
    remedy: str = "keep {source} as it is from call to call"
    """What a user can do about a guard that fails again and again."""


# ---- helpers of the table ---------------------------------------------------


_MOST_KEYS = 8
"""Keys of a dict that are shown; the rest are counted."""


def _keys(keys: Iterable[Any]) -> str:
    shown = [shown_key(key) for key in keys]
    more = [f"... {len(shown)} in all"] if len(shown) > _MOST_KEYS else []
    return f"[{', '.join(shown[:_MOST_KEYS] + more)}]"


def _was(source: str, was: object, now: object) -> str:
    return f"{source} was {was}, now {now}"


def _explain_tensor(source: str, value: Any, meta: TensorMeta) -> str:
    if not isinstance(value, torch.Tensor) or type(value) is not meta.type:
        return _was(f"type({source})", describe(meta.type), describe(type(value)))
    if value.is_nested:
        return _was(source, meta, describe(value))
    now = TensorMeta.of(value)
    for name in ("dtype", "device", "layout", "requires_grad"):
        if getattr(now, name) != getattr(meta, name):
            return _was(f"{source}.{name}", getattr(meta, name), getattr(now, name))
    if len(now.sizes) != len(meta.sizes):
        return _was(f"{source}.dim()", len(meta.sizes), len(now.sizes))
    for what, guarded, current in (("shape", meta.sizes, now.sizes), ("stride()", meta.strides, now.strides)):
        for dim, (want, size) in enumerate(zip(guarded, current, strict=True)):
            if want is not None and want != size:
                return _was(f"{source}.{what}[{dim}]", want, size)
    before, after = (torch._C.DispatchKeySet.from_raw_repr(keys) for keys in (meta.keys, now.keys))
    changed = str(before - after), str(after - before)  # type: ignore[operator]
    return _was(f"dispatch keys of {source}", *(text.removeprefix("DispatchKeySet") for text in changed))


def _tensor_holds(value: Any, meta: TensorMeta) -> bool:
    if not isinstance(value, torch.Tensor) or type(value) is not meta.type or value.is_nested:
        return False
    now = TensorMeta.of(value)
    same = (now.codes, now.keys, now.requires_grad) == (meta.codes, meta.keys, meta.requires_grad)
    return same and _fits(meta.sizes, now.sizes) and _fits(meta.strides, now.strides)


def _fits(guarded: tuple[int | None, ...], sizes: tuple[int | None, ...]) -> bool:
    return len(guarded) == len(sizes) and all(w is None or w == f for w, f in zip(guarded, sizes, strict=True))


def _always(*_: Any) -> bool:
    return True


def _overlapping(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.numel() == 0 or b.numel() == 0 or not a.layout == b.layout == torch.strided:
        return False
    (a_start, a_end, _), (b_start, b_end, _) = _native.tensor_span(a), _native.tensor_span(b)
    return bool(a_start < b_end and b_start < a_end)


def _no_pair(related: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda values, payload: not any(related(a, b) for a, b in itertools.combinations(values, 2))


_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: `x.__class__ = ...` is impossible


def _state_kind(name: str) -> Kind:
    label, doc = STATE_KINDS[name]
    return Kind(
        name,
        doc,
        holds=lambda value, payload: state_value(name) == payload,
        show=lambda guard: f"{label} {state_text(name, guard.payload)}",
        explain=lambda source, value, payload: _was(
            label, state_text(name, payload), state_text(name, state_value(name))
        ),
        remedy=f"call it in one mode: {label} is a state of torch",
    )


_ROWS = (
    Kind(
        "TYPE", "The exact class of the value.", lambda value, ref: type(value) is ref.get(),
        "type({source}) is {payload}", lambda source, value, ref: _was(f"type({source})", ref, describe(type(value))),
        stable=lambda ref: isinstance(cls := ref.get(), type) and bool(cls.__flags__ & _IMMUTABLE), native=Ref.get,
        remedy="pass values of one class as {source}",
    ),
    Kind(
        "ID", "The very same object. Held weakly where its class allows: when it dies, so does the entry.",
        lambda value, ref: value is ref.get(), "{source} is {payload}",
        lambda source, value, ref: _was(source, ref, "another " * (describe(value) == ref.text) + describe(value)),
        stable=_always, native=Ref.get, check="IS", remedy="pass the same object as {source} on each call",
    ),
    Kind(
        "EQUALS", "A constant of the same exact type and value; NaN equals itself, 0.0 is not -0.0.",
        _native.same_constant, "{source} == {payload!r}",
        lambda source, value, payload: _was(source, describe(payload), describe(value)),
        stable=_always, remedy="pass {source} as a tensor (torch.tensor), or keep it the same",
    ),
    Kind(
        "NOT_NONE", "Any object but None.", lambda value, payload: value is not None, "{source} is not None",
        "{source} was not None, now None", stable=_always, native=lambda payload: None, check="IS_NOT",
    ),
    Kind(
        "LEN", "The length of a container.", lambda value, payload: len(value) == payload,
        "len({source}) == {payload}", lambda source, value, payload: _was(f"len({source})", payload, len(value)),
        check="LENGTH", remedy="keep the length of {source} the same",
    ),
    Kind(
        "DICT_KEYS", "The keys of a dict, in order.",
        lambda value, payload: len(value) == len(payload) and all(map(_native.same_constant, value, payload)),
        lambda guard: f"list({guard.source}) == {_keys(guard.payload)}",
        lambda source, value, payload: _was(f"list({source})", _keys(payload), _keys(value)),
        check="KEYS", remedy="keep the keys of {source} and their order the same",
    ),
    Kind(
        "HAS_KEY", "A dict or set contains a constant.", lambda value, payload: payload in value,
        "{payload!r} in {source}", "{payload!r} was in {source}, now it is not",
    ),
    Kind(
        "LACKS_KEY", "A dict or set does not contain a constant.", lambda value, payload: payload not in value,
        "{payload!r} not in {source}", "{payload!r} was not in {source}, now it is",
    ),
    Kind(
        "HAS_ATTR", "`hasattr` is true. A class's own __getattr__ is run.", hasattr,
        "{source} has {payload}", "{source} had an attribute {payload}, now it has not", check="HAS_ATTRIBUTE",
    ),
    Kind(
        "LACKS_ATTR", "`hasattr` is false. A class's own __getattr__ is run.",
        lambda value, payload: not hasattr(value, payload),
        "{source} has no {payload}", "{source} had no attribute {payload}, now it has", check="LACKS_ATTRIBUTE",
    ),
    Kind(
        "TENSOR", "Exact class, dtype, device, layout, sizes, strides, requires_grad and dispatch keys of a tensor.",
        _tensor_holds, "{source}: {payload}", _explain_tensor, native=TensorMeta.native,
        remedy="give {source} few shapes and one dtype: pad it, or convert it before the call",
    ),
    Kind(
        "REQUIRES_GRAD", "Whether a tensor requires a gradient; part of TENSOR, for those guarded by identity.",
        lambda value, payload: isinstance(value, torch.Tensor) and value.requires_grad is payload,
        "{source}.requires_grad == {payload}", "{source}.requires_grad was {payload}, now {value.requires_grad}",
    ),
    Kind(
        "CODE", "A Python function with this code, whichever function object it is.",
        lambda value, ref: getattr(value, "__code__", None) is ref.get(),
        "{source}.__code__ is {payload}", "{source}.__code__ was {payload}, now another",
        native=Ref.get, remedy="make the function {source} once, outside of the loop",
    ),
    Kind(
        "LACKS_ENTRY", "Neither a class nor its bases hold anything under a name.",
        lambda value, payload: not any(payload in owner.__dict__ for owner in value.__mro__),
        "{source} has no {payload}", "{source} had no {payload}, now it has",
    ),
    Kind("PRESENT", "The source can be evaluated.", _always, "{source} exists", "{source} exists", stable=_always),
    Kind(
        "SAME", "Two sources are the same object; the payload is the other source.", _always,  # see Guard.holds
        "{source} is {payload}", "{source} was {payload}, now they differ",
    ),
    Kind(
        "DISTINCT", "No two of the sources are the same object; the payload is the sources.", _no_pair(operator.is_),
        lambda guard: f"{', '.join(map(str, guard.payload))} are distinct",
        "{source} and {value} were two objects, now they are one",
        remedy="pass either one object or several, always the same way, as {source}",
    ),
    Kind(
        "NO_OVERLAP", "No two of the tensors share memory, from first to last element; the payload is the sources.",
        _no_pair(_overlapping), lambda guard: f"{', '.join(map(str, guard.payload))} share no memory",
        "{source} and {value} shared no memory, now they do",
    ),
    Kind(
        "SHAPE", "A condition on sizes, strides and integers; the payload is an expression of `capture.shapes`.",
        _always, lambda guard: shape_text(guard.payload), lambda source, value, payload: shape_text(payload),
        remedy="give {source} few shapes: pad them before the call",
    ),
    *map(_state_kind, STATE_KINDS),
)  # fmt: skip

KINDS: dict[str, Kind] = {row.name: row for row in _ROWS}
"""Every kind of guard by name."""


GROUP_KINDS = frozenset(_native.GROUPS)
"""Kinds without a source of their own, whose payload holds several."""


# ---- making guards ------------------------------------------------------------


def id_guard(source: Source, value: Any, kind: str = "ID") -> Guard:
    """A guard of a kind whose payload is an object by identity (`ID`, `TYPE` with a class, `CODE` with a code)."""
    return Guard(kind, source, Ref(value))


def state_guard(kind: str) -> Guard:
    """A guard on a kind of torch's global state as it is now."""
    return Guard(kind, None, state_value(kind))


def tensor_guard(source: Source, tensor: torch.Tensor, dynamic: Iterable[int] = ()) -> Guard:
    """A guard on a tensor's metadata; the dimensions `dynamic` may have any size."""
    return Guard("TENSOR", source, TensorMeta.of(tensor, dynamic))


def _use_tensor_words() -> bool:
    """Let the native check compare words of TensorImpl where they are found and tell tensors apart."""
    shape, strides = (3, 5, 7), (70, 14, 2)
    with torch.inference_mode(False):
        plain = torch.empty_strided(shape, strides, dtype=torch.float32, device="cpu")
        if not _native.use_tensor_words(plain, len(shape), plain.numel()):
            return False
        others = [
            plain.to(torch.float64), plain.to(torch.int32), plain.to(torch.bool),
            torch.empty_strided(shape, strides, dtype=torch.float32, device="meta"), torch._neg_view(plain),
        ]  # fmt: skip
        with torch.inference_mode():
            others.append(torch.empty_strided(shape, strides, dtype=torch.float32, device="cpu"))
    description = _native.tensor_description(plain)
    apart = all(_native.tensor_description(other) != description for other in others)
    if not apart or _native.tensor_description(plain[1:]) != description:
        _native.forget_tensor_words()
        return False
    return True


# What lies in memory around a tensor may look like what is searched for, once in a thousand times.
USES_TENSOR_WORDS = any(_use_tensor_words() for _ in range(4))
"""Whether tensors are compared by the words of their TensorImpl first, or by torch's C ABI alone."""
