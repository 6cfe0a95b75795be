"""The text form of loop programs; `loops.parse` reads it. The grammar is in docs/loop-ir.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from firebrick.errors import InternalError
from firebrick.ir.index.expr import INF, Expr, Var
from firebrick.ir.loops.program import (
    Axis,
    Buffer,
    Const,
    Enum,
    Extern,
    Index,
    Load,
    LoopProgram,
    Masked,
    Node,
    Op,
    Reduce,
    Ref,
    Scan,
    Store,
    Value,
    contiguous_strides,
)
from firebrick.ir.loops.values import children_of, values_of

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
    "ne": "!=", "and": "&", "or": "|", "xor": "^", "bitand": "&", "bitor": "|", "bitxor": "^",
}  # fmt: skip
"""Scalar function -> the sign that it is written with; the dtype of its arguments tells logic from bits."""

_DEEP = 12
"""Nesting at which a value gets a name of its own."""


def show(program: LoopProgram) -> str:
    """The program as text."""
    buffers = {b.name: b for b in program.buffers}
    lines = [f"loops {program.name}"]
    lines.extend(f"  size {v.name} in {v.lo}..{_limit(v.hi)}" for v in _sizes(program))
    lines.extend(_buffer_lines(program.buffers))
    for call in program.recipe.calls:
        lines.append(f"  recipe {_extern(call, buffers)}")
    for node in program.nodes:
        lines.extend(f"  {line}" for line in show_node(node, buffers).split("\n"))
    lines.append("  out  " + ", ".join(_argument(o, buffers) for o in program.outputs))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def show_node(node: Node, buffers: dict[str, Buffer] | None = None) -> str:
    """A node as text; `buffers` lets views of whole buffers print as their names."""
    comment = f"  # {node.origin}" if node.origin else ""
    if isinstance(node, Extern):
        return _extern(node, buffers or {}) + comment
    loops = ", ".join(_axis(a) for a in node.axes)
    head = f"{node.name} for {loops}" if loops else f"{node.name} once"
    return "\n".join([head + comment, *(f"  {line}" for line in _Body(node.stores).lines())])


# ---------------------------------------------------------------- declarations


def _sizes(program: LoopProgram) -> list[Var]:
    """The symbolic sizes that the program mentions."""
    variables: set[Var] = set()
    for b in program.buffers:
        for e in (*b.shape, *b.strides):
            variables |= e.vars()
    return sorted(variables, key=lambda v: v.name)


def _limit(n: int) -> str:
    return "inf" if n >= INF else str(n)


def _buffer_lines(buffers: Sequence[Buffer]) -> list[str]:
    lines: list[str] = []
    last = ""
    for b in buffers:
        text = f"{b.name}: {b.dtype}[{_layout(b.shape, b.strides)}]"
        if b.device != "cpu":
            text += f" on {b.device}"
        if b.kind == last and len(lines[-1]) + len(text) < 118:
            lines[-1] += f", {text}"
        else:
            lines.append(f"  {b.kind:<6} {text}")
        last = b.kind
    return lines


def _layout(shape: Sequence[Expr], strides: Sequence[Expr]) -> str:
    text = ", ".join(n.show() for n in shape)
    if tuple(strides) != contiguous_strides(shape):
        text += " | " + ", ".join(s.show() for s in strides)
    return text


def _axis(axis: Axis) -> str:
    return f"{axis.var.name} in {axis.size.show()}"


# ---------------------------------------------------------------- library calls


def _extern(node: Extern, buffers: dict[str, Buffer]) -> str:
    outs = ", ".join(o if o is not None else "_" for o in node.outs)
    parts = [_argument(a, buffers) for a in node.args]
    parts += [f"{k}={_argument(v, buffers)}" for k, v in node.kwargs]
    text = f"{node.name} extern {outs} = {node.op}({', '.join(parts)})"
    if node.into:
        text += " into"
    if node.writes:
        text += f" writes {', '.join(node.writes)}"
    return text if node.device == "cpu" else f"{text} on {node.device}"


def _argument(value: object, buffers: dict[str, Buffer]) -> str:
    match value:
        case Ref():
            return _ref(value, buffers)
        case Enum():
            return f"{value.kind}({value.value!r})"
        case Expr():
            return f"expr({value.show()})"
        case tuple():
            return f"[{', '.join(_argument(v, buffers) for v in value)}]"
        case None | bool() | int() | float() | str():
            return repr(value)
        case complex():
            return f"complex({value.real!r}, {value.imag!r})"
    raise InternalError(f"argument {value!r} of a library call")


def _ref(ref: Ref, buffers: dict[str, Buffer]) -> str:
    b = buffers.get(ref.buffer)
    whole = b is not None and (ref.shape, ref.strides, ref.offset.show(), ref.dtype) == (b.shape, b.strides, "0", None)
    if whole:
        return ref.buffer
    parts = [
        ref.buffer, f"[{', '.join(n.show() for n in ref.shape)}]", f"[{', '.join(s.show() for s in ref.strides)}]",
        ref.offset.show(),
    ]  # fmt: skip
    if ref.dtype is not None:
        parts.append(repr(ref.dtype))
    return f"view({', '.join(parts)})"


# ---------------------------------------------------------------- scalars


def _number(value: bool | int | float, dtype: str) -> str:
    """A number so that reading it as `dtype` gives it back."""
    if dtype == "f32" and isinstance(value, float) and math.isfinite(value):
        return str(np.float32(value))
    return repr(value)


class _Body:
    """Prints stores; values that are used twice, or are nested deep, get names."""

    def __init__(self, stores: Sequence[Store], values: Sequence[Value] = ()) -> None:
        self.stores, self.values = stores, values
        self.names: dict[Value, str] = {}
        self.order: list[Value] = []

    def lines(self) -> list[str]:
        """Definitions of names, then the stores."""
        roots = [v for s in self.stores for v in (s.value, *(b for _, b in s.binds))] + list(self.values)
        uses = Counter(roots)
        depth: dict[Value, int] = {}
        for v in values_of(*roots):
            below = children_of(v)
            uses.update(below)
            depth[v] = 1 + max((0 if c in self.names else depth[c] for c in below), default=0)
            if depth[v] > _DEEP:
                self.names[v] = ""
        lines = []
        named: dict[Value, str] = {}
        for v in values_of(*roots):
            if isinstance(v, (Const, Index)) or (uses[v] < 2 and v not in self.names):
                continue
            name = f"v{len(named)}"
            named[v] = name
        self.names = {}
        for v, name in named.items():
            lines.append(f"{name} = {self.text(v)}")
            self.names[v] = name
        for s in self.stores:
            text = self.text(s.value)
            if s.mode != "set":
                text = f"atomic_{s.mode}({text})"
            lines.append(f"{self._place(s.buffer, s.index, s.binds)} = {text}")
        lines.extend(self.text(v) for v in self.values)
        return lines

    def text(self, v: Value) -> str:
        """A value that is not a bare number."""
        name = self.names.get(v)
        if name is not None:
            return name
        match v:
            case Const():
                return f"{v.dtype}({_number(v.value, v.dtype)})"
            case Index():
                return f"{v.dtype}({v.expr.show()})"
            case Load():
                return self._place(v.buffer, v.index, v.binds)
            case Masked():
                return f"masked({self.text(v.cond)}, {self.text(v.body)}, {_number(v.other.value, v.other.dtype)})"
            case Reduce():
                loops = "".join(f" for {_axis(a)}" for a in v.axes)
                return f"{v.name}({self.text(v.body)}{loops})"
            case Scan():
                return f"running_{v.name}({self.text(v.body)}, {v.var.name})"
            case Op(name="to"):
                return f"to_{v.dtype}({self.text(v.args[0])})"
            case Op():
                return self._op(v)

    def _op(self, v: Op) -> str:
        first = 1 if v.name == "where" else 0
        bare = any(not isinstance(a, Const) for a in v.args[first:])
        if _is_infix(v):
            a, b = (self._operand(x) for x in v.args)
            return f"{a} {INFIX[v.name]} {b}"
        args = [
            _number(a.value, a.dtype) if bare and isinstance(a, Const) and k >= first else self.text(a)
            for k, a in enumerate(v.args)
        ]
        return f"{_FUNCTION.get(v.name, v.name)}({', '.join(args)})"

    def _operand(self, v: Value) -> str:
        if isinstance(v, Const):
            return _number(v.value, v.dtype)
        text = self.text(v)
        return f"({text})" if _is_infix(v) and v not in self.names else text

    def _place(self, buffer: str, index: Expr, binds: Sequence[tuple[Var, Value]]) -> str:
        parts = [index.show()]
        for var, value in binds:
            limit = var.bound.show() if var.bound is not None else _limit(var.hi + 1)
            parts.append(f"{var.name} := below({self.text(value)}, {limit})")
        return f"{buffer}[{', '.join(parts)}]"


def _is_infix(v: Value) -> bool:
    return isinstance(v, Op) and v.name in INFIX and any(not isinstance(a, Const) for a in v.args)


_FUNCTION = {"not": "not_", "and": "and_", "or": "or_"}
"""Functions whose names are words of Python."""
