"""C++ names of scalar and vector types, index expressions as C++, and the helpers that units define on demand."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

from firebrick.errors import InternalError
from firebrick.ir.index.expr import Expr, FloorDiv, Max, Min, Mod, Mul, Var
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.targets.cpu.vector_math import AVX512

SCALAR: Mapping[str, str] = {
    "f32": "float", "f64": "double", "i64": "int64_t", "i32": "int32_t", "i16": "int16_t", "i8": "int8_t",
    "u8": "uint8_t", "b8": "bool", "bf16": "uint16_t", "f16": "uint16_t", "u16": "uint16_t", "u32": "uint32_t",
}  # fmt: skip
"""Short dtype -> C++ type of one value."""

MASK = "i32"
"""Lanes of b8 are i32 lanes of 0 and -1."""

SIGNED: Mapping[int, str] = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}
"""Bytes -> signed integer of that width."""

_STORED: Mapping[str, str] = {"b8": "u8", "bf16": "u16", "f16": "u16"}


def lane_type(dtype: str) -> str:
    """The type of a lane that holds a value of `dtype`."""
    return MASK if dtype == "b8" else _STORED.get(dtype, dtype)


def constant_text(value: bool | int | float, dtype: str) -> str:
    """A number as C++ text."""
    kind = DTYPES[dtype].kind
    if kind == "bool":
        return "true" if value else "false"
    if dtype in ("bf16", "f16"):
        # Constants hold what their type can, so nothing is rounded here.
        bits = struct.pack("<e", value) if dtype == "f16" else struct.pack("<f", value)[2:]
        return f"(uint16_t){int.from_bytes(bits, 'little')}"
    if kind == "float":
        suffix = "f" if dtype == "f32" else ""
        if math.isnan(value):
            return f'__builtin_nan{suffix}("")'
        if math.isinf(value):
            return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
        text = repr(float(value))
        return text + suffix if text[0] != "-" else f"({text}{suffix})"
    if dtype == "i64":
        return "INT64_MIN" if value == -(1 << 63) else f"INT64_C({int(value)})"
    return f"({SCALAR[dtype]}){int(value)}" if value >= 0 else f"({SCALAR[dtype]})({int(value)})"


def index_text(e: Expr, names: Mapping[Var, str]) -> str:
    """An index expression as C++ over int64_t; `names` gives the text of variables."""
    parts: list[str] = []
    for atom, coeff in e.terms:
        text = _atom_text(atom, names)
        sign = " - " if coeff < 0 else " + "
        size = abs(coeff)
        parts.append(f"{sign if parts else sign.strip(' +')}{f'{size} * {text}' if size != 1 else text}")
    if e.const or not parts:
        if parts:
            parts.append(f" {'-' if e.const < 0 else '+'} {abs(e.const)}")
        else:
            parts.append(str(e.const) if e.const > -(1 << 63) else "INT64_MIN")
    return "".join(parts)


def _operand(e: Expr, names: Mapping[Var, str]) -> str:
    text = index_text(e, names)
    return text if isinstance(e, Var) or not e.terms else f"({text})"


def _atom_text(atom: Expr, names: Mapping[Var, str]) -> str:
    if isinstance(atom, Var):
        return names.get(atom, atom.name)
    if isinstance(atom, Mul):
        return " * ".join(_operand(f, names) for f in atom.factors)
    if isinstance(atom, (FloorDiv, Mod)):
        a, b = atom.args
        if a.lo >= 0 and b.lo > 0:
            return f"({_operand(a, names)} {'/' if isinstance(atom, FloorDiv) else '%'} {_operand(b, names)})"
        name = "fb_floordiv" if isinstance(atom, FloorDiv) else "fb_mod"
        return f"{name}<int64_t>({index_text(a, names)}, {index_text(b, names)})"
    if isinstance(atom, (Min, Max)):
        sign = "<" if isinstance(atom, Min) else ">"
        text = index_text(atom.args[0], names)
        for arg in atom.args[1:]:
            other = index_text(arg, names)
            text = f"(({text}) {sign} ({other}) ? ({text}) : ({other}))"
        return text
    raise InternalError(f"no C++ for {atom.show()}")


def size_text(e: Expr, sizes: list[Expr]) -> int | str:
    """A size or stride of a kernel as a number, or as one of those `sizes` that each call gives."""
    if e.is_const:
        return e.const
    sizes.extend([e] if e not in sizes else [])
    return f"sizes[{sizes.index(e)}]"


def needs_division(e: Expr) -> bool:
    """Whether the text of `e` uses the helpers of rounded-down division."""
    for atom, _ in e.terms:
        if isinstance(atom, (FloorDiv, Mod)) and (atom.args[0].lo < 0 or atom.args[1].lo <= 0):
            return True
        if any(needs_division(c) for c in atom.children() if c is not atom):
            return True
    return False


HIDDEN = """\
static inline __attribute__((always_inline)) int64_t fb_hidden(int64_t n) {
  __asm__("" : "+r"(n));
  return n;
}
"""
"""The same number, of which the compiler knows nothing."""


def fold_vector(name: str, combine: str, lane: str, width: int) -> str:
    """A function that folds the lanes of a vector into one value, in pairs; `combine` says how a and b are folded."""
    scalar, nbytes = SCALAR[lane], DTYPES[lane].nbytes
    vector = f"{lane}x{width}"
    lines = [f"static inline {scalar} {name}({vector} x) {{"]
    # C++ computes narrow integers as int, which vectors don't: they are folded one by one.
    n = width if nbytes >= 4 else 1
    while n > 1:
        # Lanes stay in registers: parts of a vector would go through memory.
        n //= 2
        swapped = ", ".join(str(k ^ n) for k in range(width))
        picked = f"fb_shuffle({vector}, {SIGNED[nbytes]}x{width}, x, x, {swapped})"
        lines.append(f"  {{ const {vector} a = x, b = {picked}; x = {combine}; }}")
    if nbytes >= 4:
        return "\n".join([*lines, "  return x[0];", "}"]) + "\n"
    lines += [f"  {scalar} p[{width}];", "  __builtin_memcpy(p, &x, sizeof p);"]
    lines.append(f"  for (int n = {width // 2}; n; n /= 2)")
    lines.append(f"    for (int k = 0; k < n; k++) {{ const {scalar} a = p[k], b = p[k + n]; p[k] = {combine}; }}")
    return "\n".join([*lines, "  return p[0];", "}"]) + "\n"


_MOVES = {1: "vmovdqu8", 2: "vmovdqu16", 4: "vmovups", 8: "vmovupd"}
"""Bytes of a lane -> the AVX-512 instruction that moves some lanes of a vector."""


def vector_prelude(lane: str, lanes: int, simd: str) -> str:
    """Types and functions of a vector type: v, v##u for memory, v##_of, v##_load and v##_store of the first m lanes."""
    scalar, name = SCALAR[lane], f"{lane}x{lanes}"
    nbytes = DTYPES[lane].nbytes
    width = nbytes * lanes
    listed = ", ".join(["x"] * lanes)
    load = f"{name} x = {{}}; __builtin_memcpy(&x, p, m * {nbytes}); return x;"
    store = f"__builtin_memcpy(p, &x, m * {nbytes});"
    if simd in AVX512 and width in (16, 32, 64):
        # Through memory, a part that was just stored would be waited for.
        mask = {64: "unsigned long long", 32: "unsigned int"}.get(lanes, "unsigned short")
        bits = f"({mask})({'m > 63 ? ~0ull : ' if lanes == 64 else ''}(1ull << m) - 1)"
        move = _MOVES[nbytes]
        load = f'asm("{move} %1, %0%{{%2%}}%{{z%}}" : "=v"(x) : "m"(*(const {name}u*)p), "Yk"({bits}));'
        load = f"{name} x; {load} return x;"
        store = f'asm("{move} %1, %0%{{%2%}}" : "+m"(*({name}u*)p) : "v"(x), "Yk"({bits}));'
    elif simd == "avx2" and width in (16, 32) and nbytes >= 4:
        # Stores of parts are slow there on many CPUs.
        kind, iota = SCALAR[SIGNED[nbytes]], ", ".join(map(str, range(lanes)))
        load = (
            f"typedef {kind} mask __attribute__((vector_size({width}))); const mask k = mask{{{iota}}} < ({kind})m; "
            f'{name} x; asm("{"vmaskmovps" if nbytes == 4 else "vmaskmovpd"} %2, %1, %0" : "=x"(x) : "x"(k), '
            f'"m"(*(const {name}u*)p)); return x;'
        )
    return (
        f"typedef {scalar} {name} __attribute__((vector_size({width})));\n"
        f"typedef {scalar} {name}u __attribute__((vector_size({width}), aligned({nbytes}), may_alias));\n"
        f"static inline {name} {name}_of({scalar} x) {{ return {name}{{{listed}}}; }}\n"
        f"static inline {name} {name}_load(const void* p, int64_t m) {{ {load} }}\n"
        f"static inline void {name}_store(void* p, {name} x, int64_t m) {{ {store} }}\n"
    )
