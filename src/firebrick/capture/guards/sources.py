"""Sources: where a value of the captured program came from, as data.

A source prints as the user's Python (`self.layers[3].weight`), can be evaluated on a frame that has not
started, and says how bytecode loads it. Guards are tests of sources; `capture/guards/guard_kinds.py` turns both into a
native plan.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, dataclass_transform

import numpy as np
import torch

if TYPE_CHECKING:
    from firebrick._native import Frame

Step: TypeAlias = tuple[Literal["fast", "cell", "global", "const", "attr", "item", "apply"], Any]
"""One step of loading a value: where to start (`fast`, `cell`, `global` with a name, `const` with an object),
then what to do with the top of the stack (`attr` with a name, `item` with a key, `apply` with a function of one
argument). `cell` is the content of a free variable's cell."""


@dataclass_transform(frozen_default=True, eq_default=False)
class Source:
    """Base of all sources, which are dataclasses: frozen, hashable in constant time, compared by value."""

    _hash: int
    _names: ClassVar[tuple[str, ...]] = ()
    shown: ClassVar[str] = "{0.base}.{0.name}"
    """Its text."""
    applied: ClassVar[Any] = None
    """What is called with the value of the base."""
    base: Source | None

    def __init_subclass__(cls) -> None:
        cls._names = tuple(field.name for field in fields(dataclass(frozen=True, eq=False)(cls)))  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((type(self).__name__, *map(_key, self._parts()))))

    def _parts(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self._names])

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or self._hash != other._hash:
            return False
        return all(a is b or _key(a) == _key(b) for a, b in zip(self._parts(), other._parts(), strict=True))

    def __str__(self) -> str:
        return self.shown.format(self)

    def evaluate(self, frame: Frame) -> Any:
        """The value for a frame.

        Raises:
            LookupError: there is no such item, variable or argument.
            AttributeError: there is no such attribute.
        """
        return self._evaluate(frame)

    def steps(self) -> tuple[Step, ...]:
        """How bytecode loads the value."""
        base = getattr(self, "base", None)
        return self._last_steps() if base is None else (*base.steps(), *self._last_steps())

    def _last_steps(self) -> tuple[Step, ...]:
        return (("attr", self.name) if self.applied is None else ("apply", self.applied),)  # type: ignore[attr-defined]

    def follow(self, value: Any) -> Any:
        """The value, given that of the base."""
        return self._follow(value)

    def rebased(self, base: Source) -> Source:
        """The same step from another base."""
        return type(self)(base, *self._parts()[1:])  # type: ignore[call-arg]

    def _evaluate(self, frame: Frame) -> Any:
        assert self.base is not None
        return self._follow(self.base.evaluate(frame))

    def _follow(self, value: Any) -> Any:
        for kind, what in self._last_steps():
            value = getattr(value, what) if kind == "attr" else value[what] if kind == "item" else what(value)
        return value

    def root(self) -> Source:
        """The source at the start of the chain of bases."""
        source: Source = self
        while (base := getattr(source, "base", None)) is not None:
            source = base
        return source


def shown_key(key: Any) -> str:
    """A key in the text of a source: short and stable, also where the key's own text is not."""
    return f"<{type(key).__name__} {list(key.shape)}>" if isinstance(key, torch.Tensor) else repr(key)


def _key(part: Any) -> Any:
    # 1, 1.0 and True are different keys; what can't be hashed counts by identity.
    if isinstance(part, (Source, Namespace)):
        return part
    if type(part) is str:
        return (str, part)
    try:
        hash(part)
    except TypeError:
        return (type(part), id(part))
    return (type(part), part)


class Namespace:
    """The globals of a function that was inlined, by name of its module; compared by identity."""

    __slots__ = ("name", "variables")

    def __init__(self, name: str, variables: dict[str, Any]) -> None:
        self.name, self.variables = name, variables

    def __hash__(self) -> int:
        return id(self.variables)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and other.variables is self.variables

    def __repr__(self) -> str:
        return f"Namespace({self.name!r})"


