"""C++ text of scalar values, for one iteration or for the lanes of a vector.

Each distinct value becomes one C++ constant in the block where it is first needed. A value that doesn't depend on the
lane variable stays scalar and is spread over the lanes where it meets one that does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from firebrick.codegen.cpp_math import HALF_HARDWARE, INLINE
from firebrick.codegen.cpp_ops import HELPERS, ROWS, SLEEF
from firebrick.codegen.cpp_types import (
    FOLD_VECTOR,
    MASK,
    SCALAR,
    SIGNED,
    constant_text,
    index_text,
    lane_type,
    needs_division,
    vector_prelude,
)
from firebrick.errors import InternalError
from firebrick.loops.dtypes import DTYPES
from firebrick.loops.ir import Const, Index, Load, Masked, Op
from firebrick.loops.ops import SCALAR_OPS
from firebrick.symbolic.expr import ONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from firebrick.codegen.cpp_accs import AccState
    from firebrick.codegen.target import Target
    from firebrick.loops.ir import Value
    from firebrick.symbolic.expr import Expr, Var

__all__ = ["Lanes", "Local", "Replica", "Text", "Unit", "Values"]


@dataclass(frozen=True, slots=True)
class Text:
    """A C++ expression that may be repeated; varying: it is a vector, one lane an iteration."""

    code: str
    varying: bool


@dataclass(frozen=True, slots=True)
class Lanes:
    """The loop whose iterations are lanes. count: how many lanes are meant, None for all of them."""

    var: Var
    width: int
    count: str | None = None


@dataclass(frozen=True, slots=True)
class Local:
    """A name that a kernel made. scratch: it is an array; private: each lane has its own element."""

    code: str
    varying: bool
    scratch: bool = False
    private: bool = False


@dataclass(slots=True)
class Replica:
    """One of several vectors that a loop body does side by side, with names of its own.

    lanes, name: the lane variable and its C++ name here. suffix: what its other names end with.
    """

    lanes: Lanes | None
    name: str = ""
    suffix: str = ""
    locals: dict[str, Local] = field(default_factory=dict)
    accs: dict[str, AccState] = field(default_factory=dict)
    scopes: list[dict[Value, Text]] = field(default_factory=lambda: [{}])


@dataclass(slots=True)
class Unit:
    """What the kernels of one translation unit need from its prelude.

    exact: functions must have the bits of eager PyTorch's.
    """

    target: Target
    exact: bool = False
    vectors: dict[tuple[str, int], None] = field(default_factory=dict)
    helpers: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)

    def vector(self, lane: str, width: int) -> str:
        """Name of a vector type."""
        self.vectors[lane, width] = None
        return f"{lane}x{width}"

    def fold(self, op: str, combine: str, lane: str, width: int) -> str:
        """Name of a function that folds the lanes of a vector."""
        name = f"fb_{op}_{lane}x{width}"
        if name not in self.helpers:
            text = FOLD_VECTOR.format(
                s=SCALAR[lane], op=op, v=self.vector(lane, width), w=width, half=width // 2, combine=combine
            )
            self.helpers[name] = text
        return name

    def inline(self, name: str, width: int) -> str:
        """Name of a function of f32 lanes that the unit defines."""
        vector, ints = self.vector("f32", width), self.vector("i32", width)
        for k, text in enumerate(INLINE[name]):
            self.helpers.setdefault(f"{text[:40]}{k}{width}", text.format(v=vector, i=ints))
        return f"fb_{name}_{vector}"

    def library(self, name: str, lane: str, width: int, arity: int) -> str:
        """Name of a pointer to a function of SLEEF, bound when the unit is loaded."""
        vector = self.vector(lane, width)
        self.functions[name] = f"static {vector} (*{name})({', '.join([vector] * arity)});"
        return name

    def prelude(self) -> str:
        """Types, helpers and bound functions."""
        parts = [vector_prelude(lane, width) for lane, width in sorted(self.vectors)]
        parts += list(self.helpers.values())
        parts += [text + "\n" for text in self.functions.values()]
        return "".join(parts)

    def bindings(self) -> list[str]:
        """Names of the library functions."""
        return list(self.functions)


class Values:
    """Writes values of one kernel as C++ constants into `lines`."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.lines: list[str] = []
        self.turned: dict[Load, str] = {}
        self.reset()

    def reset(self) -> None:
        """Begin another function."""
        self.depth = 1
        self.names: dict[Var, str] = {}
        self.replicas = [Replica(None)]
        self._guard: Text | None = None
        self._count = 0
        self._use(self.replicas[0])

    # ------------------------------------------------------------ replicas

    def _use(self, replica: Replica) -> None:
        self.lanes = replica.lanes
        self.suffix = replica.suffix
        self.locals = replica.locals
        self.accs = replica.accs
        self._scopes = replica.scopes
        if replica.lanes is not None:
            self.names[replica.lanes.var] = replica.name

    def each_replica(self) -> Iterator[None]:
        """What is written during one step of the iteration belongs to one of the vectors done side by side."""
        for replica in self.replicas:
            self._use(replica)
            yield
        if len(self.replicas) > 1:
            self._use(self.replicas[0])

    def enter(self, replicas: list[Replica]) -> list[Replica]:
        """Write for these vectors from now on; returns what `leave` needs."""
        (base,) = outside = self.replicas
        for r in replicas:
            r.locals = dict(base.locals)
            r.accs = dict(base.accs)
            r.scopes = [*base.scopes, {}]
        self.replicas = replicas
        self._use(replicas[0])
        return outside

    def leave(self, outside: list[Replica]) -> None:
        """Back to before `enter`."""
        self.replicas = outside
        self._use(outside[0])

    # ------------------------------------------------------------ text

    def line(self, text: str) -> None:
        """Add a line at the current depth."""
        self.lines.append("  " * self.depth + text)

    def open(self, head: str) -> None:
        """Open a block; values made in it are forgotten at its end."""
        self.line(f"{head} {{")
        self.depth += 1
        for r in self.replicas:
            r.scopes.append({})

    def close(self) -> None:
        """Close the innermost block."""
        for r in self.replicas:
            r.scopes.pop()
        self.depth -= 1
        self.line("}")

    def fresh(self, letter: str = "x") -> str:
        """A new C++ name."""
        self._count += 1
        return f"{letter}{self._count}_"

    def type_of(self, dtype: str, varying: bool) -> str:
        """C++ type of a value."""
        if not varying:
            return SCALAR[dtype]
        assert self.lanes is not None
        return self.unit.vector(lane_type(dtype), self.lanes.width)

    def index(self, e: Expr, lane: int | str | None = None) -> str:
        """An index as C++; `lane` selects one lane of the lane variable."""
        if needs_division(e):
            self.unit.helpers["divide_int"] = HELPERS["divide_int"]
        names = self.names
        if lane is not None and self.lanes is not None:
            names = {**names, self.lanes.var: f"({names[self.lanes.var]} + {lane})"}
        return index_text(e, names)

    # ------------------------------------------------------------ values

    def value(self, v: Value) -> Text:
        """The C++ constant that holds a value."""
        for scope in reversed(self._scopes):
            found = scope.get(v)
            if found is not None:
                return found
        made = self._make(v)
        self._scopes[-1][v] = made
        return made

    def spread(self, text: Text, dtype: str) -> str:
        """The value as a vector."""
        if text.varying:
            return text.code
        vector = self.type_of(dtype, True)
        return f"{vector}_of(-(int){text.code})" if dtype == "b8" else f"{vector}_of({text.code})"

    def named(self, dtype: str, code: str) -> str:
        """A name for a vector expression, so that it can be repeated."""
        return code if code.isidentifier() else self._name(dtype, code, True).code

    def _name(self, dtype: str, code: str, varying: bool) -> Text:
        name = self.fresh()
        self.line(f"const {self.type_of(dtype, varying)} {name} = {code};")
        return Text(name, varying)

    def _make(self, v: Value) -> Text:
        if isinstance(v, Const):
            return Text(constant_text(v.value, v.dtype), False)
        if isinstance(v, Index):
            return self._index_value(v)
        if isinstance(v, Load):
            return self._load(v)
        if isinstance(v, Masked):
            return self._masked(v)
        if isinstance(v, Op):
            if v.name == "where":
                return self._where(v)
            return self._cast(v) if v.name == "to" else self._op(v)
        raise InternalError("a reduction was left in a kernel's values")

    def _index_value(self, v: Index) -> Text:
        lanes = self.lanes
        if lanes is None or lanes.var not in v.expr.vars():
            return Text(f"({SCALAR[v.dtype]})({self.index(v.expr)})", False)
        stride = v.expr.coeff(lanes.var)
        vector = self.type_of(v.dtype, True)
        if stride is None:
            listed = ", ".join(f"({SCALAR[v.dtype]})({self.index(v.expr, k)})" for k in range(lanes.width))
            return self._name(v.dtype, f"{vector}{{{listed}}}", True)
        listed = ", ".join(str(k) for k in range(lanes.width))
        base = f"{vector}_of({self.index(v.expr)})"
        step = "" if stride is ONE else f" * {vector}_of({self.index(stride)})"
        return self._name(v.dtype, f"{base} + {vector}{{{listed}}}{step}", True)

    # ------------------------------------------------------------ loads

    def _load(self, v: Load) -> Text:
        local = self.locals.get(v.buffer)
        if local is not None and not local.scratch:
            return Text(local.code, local.varying)
        base = local.code if local is not None else v.buffer
        bound = [(x, self.value(b)) for x, b in v.binds]
        lanes = self.lanes
        if local is not None and local.private:
            assert lanes is not None
            address = f"{base} + ({self.index(v.index)}) * {lanes.width}"
            return self._name(v.dtype, self._from_memory(v.dtype, address, None), True)
        varying = lanes is not None and (lanes.var in v.index.vars() or any(t.varying for _, t in bound))
        if not varying:
            return self._load_one(v, base, bound)
        return self._load_lanes(v, base, bound)

    def _load_one(self, v: Load, base: str, bound: list[tuple[Var, Text]]) -> Text:
        for x, t in bound:
            self.names[x] = t.code
        code = f"{base}[{self.index(v.index)}]"
        return self._name(v.dtype, f"{code} != 0" if v.dtype == "b8" else code, False)

    def _load_lanes(self, v: Load, base: str, bound: list[tuple[Var, Text]]) -> Text:
        lanes = self.lanes
        assert lanes is not None
        for x, t in bound:
            self.names[x] = t.code
        gathered = any(t.varying for _, t in bound)
        stride = None if gathered else v.index.coeff(lanes.var)
        if v in self.turned:
            return self._name(v.dtype, self._lanes_of_memory(v.dtype, self.turned[v]), True)
        if stride is ONE and self._guard is None:
            address = f"{base} + {self.index(v.index)}"
            return self._name(v.dtype, self._from_memory(v.dtype, address, lanes.count), True)
        stored = self.unit.vector("u8" if v.dtype == "b8" else lane_type(v.dtype), lanes.width)
        items = []
        for k in range(lanes.width):
            for x, t in bound:
                self.names[x] = f"{t.code}[{k}]" if t.varying else t.code
            item = f"{base}[{self.index(v.index, k)}]"
            if self._guard is not None and self._guard.varying:
                item = f"{self._guard.code}[{k}] ? {item} : 0"
            if lanes.count is not None:
                if not lanes.count.isdigit():
                    item = f"{k} < {lanes.count} ? {item} : 0"
                elif k >= int(lanes.count):
                    item = "0"
            items.append(item)
        scalar = "uint8_t" if v.dtype == "b8" else SCALAR[v.dtype]
        listed = ", ".join(f"({scalar})({i})" if "?" in i else i for i in items)
        code = f"{stored}{{{listed}}}"
        if stride is ONE and self._guard is not None and lanes.count is None:
            address = f"{base} + {self.index(v.index)}"
            code = f"{self._every(self._guard.code)} ? ({stored})*(const {stored}u*)({address}) : {code}"
        if v.dtype == "b8":
            code = f"__builtin_convertvector({code}, {self.type_of('b8', True)}) != 0"
        return self._name(v.dtype, code, True)

    def _from_memory(self, dtype: str, address: str, count: str | None) -> str:
        assert self.lanes is not None
        stored = self.unit.vector("u8" if dtype == "b8" else lane_type(dtype), self.lanes.width)
        code = f"*(const {stored}u*)({address})" if count is None else f"{stored}_load({address}, {count})"
        return self._lanes_of_memory(dtype, f"({stored}){code}" if dtype == "b8" else code)

    def _lanes_of_memory(self, dtype: str, code: str) -> str:
        return f"__builtin_convertvector({code}, {self.type_of('b8', True)}) != 0" if dtype == "b8" else code

    def _every(self, mask: str) -> str:
        """Whether all lanes of a mask hold."""
        assert self.lanes is not None
        return f"{self.unit.fold('every', 'a & b', MASK, self.lanes.width)}({mask})"

    def some(self, mask: str) -> str:
        """Whether any lane of a mask holds."""
        assert self.lanes is not None
        return f"{self.unit.fold('some', 'a | b', MASK, self.lanes.width)}({mask})"

    # ------------------------------------------------------------ functions

    def _op(self, v: Op) -> Text:
        args = [self.value(a) for a in v.args]
        return self.apply(v.name, [a.dtype for a in v.args][-1], args)

    def apply(self, name: str, dtype: str, args: list[Text]) -> Text:
        """A scalar function of values of `dtype`."""
        varying = any(a.varying for a in args)
        result = "b8" if SCALAR_OPS[name].result == "bool" else dtype
        code = self.op_text(name, dtype, [self.spread(a, dtype) if varying else a.code for a in args], varying)
        if result != dtype and varying and DTYPES[lane_type(dtype)].nbytes != 4:
            code = f"__builtin_convertvector({code}, {self.type_of('b8', True)})"
        return self._name(result, code, varying)

    def op_text(self, name: str, dtype: str, codes: list[str], varying: bool) -> str:
        """The expression of a scalar function; comparisons of lanes stay in the width of their arguments."""
        row = ROWS[DTYPES[dtype].kind].get(name)
        if row is None:
            raise InternalError(f"no C++ for {name} of {dtype}")
        if row.helper:
            self.unit.helpers[row.helper] = HELPERS[row.helper]
        if not varying:
            code = self._fill(row.scalar, dtype, codes, False)
            # C++ computes narrow integers as int.
            return f"({SCALAR[dtype]})({code})" if DTYPES[dtype].nbytes < 4 and dtype == lane_type(dtype) else code
        if name in SLEEF or name == "sigmoid":
            found = self._library(name, dtype, codes)
            if found:
                return found
        if row.vector:
            return self._fill(row.vector, dtype, codes, True)
        assert self.lanes is not None
        vector = self.type_of(dtype, True)
        items = [self._fill(row.scalar, dtype, [f"{c}[{k}]" for c in codes], False) for k in range(self.lanes.width)]
        return f"{vector}{{{', '.join(f'({SCALAR[lane_type(dtype)]})({i})' for i in items)}}}"

    def _fill(self, text: str, dtype: str, codes: list[str], varying: bool) -> str:
        lane = lane_type(dtype)
        row = DTYPES[lane]
        signed = SIGNED[row.nbytes]
        fields = dict(zip("abc", codes, strict=False))
        return text.format(
            t=self.type_of(dtype, varying),
            i=self.type_of(signed, varying),
            f="f" if dtype == "f32" else "",
            bits=8 * row.nbytes,
            low="(int32_t)0x80000000" if row.nbytes == 4 else "INT64_MIN",
            **fields,
        )

    def _library(self, name: str, dtype: str, codes: list[str]) -> str:
        """A call of SLEEF; empty if it has no function of this width."""
        assert self.lanes is not None
        width = self.lanes.width
        nbytes = DTYPES[dtype].nbytes * width
        if nbytes not in (16, 32, 64) or nbytes > self.unit.target.vector_bytes:
            return ""
        if name in INLINE and dtype == "f32" and not self.unit.exact:
            return f"{self.unit.inline(name, width)}({codes[0]})"
        kind = "f" if dtype == "f32" else "d"
        if name == "sigmoid":
            inner = self._library("exp", dtype, [f"-{codes[0]}"])
            return inner and f"1 / (1 + {inner})"
        function = "Sleef_" + SLEEF[name].format(f"{kind}{width}")
        return f"{self.unit.library(function, dtype, width, len(codes))}({', '.join(codes)})"

    def _where(self, v: Op) -> Text:
        cond, a, b = [self.value(x) for x in v.args]
        if not (cond.varying or a.varying or b.varying):
            return self._name(v.dtype, f"{cond.code} ? {a.code} : {b.code}", False)
        x, y = self.spread(a, v.dtype), self.spread(b, v.dtype)
        return self._name(v.dtype, f"{self._mask_for(cond, v.dtype)} ? {x} : {y}", True)

    def _mask_for(self, cond: Text, dtype: str) -> str:
        """A condition in the width of `dtype`; a scalar one stays scalar."""
        nbytes = DTYPES[lane_type(dtype)].nbytes
        if not cond.varying or nbytes == 4:
            return cond.code
        return f"__builtin_convertvector({cond.code}, {self.type_of(SIGNED[nbytes], True)})"

    def _masked(self, v: Masked) -> Text:
        cond = self.value(v.cond)
        lanes = self.lanes
        name = self.fresh()
        other = Text(constant_text(v.other.value, v.dtype), False) if v.dtype not in ("bf16", "f16") else None
        fill = other or self.half_constant(v.other)
        outer = self._guard
        if lanes is None:
            self.line(f"{SCALAR[v.dtype]} {name} = {fill.code};")
            self.open(f"if ({cond.code})")
            self.line(f"{name} = {self.value(v.body).code};")
            self.close()
            return Text(name, False)
        self.line(f"{self.type_of(v.dtype, True)} {name} = {self.spread(fill, v.dtype)};")
        self.open(f"if ({self.some(cond.code) if cond.varying else cond.code})")
        if cond.varying:
            both = cond
            if outer is not None and outer.varying:
                both = self._name("b8", f"{outer.code} & {cond.code}", True)
            self._guard = both
        body = self.value(v.body)
        self._guard = outer
        if cond.varying:
            self.line(f"{name} = {self._mask_for(cond, v.dtype)} ? {self.spread(body, v.dtype)} : {name};")
        else:
            self.line(f"{name} = {self.spread(body, v.dtype)};")
        self.close()
        return Text(name, True)

    # ------------------------------------------------------------ casts

    def half_constant(self, c: Const) -> Text:
        """A constant of a 16-bit floating-point type."""
        return self._cast(Op(c.dtype, "to", (Const("f32", float(c.value)),)))

    def _cast(self, v: Op) -> Text:
        (arg,) = v.args
        if isinstance(arg, Const) and arg.dtype in ("bf16", "f16"):
            arg = Const("f32", arg.value)
        text = self.value(arg)
        old, new = arg.dtype, v.dtype
        if old == new:
            return text
        if old in ("bf16", "f16"):
            text = self._name("f32", self._widen(old, text), text.varying)
            old = "f32"
            if new == "f32":
                return text
        if new in ("bf16", "f16"):
            if old != "f32":
                text = self._name("f32", self._convert(old, "f32", text), text.varying)
            return self._name(new, self._narrow(new, text), text.varying)
        return self._name(new, self._convert(old, new, text), text.varying)

    def _convert(self, old: str, new: str, text: Text) -> str:
        kind = DTYPES[new].kind
        if not text.varying:
            if kind == "bool":
                return f"{text.code} != 0"
            if DTYPES[old].is_float and DTYPES[new].is_int and DTYPES[new].nbytes < 4:
                return f"({SCALAR[new]})(int32_t){text.code}"
            return f"({SCALAR[new]}){text.code}"
        target = self.type_of(new, True)
        if kind == "bool":
            test = f"{text.code} != 0"
            return test if DTYPES[old].nbytes == 4 else f"__builtin_convertvector({test}, {target})"
        if old == "b8":
            return f"__builtin_convertvector({text.code} & 1, {target})"
        if DTYPES[old].is_float and DTYPES[new].is_int and DTYPES[new].nbytes < 4:
            middle = self.type_of("i32", True)
            return f"__builtin_convertvector(__builtin_convertvector({text.code}, {middle}), {target})"
        return f"__builtin_convertvector({text.code}, {target})"

    def _widen(self, old: str, text: Text) -> str:
        return self._half(f"fb_from_{old}", text)

    def _narrow(self, new: str, text: Text) -> str:
        return self._half(f"fb_to_{new}", text)

    def half_to_float(self, dtype: str, code: str) -> str:
        """A 16-bit number as f32."""
        return self._half(f"fb_from_{dtype}", Text(code, False))

    def float_to_half(self, dtype: str, code: str) -> str:
        """An f32 as a 16-bit number."""
        return self._half(f"fb_to_{dtype}", Text(code, False))

    def _half(self, name: str, text: Text) -> str:
        """A conversion from or to a 16-bit floating-point type."""
        unit = self.unit
        if not text.varying:
            unit.helpers[name] = _HALF[name]
            return f"{name}({text.code})"
        assert self.lanes is not None
        width = self.lanes.width
        rows = HALF_HARDWARE if width in (8, 16) and unit.target.simd in ("avx2", "avx512") else _HALF
        body = rows.get(f"{name}x") or _HALF[f"{name}x"]
        f, u, s = (unit.vector(lane, width) for lane in ("f32", "u32", "u16"))
        unit.helpers[f"{name}x{width}"] = body.format(w=width, f=f, u=u, s=s)
        return f"{name}x{width}({text.code})"


