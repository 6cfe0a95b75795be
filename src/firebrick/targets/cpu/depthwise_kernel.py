"""Depthwise convolutions as C++: vectors of channels, several pixels of a row at a time, no copy of the input's border.

Each of the input's vectors and each weight of a row of the window is read once and used for all results of the tile.
What is outside of the image is read from a row of zeros, which pointers lead to.
"""

from __future__ import annotations

import hashlib
from typing import Any

from firebrick.targets.cpu.dense_kernel import Call, Field
from firebrick.targets.cpu.epilogue import activation
from firebrick.targets.cpu.unit_writer import Unit

PIXELS = (7, 8, 6, 5, 4)
"""Results of a tile, of those with the least waste the first. A sum waits four cycles for the one before, and a core
begins two in each: fewer leave it idle, and more would not have registers for the weights of a wide window."""

_TILE = """\
static __attribute__((noinline)) void {name}(const float* const* x, int64_t shift, int64_t height, const float* w,
    int64_t channels, const float* bias, const float* other, float* out, int64_t live, int64_t begin, int64_t end) {{
  for (int64_t i = begin; i < end; i += {w}) {{
    const int64_t c = i + {w} <= end ? i : end - {w}, place = c + shift;
    const {v} start = bias ? *(const {v}u*)(bias + c) : {v}{{}};
    {v} {sums};
    const float* const* from = x;
    const float* weight = w + c;
    for (int64_t h = 0; h < height; h++, from += {columns}, weight += {window} * channels) {{
      const {v} {weights};
{products}
    }}
    {v} y;
{stores}
  }}
}}
"""
"""Results side by side, by windows of one width, step and dilation. x: where the columns of each row
of the window are, less `shift`; the last vector of channels overlaps the one before it."""

_DRIVER = """\
struct fb_depthwise {
  fb_given x, weight, bias, other;
  int64_t out, shares, blocks, lanes, channels, size[2], pixels, columns, stride[2], padding[4], dilation, given[2];
  int64_t window[2], step[3];
  const float* zeros;
  void (*tile)(const float* const*, int64_t, int64_t, const float*, int64_t, const float*, const float*, float*,
      int64_t, int64_t, int64_t);
};
static void fb_depthwise_part(void* const* args, const int64_t* shape, int64_t begin, int64_t end) {
  const fb_depthwise& s = *(const fb_depthwise*)shape;
  const float *const x = s.x.of(args), *const weight = s.weight.of(args);
  const float *const bias = s.bias.of(args), *const other = s.other.of(args);
  float* const out = (float*)args[s.out];
  const int64_t columns = s.columns;
  const float* at[s.window[0] * columns];
  int64_t share = begin % s.shares, r = begin / s.shares, y = r % s.size[0];
  const float* image = x + r / s.size[0] * s.step[0];
  for (int64_t part = begin; part < end; part++) {
    const int64_t from = share ? s.blocks * share / s.shares * s.lanes : 0;
    const int64_t to = share == s.shares - 1 ? s.channels : s.blocks * (share + 1) / s.shares * s.lanes;
    const int64_t top = y * s.stride[0] - s.padding[2];
    int64_t h0 = 0, h1 = s.window[0];
    while (h0 < h1 && top + h0 * s.dilation < 0) h0++;
    while (h0 < h1 && top + (h1 - 1) * s.dilation >= s.given[0]) h1--;
    bool shared = false;
    for (int64_t t = 0, origin = 0; t < s.size[1]; t += s.pixels) {
      const int64_t left = t * s.stride[1] - s.padding[0], c = (r * s.size[1] + t) * s.channels;
      const bool whole = left >= 0 && left + columns <= s.given[1];
      if (!whole || !shared) {
        const int64_t before = left < 0 ? (-left < columns ? -left : columns) : 0, most = s.given[1] - left;
        const int64_t inside = most < before ? before : most < columns ? most : columns;
        const float** place = at;
        for (int64_t h = h0; h < h1; h++, place += columns) {
          const float* const here = image + (top + h * s.dilation) * s.step[1] + left * s.step[2];
          int64_t j = 0;
          for (; j < before; j++) place[j] = s.zeros;
          for (; j < inside; j++) place[j] = here + j * s.step[2];
          for (; j < columns; j++) place[j] = s.zeros;
        }
        origin = left, shared = whole;
      }
      s.tile(at, (left - origin) * s.step[2], h1 - h0, weight + h0 * s.window[1] * s.channels, s.channels, bias,
             other ? other + c : other, out + c, s.size[1] - t, from, to);
    }
    if (++share < s.shares) continue;
    share = 0, r++;
    if (++y == s.size[0]) y = 0, image += s.step[0];
  }
}
"""
"""What the kernels of all shapes do, by the table of one. Tiles that are inside of the image share their pointers."""


