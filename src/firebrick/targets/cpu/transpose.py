"""C++ text of moving elements between lanes: blocks whose rows become columns, and elements a few places apart."""

from __future__ import annotations

SHUFFLE = """\
#if defined(__clang__)
#define fb_shuffle(v, m, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define fb_shuffle(v, m, a, b, ...) __builtin_shuffle(a, b, m{__VA_ARGS__})
#endif
"""
"""fb_shuffle(vector type, vector type of indices, a, b, lanes...): lanes picked from two vectors."""


def _indices(vector: str, width: int) -> tuple[str, str]:
    """The vector type that says which lanes are picked, and its definition."""
    nbytes = {"f32": 4, "i32": 4, "u32": 4, "f64": 8, "i64": 8}.get(vector.split("x")[0])
    nbytes = nbytes or (2 if "16x" in vector else 1)
    integer = {1: "int8_t", 2: "int16_t", 4: "int32_t", 8: "int64_t"}[nbytes]
    index = f"fb_m{8 * nbytes}x{width}"
    return index, f"typedef {integer} {index} __attribute__((vector_size({nbytes * width})));"


def picking_helper(name: str, vector: str, scalar: str, width: int, stride: int) -> str:
    """name(p): the elements at p, p + stride...; nothing before the first or behind the last of them is read.

    stride 2 of 4 lanes: p0 p1 p2 p3 and p3 p4 p5 p6 give p0 p2 p4 p6.
    """
    index, typedef = _indices(vector, width)
    first = min(0, stride * (width - 1))
    places = [k * stride - first for k in range(width)]
    starts = [j * width for j in range(abs(stride) - 1)] + [max(places) + 1 - width]
    lines = [typedef, f"static inline {vector} {name}(const {scalar}* p) {{"]
    lines += [f"  const {vector} v{j} = ({vector})*(const {vector}u*)(p + {s + first});" for j, s in enumerate(starts)]
    lanes, reach = "v0", width
    for j, start in enumerate(starts[1:], 1):
        # A lane found before stays; the first time it is taken from its place in v0.
        before = [e if j == 1 else k for k, e in enumerate(places)]
        picked = [b if e < reach else width + e - start for e, b in zip(places, before, strict=True)]
        lines.append(f"  const {vector} m{j} = fb_shuffle({vector}, {index}, {lanes}, v{j}, {_listed(picked)});")
        lanes, reach = f"m{j}", start + width
    if len(starts) == 1:
        lanes = f"fb_shuffle({vector}, {index}, v0, v0, {_listed(places)})"
    return SHUFFLE + "\n".join([*lines, f"  return {lanes};", "}"]) + "\n"


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


BLOCK = """\
static __attribute__((noinline)) void fb_block_{v}({v}* t, const {s}* p, int64_t stride, int64_t rows) {{
  fb_turn_{v}(t, p, stride, rows);
}}
"""
"""The same as a call: a block is long, and read from memory anyway."""


def transpose_helper(vector: str, scalar: str, width: int) -> str:
    """fb_turn_V(t, p, stride, rows): t[k] holds element k of each of the rows at p, p + stride...

    fb_exchange_V(t, r) does the same to rows that were read.
    Missing rows are 0. Works in log2(width) rounds, each exchanging halves, quarters and so on of pairs of rows.
    """
    index, typedef = _indices(vector, width)
    lines = [
        typedef,
        f"static inline __attribute__((always_inline)) void fb_exchange_{vector}({vector}* t, const {vector}* r) {{",
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
    row = f"r[{{k}}] = {{k}} < rows ? ({vector})*(const {vector}u*)(p + {{k}} * stride) : {vector}{{{{}}}};"
    head = f"static inline void fb_turn_{vector}({vector}* t, const {scalar}* p, int64_t stride, int64_t rows) {{"
    lines += ["}", head, f"  {vector} r[{width}];", *("  " + row.format(k=k) for k in range(width))]
    lines += [f"  fb_exchange_{vector}(t, r);"]
    return SHUFFLE + "\n".join([*lines, "}"]) + "\n"
