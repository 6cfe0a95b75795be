"""The loop IR: frozen, hash-consed data with a closed vocabulary.

A `LoopProgram` is a list of nodes over buffers. A node is a loop nest (`Nest`) or a call of a library
kernel (`Extern`). Scalars inside a nest are a DAG of `Value`s. Indices are flat element offsets from the
start of a buffer's data, written in the index algebra of `firebrick.ir.index`.

Values are interned: building an equal value again gives the same object, so they are compared with `is`, and a
memo keyed by a value costs nothing. A value may be shared; walk it with a memo. `loops.build` makes values with
checks and simplification, and `loops.show` and `loops.parse` print and read programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from threading import Lock
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from firebrick.ir.index.expr import ONE, ZERO, Expr, Var

# ---------------------------------------------------------------- buffers


def device_type(device: str) -> str:
    """The kind of machine that a device is: "cuda" of "cuda:0"."""
    return device.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Storage that a program reads or writes.

    kind: "input" (argument, may be written back), "const" (parameter, buffer of a module or other
    captured tensor), "derived" (computed from constants by a `Recipe`), "temp", "output" (fresh, returned).
    shape, strides: in elements. dtype: short name of `loops.dtypes` (f32, f64, bf16, f16, i64, i32, i16, i8, u8, b8).
    """

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    kind: str
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Ref:
    """A strided view of a buffer, as library calls and outputs use it; offset in elements."""

    buffer: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr
    dtype: str | None = None  # set when the view reinterprets the bytes (view_dtype, view_as_real)


# ---------------------------------------------------------------- scalar values


class _Interned(type):
    """Makes equal values one object, so that `is` compares them and hashing takes no time however deep they are."""

    _known: ClassVar[WeakValueDictionary[tuple[Any, ...], Any]] = WeakValueDictionary()
    _lock: ClassVar[Any] = Lock()

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            names = [f.name for f in fields(cls)[len(args) :]]  # type: ignore[arg-type]
            args += tuple(kwargs.pop(name) for name in names if name in kwargs)
            if kwargs:
                raise TypeError(f"{cls.__name__} has no {', '.join(kwargs)} in this place")
        if len(args) < len(cls.__match_args__):  # type: ignore[attr-defined]
            args += ((),)  # the binds of a Load are the only default
        # Numbers that compare equal are different constants: 1, 1.0 and True, 0.0 and -0.0.
        key = (cls, args[0], type(args[1]), repr(args[1])) if cls.__name__ == "Const" else (cls, *args)
        interned = _Interned._known.get(key)
        if interned is None:
            with _Interned._lock:
                interned = _Interned._known.get(key)
                if interned is None:
                    interned = _Interned._known[key] = super().__call__(*args)
        return interned


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop: `var` runs over range(size)."""

    var: Var
    size: Expr


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Const(metaclass=_Interned):
    """A number of `dtype`. Two NaN are the same constant."""

    dtype: str
    value: bool | int | float


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Index(metaclass=_Interned):
    """The number that an index expression has, as a scalar of `dtype` (i64 or i32)."""

    dtype: str
    expr: Expr


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Load(metaclass=_Interned):
    """buffer[index]. `binds` gives the values of variables in `index` that come from data (indirect indexing).

    The values of `binds` are i64 and lie in the ranges of their variables: rules check or clamp them.
    """

    dtype: str
    buffer: str
    index: Expr
    binds: tuple[tuple[Var, Value], ...] = ()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Op(metaclass=_Interned):
    """A scalar function of `loops.ops.SCALAR_OPS` applied to values."""

    dtype: str
    name: str
    args: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Masked(metaclass=_Interned):
    """`body` where `cond` holds, else `other`; loads in `body` happen only where `cond` holds."""

    dtype: str
    cond: Value
    body: Value
    other: Const


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Reduce(metaclass=_Interned):
    """`body` folded over `axes` by a row of `loops.ops.REDUCTIONS` (sum, prod, logsumexp, max, min, any, all,
    argmax, argmin).

    max and min propagate NaN; argmax and argmin give the flat i64 position over `axes` of the first best element,
    where NaN is best of all.
    """

    dtype: str
    name: str
    axes: tuple[Axis, ...]
    body: Value


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Scan(metaclass=_Interned):
    """`body` folded over the iterations of the nest's loop `var` up to this one, in order, by a row of
    `loops.ops.SCANS`."""

    dtype: str
    name: str
    var: Var
    body: Value


Value = Const | Index | Load | Op | Masked | Reduce | Scan

# ---------------------------------------------------------------- nodes


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value, or an atomic update when `mode` is "add", "max" or "min"."""

    buffer: str
    index: Expr
    value: Value
    mode: str = "set"
    binds: tuple[tuple[Var, Value], ...] = ()


@dataclass(frozen=True, slots=True)
class Nest:
    """Independent iterations over `axes`, each doing all `stores`.

    origin: user's file:line. parts: numbers of the captured graph's nodes that it computes. Both are for people only.
    """

    name: str
    axes: tuple[Axis, ...]
    stores: tuple[Store, ...]
    origin: str = field(default="", compare=False)
    parts: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Extern:
    """A library call. `op` is "namespace::name.overload"; `args`/`kwargs` follow its schema.

    Arguments are Ref, None, bool, int, float, complex, str, Expr, a dtype, device, layout or memory format as
    `Enum("dtype", "f32")`, or tuples of these. `outs` names the buffers that receive the results, None for one that
    nobody uses.
    When `into` is True the op is an out-variant and writes `outs` in place; else it makes fresh tensors.
    `writes` names buffers among `args` that the call mutates. `device` is where it runs.
    """

    name: str
    op: str
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]
    outs: tuple[str | None, ...]
    into: bool = False
    writes: tuple[str, ...] = ()
    origin: str = field(default="", compare=False)
    parts: tuple[int, ...] = field(default=(), compare=False)
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Enum:
    """A torch enum argument by name: kind is dtype, device, layout or memory_format."""

    kind: str
    value: str


Node = Nest | Extern


@dataclass(frozen=True, slots=True)
class Recipe:
    """How derived constants are computed from constants: library calls, run at load and again when a source changes.

    calls: Externs over const and derived buffers, in order.
    """

    calls: tuple[Extern, ...] = ()


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """A whole graph. outputs: Ref (tensor, fresh or view of any buffer), int/float/bool/None (returned as is)."""

    name: str
    buffers: tuple[Buffer, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]  # tensor arguments in call order
    consts: tuple[str, ...]  # captured tensors, in the order that the caller binds them
    outputs: tuple[object, ...]
    recipe: Recipe = Recipe()


def contiguous_strides(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """Strides of a contiguous tensor, as PyTorch gives them."""
    strides: list[Expr] = []
    step: Expr = ONE
    for size in reversed(shape):
        strides.append(step)
        if size is not ZERO:
            step = step * size
    return tuple(reversed(strides))
