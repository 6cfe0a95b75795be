"""Threads write lines of the cache that no other thread writes, but for those where two shares meet."""

import ctypes

import pytest
import torch
import torch.nn.functional as F
from graphs import HOST, trace
from machine import Runner, build

from firebrick.config import Config
from firebrick.ir.index.expr import as_int
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.lower import lower
from firebrick.targets.cpu import units

pytestmark = pytest.mark.compiler
THREADS, LINE = 16, 64
WATCHED = """
extern "C" void (*fb_watch)(int64_t) = nullptr;
static void fb_parallel(fb_part part, void* const* args, const int64_t* sizes, int64_t n, int64_t pieces = 1) {
  if (n <= 1 || !pieces || !fb_watch) return part(args, sizes, 0, n);
  for (int64_t v = 0; v < 16; v++) {
    fb_watch(-1);
    const int64_t begin = n * v / 16, end = n * (v + 1) / 16;
    if (begin < end) part(args, sizes, begin, end);
    fb_watch(v);
  }
}
"""
"""Shares out as fb_parallel does, one share after the other, and tells when one is done."""


class Watcher(Runner):
    """A schedule that notes which lines each share of a kernel changes."""

    def __init__(self, program):
        super().__init__(program, Config(threads=THREADS))
        start = units._THREADS.index("static __attribute__((noinline)) void fb_parallel")
        texts = [source.replace(units._THREADS[start:], WATCHED) for source in self.sources]
        self.lines = {}
        for library in build(texts, self.target):
            for kernel in self.schedule.kernels:
                if hasattr(library, kernel.name):
                    self.functions[kernel.name] = self.watched(kernel, library)

    def watched(self, kernel, library):
        step = next(s for s in self.schedule.steps if getattr(s, "kernel", None) == kernel.name)
        sizes_of = {b.name: b for b in self.program.buffers}
        written = {k: sizes_of[step.args[k]] for k, p in enumerate(kernel.params) if p.written}

        def call(args, sizes):
            spans, before = [], []
            for k, b in written.items():
                extent = 1 + sum((as_int(n) - 1) * as_int(s) for n, s in zip(b.shape, b.strides, strict=True))
                spans.append((ctypes.c_ubyte * (extent * DTYPES[b.dtype].nbytes)).from_address(args[k]))
            lines = [set() for _ in range(THREADS)]

            @ctypes.CFUNCTYPE(None, ctypes.c_int64)
            def watch(share):
                now = [torch.frombuffer(bytearray(span), dtype=torch.uint8) for span in spans]
                for old, new, span in zip(before if share >= 0 else [], now, spans, strict=share >= 0):
                    changed = (old != new).nonzero().flatten() + ctypes.addressof(span)
                    lines[share].update((changed // LINE).unique().tolist())
                before[:] = now

            ctypes.c_void_p.in_dll(library, "fb_watch").value = ctypes.cast(watch, ctypes.c_void_p).value
            getattr(library, kernel.name)(args, sizes)
            self.lines[kernel.name] = lines

        return call


def f(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


PROGRAMS = {
    "rows of 197": (lambda x: (x * 2).tanh(), f(768, 197)),
    "all elements": (lambda x: x.exp(), f(300_001)),
    "softmax": (lambda x: x.softmax(-1), f(12, 128, 131)),
    "layer norm": (lambda x: F.layer_norm(x, (771,)), f(197, 771)),
    "sums of columns": (lambda x: x.sum(0), f(3001, 777)),
    "sums of planes": (lambda x: x.mean((2, 3)), f(8, 333, 28, 28)),
    "transposed": (lambda x: x.t().contiguous(), f(3072, 197)),
    "heads": (lambda x: x.view(197, 12, 65).transpose(0, 1).contiguous(), f(197, 780)),
    "pooling": (lambda x: F.max_pool2d(x, 3, 2, 1), f(1, 64, 113, 113)),
    "pooling of channels": (lambda x: F.avg_pool2d(x, 2), f(1, 100, 56, 56).to(memory_format=torch.channels_last)),
    "interpolated": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), f(1, 65, 33, 33)),
    "concatenated": (lambda x: torch.cat([x, x.tanh(), x * 2], 1), f(2000, 33)),
    "maxima and places": (lambda x: (x.amax(1), x.argmax(1)), f(4000, 100)),
    "running sums": (lambda x: x.cumsum(0), f(100, 3000)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_shares_meet_at_few_lines(name):
    fn, x = PROGRAMS[name]
    aten = trace(fn, (x,))
    watcher = Watcher(lower(aten, HOST, Config()))
    (got, *_), want = watcher([x], aten.constants), fn(x)
    torch.testing.assert_close(got, want if torch.is_tensor(want) else want[0], atol=1e-4, rtol=1e-4)
    for kernel, lines in watcher.lines.items():
        written, parts = set().union(*lines), sum(map(bool, lines))
        shared = sum(map(len, lines)) - len(written)
        few = max(2 * THREADS, len(written) // 20)
        assert shared <= few, f"{kernel}: {parts} threads write {len(written)} lines, {shared} twice"