def plain_tensor(tensor: Any) -> Any:
    """A tensor on the memory of one of a derived class; None for all else."""
    if not isinstance(tensor, torch.Tensor):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def tensor_of(array: Any) -> torch.Tensor | None:
    """A tensor on the memory of an array; None where it would not be like the array, or torch would warn."""
    if type(array) is not np.ndarray or not array.flags.writeable or min(array.strides, default=0) < 0:
        return None
    try:
        return torch.from_numpy(array)
    except TypeError:
        return None


def referent(reference: Source) -> Applied:
    """What a weak reference leads to."""
    return Applied(reference, weakref.ref.__call__, "{0.base}()")


# ---- where chains start ---------------------------------------------------


class Local(Source):
    """An argument of the frame; `*args` and `**kwargs` are arguments too."""

    name: str

    shown = "{0.name}"

    def _evaluate(self, frame: Frame) -> Any:
        return frame.locals[self.name]

    def _last_steps(self) -> tuple[Step, ...]:
        return (("fast", self.name),)


class Cell(Source):
    """The content of a free variable of the frame's function."""

    name: str

    shown = "{0.name}"

    def _evaluate(self, frame: Frame) -> Any:
        try:
            return frame.closure[frame.code.co_freevars.index(self.name)].cell_contents
        except (TypeError, ValueError):
            raise LookupError(f"the cell of {self.name} is empty") from None

    def _last_steps(self) -> tuple[Step, ...]:
        return (("cell", self.name),)


class Global(Source):
    """A global variable of the frame, or of an inlined function where a namespace is given."""

    name: str
    namespace: Namespace | None = None

    def __str__(self) -> str:
        return self.name if self.namespace is None else f"{self.namespace.name}.{self.name}"

    def _evaluate(self, frame: Frame) -> Any:
        variables = frame.globals if self.namespace is None else self.namespace.variables
        return variables[self.name]

    def _last_steps(self) -> tuple[Step, ...]:
        if self.namespace is None:
            return (("global", self.name),)
        return ("const", self.namespace.variables), ("item", self.name)


class Variables(Source):
    """The dict of a frame's globals, or of an inlined function's where a namespace is given."""

    namespace: Namespace | None = None

    def __str__(self) -> str:
        return "globals()" if self.namespace is None else f"vars({self.namespace.name})"

    def _evaluate(self, frame: Frame) -> Any:
        return frame.globals if self.namespace is None else self.namespace.variables

    def _last_steps(self) -> tuple[Step, ...]:
        if self.namespace is None:
            raise NotImplementedError("guards alone look at a frame's globals as a whole")
        return (("const", self.namespace.variables),)


class Builtin(Source):
    """A builtin that the frame reads by name; no global hides it."""

    name: str

    shown = "{0.name}"

    def _evaluate(self, frame: Frame) -> Any:
        if self.name in frame.globals:
            raise LookupError(f"a global hides the builtin {self.name}")
        return frame.builtins[self.name]

    def _last_steps(self) -> tuple[Step, ...]:
        return (("global", self.name),)


class Const(Source):
    """An object that the compiled code refers to itself, by identity; the plan keeps it alive."""

    value: Any
    text: str

    def _parts(self) -> tuple[Any, ...]:
        return (id(self.value),)

    shown = "{0.text}"

    def _evaluate(self, frame: Frame) -> Any:
        return self.value

    def _last_steps(self) -> tuple[Step, ...]:
        return (("const", self.value),)


# ---- what follows -----------------------------------------------------------


class Attr(Source):
    """`base.name` by the usual protocol; a property's code runs on every check, so prefer the sources below."""

    base: Source
    name: str


class InstanceDict(Source):
    """`base.__dict__`, the object's own dict."""

    base: Source

    name: ClassVar[str] = "__dict__"

    def _follow(self, value: Any) -> Any:
        return object.__getattribute__(value, "__dict__")


class InstanceAttr(Source):
    """An attribute that is in the object's own dict and that no data descriptor of its class overrides."""

    base: Source
    name: str

    def _follow(self, value: Any) -> Any:
        return object.__getattribute__(value, "__dict__")[self.name]


