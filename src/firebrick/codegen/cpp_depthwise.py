"""Depthwise convolutions as C++: vectors of channels, several pixels of a row at a time, no copy of the input's border.

Each of the input's vectors and each weight of a row of the window is read once and used for all results of the tile.
What is outside of the image is read from a row of zeros, which pointers lead to.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from firebrick.codegen.cpp_finish import activation

if TYPE_CHECKING:
    from firebrick.codegen.cpp_convolution import Call
    from firebrick.codegen.cpp_writer import Unit

__all__ = ["Depthwise"]

_PIXELS = (7, 8, 6, 5, 4)
"""Results of a tile, the best first."""

_TILE = """\
template <int T, int W, int S, int D, class F>
static __attribute__((noinline)) void fb_depthwise_{v}(const float* const* x, int64_t height, const float* w,
    int64_t channels, const float* bias, const float* other, float* out, int64_t live, int64_t begin, int64_t end) {{
  enum {{ J = (T - 1) * S + (W - 1) * D + 1 }};
  for (int64_t i = begin; i < end; i += {w}) {{
    const int64_t c = i + {w} <= end ? i : end - {w};
    {v} sum[T];
    const {v} start = bias ? *(const {v}u*)(bias + c) : {v}{{}};
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) sum[t] = start;
    const float* const* from = x;
    const float* weight = w + c;
    for (int64_t h = 0; h < height; h++, from += J, weight += W * channels) {{
      {v} row[W];
#pragma GCC unroll 9
      for (int k = 0; k < W; k++) row[k] = *(const {v}u*)(weight + k * channels);
#pragma GCC unroll 256
      for (int j = 0; j < J; j++) {{
        {v} here = {v}{{}};
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {{
          const int k = j - t * S;
          if (k < 0 || k % D || k / D >= W) continue;
          here = *(const {v}u*)(from[j] + c);
          sum[t] += here * row[k / D];
        }}
      }}
    }}
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {{
      if (t >= live) break;
      {v} y = sum[t];
      if (other) y += *(const {v}u*)(other + t * channels + c);
      *({v}u*)(out + t * channels + c) = F::of(y);
    }}
  }}
}}
"""
"""T results side by side, windows of W columns, S apart, with D from column to column. x: where the columns of each row
of the window are; the last vector of channels overlaps the one before it."""

_PART = """\
static void {name}_part(void* const* args, const int64_t*, int64_t begin, int64_t end) {{
  const float* const x = (const float*)args[0] + {x_offset};
  const float* const weight = (const float*)args[1];
  const float* const bias = {bias};
  const float* const other = {other};
  float* const out = (float*)args[{out}];
  static const float zeros[{channels}] = {{}};
  for (int64_t part = begin; part < end; part++) {{
    const int64_t share = part % {shares}, r = part / {shares}, n = r / {height}, y = r % {height};
    const int64_t from = {blocks} * share / {shares} * {lanes}, to = share == {shares} - 1 ? {channels} :
        {blocks} * (share + 1) / {shares} * {lanes};
    const int64_t top = y * {stride_y} - {pad_top};
    const int64_t h0 = top < 0 ? ({dilation_y} - 1 - top) / {dilation_y} : 0;
    const int64_t room = {given_height} - top, fit = room <= 0 ? 0 : (room + {dilation_y} - 1) / {dilation_y};
    const int64_t h1 = fit < {window_height} ? fit : {window_height};
    for (int64_t t = 0; t < {width}; t += {pixels}) {{
      const float* at[{window_height} * {columns}];
      const int64_t left = t * {stride_x} - {pad_left};
      for (int64_t h = h0; h < h1; h++)
        for (int64_t j = 0; j < {columns}; j++)
          at[(h - h0) * {columns} + j] = left + j >= 0 && left + j < {given_width}
              ? x + n * {x_image} + (top + h * {dilation_y}) * {x_row} + (left + j) * {x_column} : zeros;
      const int64_t c = (r * {width} + t) * {channels};
      fb_depthwise_{v}<{pixels}, {window_width}, {stride_x}, {dilation_x}, fb_act_{act}>(
          at, h1 > h0 ? h1 - h0 : 0, weight + h0 * {weights}, {channels}, bias, {beside}, out + c,
          {width} - t, from, to);
    }}
  }}
}}
extern "C" void {name}(void* const* args, const int64_t* sizes) {{
  {start};
}}
"""


class Depthwise:
    """The kernel of a convolution in which each channel depends on the same channel alone."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def text(self, unit: Unit, threads: int) -> str:
        """The kernel, less what `unit` puts before it."""
        call = self.call
        lanes = max(unit.target.vector_bytes // 4, 1)
        while lanes > call.outer:
            lanes //= 2
        v = unit.vector("f32", lanes)
        unit.helpers.setdefault(f"fb_depthwise_{v}", _TILE.format(v=v, w=lanes))
        function = activation(unit, lanes, call.attr, call.scalars)
        act = hashlib.blake2s(f"{v} {function}".encode(), digest_size=3).hexdigest()
        unit.helpers.setdefault(
            f"fb_act_{act}", f"struct fb_act_{act} {{ static inline {v} of({v} y) {{ return {function}; }} }};\n"
        )
        (height, width), (stride_y, stride_x), (dilation_y, dilation_x) = call.size, call.stride, call.dilation
        pixels = min(_PIXELS, key=lambda n: -(-width // n) * n)
        rows, blocks = call.batch * height, -(-call.outer // lanes)
        shares = max(1, min(blocks // 4, 8 * threads // rows)) if threads > 1 else 1
        left, _, top, _ = call.padding
        return _PART.format(
            name=call.name,
            v=v,
            act=act,
            lanes=lanes,
            shares=shares,
            blocks=blocks,
            channels=call.outer,
            height=height,
            width=width,
            pixels=pixels,
            columns=(pixels - 1) * stride_x + (call.window[1] - 1) * dilation_x + 1,
            window_height=call.window[0],
            window_width=call.window[1],
            weights=call.window[1] * call.outer,
            stride_x=stride_x,
            stride_y=stride_y,
            dilation_x=dilation_x,
            dilation_y=dilation_y,
            pad_left=left,
            pad_top=top,
            given_height=call.given[0],
            given_width=call.given[1],
            x_image=call.x[1],
            x_row=call.x[2],
            x_column=call.x[3],
            beside="other + c" if call.other is not None else "nullptr",
            start=call.start(rows * shares),
            **call.pointers(),
        )
