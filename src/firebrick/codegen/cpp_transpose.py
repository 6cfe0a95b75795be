"""C++ text of turning a square block of elements: rows in memory become columns in registers."""

from __future__ import annotations

__all__ = ["SHUFFLE", "transpose_helper"]

SHUFFLE = """\
#if defined(__clang__)
#define fb_shuffle(v, m, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define fb_shuffle(v, m, a, b, ...) __builtin_shuffle(a, b, m{__VA_ARGS__})
#endif
"""
"""fb_shuffle(vector type, vector type of indices, a, b, lanes...): lanes picked from two vectors."""


def transpose_helper(vector: str, scalar: str, width: int) -> str:
    """fb_turn_V(t, p, stride, rows): t[k] holds element k of each of the rows at p, p + stride...

    Missing rows are 0. Works in log2(width) rounds, each exchanging halves, quarters and so on of pairs of rows.
    """
    nbytes = {"f32": 4, "i32": 4, "u32": 4, "f64": 8, "i64": 8}.get(vector.split("x")[0])
    nbytes = nbytes or (2 if "16x" in vector else 1)
    index = f"fb_m{8 * nbytes}x{width}"
    integer = {1: "int8_t", 2: "int16_t", 4: "int32_t", 8: "int64_t"}[nbytes]
    lines = [
        f"typedef {integer} {index} __attribute__((vector_size({nbytes * width})));",
        f"static inline void fb_turn_{vector}({vector}* t, const {scalar}* p, int64_t stride, int64_t rows) {{",
        f"  {vector} r[{width}];",
        f"  for (int k = 0; k < {width}; k++)",
        f"    r[k] = k < rows ? ({vector})*(const {vector}u*)(p + k * stride) : {vector}{{}};",
    ]
    names = [f"r[{k}]" for k in range(width)]
    step = 1
    count = 0
    while step < width:
        low = ", ".join(str(k if not k & step else width + k - step) for k in range(width))
        high = ", ".join(str(k + step if not k & step else width + k) for k in range(width))
        new = list(names)
        for k in range(width):
            if not k & step:
                a, b = names[k], names[k + step]
                x, y = f"x{count}", f"x{count + 1}"
                count += 2
                lines.append(f"  const {vector} {x} = fb_shuffle({vector}, {index}, {a}, {b}, {low});")
                lines.append(f"  const {vector} {y} = fb_shuffle({vector}, {index}, {a}, {b}, {high});")
                new[k], new[k + step] = x, y
        names = new
        step *= 2
    lines += [f"  t[{k}] = {name};" for k, name in enumerate(names)]
    return SHUFFLE + "\n".join([*lines, "}"]) + "\n"