class ModuleItem(Source):
    """A parameter, buffer or submodule of an nn.Module; `table` is the dict that has it."""

    base: Source
    table: str
    name: str

    def __str__(self) -> str:
        return f"{self.base}[{self.name}]" if self.name.isdigit() else f"{self.base}.{self.name}"

    def _follow(self, value: Any) -> Any:
        return object.__getattribute__(value, "__dict__")[self.table][self.name]

    def _last_steps(self) -> tuple[Step, ...]:
        return (("attr", self.name),) if self.name.isidentifier() else (("attr", self.table), ("item", self.name))


class Item(Source):
    """`base[key]` of a tuple, list or dict, or by the usual protocol of another type."""

    base: Source
    key: Any

    def __str__(self) -> str:
        return f"{self.base}[{shown_key(self.key)}]"

    def _last_steps(self) -> tuple[Step, ...]:
        return (("item", self.key),)


class BuiltinItem(Source):
    """`kind.__getitem__(base, key)`: the item of a container or an instance of a subclass, whatever that overrides."""

    base: Source
    key: Any
    kind: Any = dict

    def __str__(self) -> str:
        return f"{self.base}[{shown_key(self.key)}]"

    @property
    def applied(self) -> Any:  # type: ignore[override]
        """The container's own `__getitem__` with the key."""
        return _Call(self.kind.__getitem__, self.key)


@dataclass(frozen=True, slots=True)
class _Call:
    function: Any
    key: Any

    def __call__(self, base: Any) -> Any:
        return self.function(base, self.key)


def _held_by_class(cls: type, name: str) -> Any:
    for owner in cls.__mro__:
        if name in owner.__dict__:
            return owner.__dict__[name]
    raise AttributeError(f"{cls.__name__} has no {name}")


class DictKey(Source):
    """The key at a place of a dict's order."""

    base: Source
    index: int

    shown = "list({0.base})[{0.index}]"

    def _follow(self, value: Any) -> Any:
        return list(dict.keys(value))[self.index]

    def _last_steps(self) -> tuple[Step, ...]:
        return ("apply", list), ("item", self.index)


class Applied(Source):
    """What a function gives for the base."""

    base: Source
    applied: Any  # type: ignore[misc]
    shown: str = "{0.base}"  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Pick:
    """The module at a place of a list, which a function of the number at the base gives; `text` says which."""

    modules: weakref.ref[torch.nn.Module]
    text: str
    place: Callable[[int], int] = field(compare=False)

    def __call__(self, number: int) -> Any:
        """The module."""
        return self.modules()[self.place(number)]  # type: ignore[index]


def is_picked(source: Source | None) -> bool:
    """Whether a number decides of which of several modules it is, or is a part."""
    while source is not None and not isinstance(getattr(source, "applied", None), Pick):
        source = getattr(source, "base", None)
    return source is not None


class TypeOf(Source):
    """`type(base)`."""

    base: Source

    shown = "type({0.base})"
    applied = staticmethod(type)


class ClassAttr(Source):
    """What a class and its bases hold under a name: the raw entry, descriptors not applied."""

    base: Source
    name: str

    @property
    def applied(self) -> Any:  # type: ignore[override]
        """The look through the bases."""
        return _Call(_held_by_class, self.name)


class CellContents(Source):
    """What a cell object holds."""

    base: Source

    name: ClassVar[str] = "cell_contents"

    def _follow(self, value: Any) -> Any:
        try:
            return value.cell_contents
        except ValueError:
            raise LookupError(f"{self} is empty") from None


class FunctionPart(Source):
    """`__code__`, `__defaults__`, `__kwdefaults__`, `__closure__` or `__globals__` of a Python function."""

    base: Source
    name: str
    kind: ClassVar[tuple[type, str]] = (types.FunctionType, "function")

    def _follow(self, value: Any) -> Any:
        if not isinstance(value, self.kind[0]):
            raise AttributeError(f"{self.base} is not a {self.kind[1]}")
        return getattr(value, self.name)


class MethodPart(FunctionPart):
    """`__self__` or `__func__` of a bound method."""

    kind = (types.MethodType, "bound method")