class Depthwise:
    """The kernel of a convolution in which each channel depends on the same channel alone."""

    def __init__(self, call: Call, name: str) -> None:
        self.call, self.name = call, name

    def text(self, unit: Unit) -> str:
        """The kernel, less what `unit` puts before it."""
        shape, _, driver, count = self.plan(unit)
        # Not constant, so that the file of the library does not hold the zeros.
        zeros = f"static float {self.name}_zeros[{self.call.outer}];\n"
        return zeros + self.call.entry(unit, self.name, "depthwise", driver, count, shape)

    def plan(self, unit: Unit) -> tuple[dict[str, Field], dict[str, tuple[Any, ...]], str, int]:
        """The fields of the driver's table behind the buffers, the zeros that one points to, the driver's text, and how
        many parts there are to share out."""
        call, threads = self.call, unit.target.threads
        lanes, (height, width) = lanes_of(unit.target.vector_bytes, call.outer), call.size
        pixels = results_of(width)
        rows, blocks = call.batch * height, -(-call.outer // lanes)
        shares = max(1, min(blocks // 4, 8 * threads // rows)) if threads > 1 else 1
        shape: dict[str, Field] = {
            "shares": shares, "blocks": blocks, "lanes": lanes, "channels": call.outer, "size": call.size,
            "pixels": pixels, "columns": self._columns(pixels), "stride": call.stride, "padding": call.padding,
            "dilation": call.dilation[0], "given": call.given, "window": call.window, "step": call.x[1:],
            "zeros": f"{self.name}_zeros", "tile": self._tile(unit, lanes, pixels),
        }  # fmt: skip
        return shape, {"zeros": (0,) * call.outer}, _DRIVER, rows * shares

    def _columns(self, pixels: int) -> int:
        """Columns of the input that neighbouring results are made of."""
        call = self.call
        return (pixels - 1) * call.stride[1] + (call.window[1] - 1) * call.dilation[1] + 1

    def _tile(self, unit: Unit, lanes: int, pixels: int) -> str:
        """Name of the function for `pixels` results."""
        call, v = self.call, unit.vector("f32", lanes)
        window, step, dilation = call.window[1], call.stride[1], call.dilation[1]
        function = activation(unit, lanes, call.attr, call.scalars)
        digest = hashlib.blake2s(function.encode(), digest_size=3).hexdigest()
        name = f"fb_depthwise_{v}_{pixels}x{window}_{step}_{dilation}_{digest}"
        if name in unit.helpers:
            return name
        products = []
        for j in range(self._columns(pixels)):
            taken = [(t, (j - t * step) // dilation) for t in range(pixels) if (j - t * step) % dilation == 0]
            sums = "".join(f" s{t} += x{j} * w{k};" for t, k in taken if 0 <= k < window)
            if sums:
                products.append(f"      const {v} x{j} = *(const {v}u*)(from[{j}] + place);{sums}")
        sizes = {"v": v, "w": lanes, "pixels": pixels, "window": window, "columns": self._columns(pixels)}
        unit.helpers[name] = _TILE.format(
            **{"name": name, **sizes},
            sums=", ".join(f"s{t} = start" for t in range(pixels)),
            weights=", ".join(f"w{k} = *(const {v}u*)(weight + {k} * channels)" for k in range(window)),
            products="\n".join(products),
            stores="\n".join(
                f"    if (live > {t}) {{\n"
                f"      y = s{t};\n"
                f"      if (other) y += *(const {v}u*)(other + {t} * channels + c);\n"
                f"      *({v}u*)(out + {t} * channels + c) = {function};\n"
                "    }"
                for t in range(pixels)
            ),
        )
        return name


def results_of(width: int) -> int:
    """Results of a tile, of which rows of this width leave out the fewest."""
    return min(PIXELS, key=lambda n: -(-width // n) * n)


def lanes_of(vector_bytes: int, channels: int) -> int:
    """Channels of a vector: no more than there are."""
    return min(max(vector_bytes // 4, 1), 1 << channels.bit_length() - 1)