_HALF = {
    "fb_from_bf16": """\
static inline float fb_from_bf16(uint16_t x) {
  uint32_t n = (uint32_t)x << 16;
  float r;
  __builtin_memcpy(&r, &n, 4);
  return r;
}
""",
    "fb_to_bf16": """\
static inline uint16_t fb_to_bf16(float x) {
  uint32_t n;
  __builtin_memcpy(&n, &x, 4);
  return x != x ? 0x7fc0 : (uint16_t)((n + 0x7fff + (n >> 16 & 1)) >> 16);
}
""",
    "fb_from_bf16x": """\
static inline {f} fb_from_bf16x{w}({s} x) {{ return ({f})(__builtin_convertvector(x, {u}) << 16); }}
""",
    "fb_to_bf16x": """\
static inline {s} fb_to_bf16x{w}({f} x) {{
  const {u} n = ({u})x, r = (n + 0x7fff + (n >> 16 & 1)) >> 16;
  return __builtin_convertvector(x != x ? {u}_of(0x7fc0) : r, {s});
}}
""",
    "fb_from_f16": """\
static inline float fb_from_f16(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000) << 16, bits = (uint32_t)(x & 0x7fff) << 13;
  uint32_t n = bits + (112u << 23);
  if (bits >= 31u << 23) n = bits + (224u << 23);
  float r;
  if (bits < 1u << 23) { r = (float)(x & 0x7fff) * 0x1p-24f; __builtin_memcpy(&n, &r, 4); }
  n |= sign;
  __builtin_memcpy(&r, &n, 4);
  return r;
}
""",
    "fb_to_f16": """\
static inline uint16_t fb_to_f16(float x) {
  uint32_t n;
  __builtin_memcpy(&n, &x, 4);
  const uint32_t sign = n >> 16 & 0x8000;
  n &= 0x7fffffff;
  if (n > 0x7f800000) return sign | 0x7e00;
  if (n >= 0x47800000) return sign | 0x7c00;
  if (n < 0x38800000) {
    float r;
    __builtin_memcpy(&r, &n, 4);
    r += 0.5f;
    __builtin_memcpy(&n, &r, 4);
    return sign | (uint16_t)(n - 0x3f000000);
  }
  return sign | (uint16_t)((n - (112u << 23) + 0xfff + (n >> 13 & 1)) >> 13);
}
""",
    "fb_from_f16x": """\
static inline {f} fb_from_f16x{w}({s} h) {{
  const {u} x = __builtin_convertvector(h, {u}), bits = (x & 0x7fff) << 13;
  const {u} normal = bits + (bits >= 31u << 23 ? {u}_of(224u << 23) : {u}_of(112u << 23));
  const {u} small = ({u})(__builtin_convertvector(x & 0x7fff, {f}) * 0x1p-24f);
  return ({f})((bits < 1u << 23 ? small : normal) | (x & 0x8000) << 16);
}}
""",
    "fb_to_f16x": """\
static inline {s} fb_to_f16x{w}({f} x) {{
  const {u} all = ({u})x, sign = all >> 16 & 0x8000, n = all & 0x7fffffff;
  const {u} normal = (n - (112u << 23) + 0xfff + (n >> 13 & 1)) >> 13;
  const {u} small = ({u})(({f})n + 0.5f) - 0x3f000000;
  const {u} finite = n < 0x38800000 ? small : normal;
  const {u} large = n > 0x7f800000 ? {u}_of(0x7e00) : {u}_of(0x7c00);
  return __builtin_convertvector((n >= 0x47800000 ? large : finite) | sign, {s});
}}
""",
}
"""Conversions of 16-bit floating-point types, rounded to nearest even, without instructions of one machine."""
