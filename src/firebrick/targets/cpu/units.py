"""C++ translation units: the kernels of a schedule, each unit with the prelude that its kernels need.

No header is included and no library but libm linked: vector functions come from SLEEF inside libtorch_cpu and threads
from the OpenMP runtime that torch has loaded, both found by name when a unit is loaded, so a unit compiles in a moment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from firebrick.config import Config
from firebrick.ir.kernels.schedule import Schedule
from firebrick.runtime.build import workers
from firebrick.targets.cpu.handwritten import tiles_of, written_text
from firebrick.targets.cpu.loop_kernel import kernel_text
from firebrick.targets.cpu.unit_writer import Unit

if TYPE_CHECKING:
    from firebrick.targets.cpu.cpu_target import CpuTarget

_FLAGS = ("-std=c++17", "-fPIC", "-shared", "-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi")
"""Compiler flags of every unit, beside those of the target. None changes a result."""
_LIBM = re.compile(
    r"__builtin_(?!(mem(cpy|set)|convertvector|shuffle|prefetch|alloca|ia32|is(inf|nan)|inf|nan|fabs|copysign|signbit|sqrt))"
)
"""What of the compiler's own functions may be one of libm, which linkers take two milliseconds for."""

_LEAST = 9_000
"""Characters of kernels for which a compiler of their own is started, which takes it 20 ms before the first of them."""

_HEAD = """\
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
#define INT64_C(x) ((int64_t)x##LL)
#define INT64_MAX __INT64_MAX__
#define INT64_MIN (-__INT64_MAX__ - 1)
"""

_THREADS = """\
extern "C" void* dlopen(const char*, int);
extern "C" void* dlsym(void*, const char*);
typedef void (*fb_part)(void* const*, const int64_t*, int64_t, int64_t);
static void (*fb_start)(void (*)(void*), void*, unsigned, unsigned);
static int (*fb_thread)(void), (*fb_threads)(void), (*fb_limit)(void);
struct fb_work { fb_part part; void* const* args; const int64_t* sizes; int64_t n, pieces, *taken; };
static void fb_share(void* p) {
  const fb_work w = *(const fb_work*)p;
  const int64_t t = fb_thread(), all = fb_threads();
  for (int64_t u = t; u < t + all; u++) {
    const int64_t v = u % all, begin = w.n * v / all, end = w.n * (v + 1) / all;
    const int64_t step = (end - begin - 1) / w.pieces + 1;
    int64_t* const taken = w.taken + 8 * v;
    for (int64_t i; __atomic_load_n(taken, __ATOMIC_RELAXED) < end - begin &&
        (i = begin + __atomic_fetch_add(taken, step, __ATOMIC_RELAXED)) < end;)
      w.part(w.args, w.sizes, i, end - i < step ? end : i + step);
  }
}
static __attribute__((noinline)) void fb_parallel(fb_part part, void* const* args, const int64_t* sizes, int64_t n,
    int64_t pieces = 1) {
  const int64_t threads = n > 1 && pieces && fb_start ? fb_limit() : 1;
  if (threads <= 1) return part(args, sizes, 0, n);
  int64_t* const taken = (int64_t*)__builtin_alloca(threads * 64);
  for (int64_t i = 0; i < threads; i++) taken[8 * i] = 0;
  fb_work w = {part, args, sizes, n, pieces, taken};
  fb_start(fb_share, &w, threads, 0);
}
"""
"""Iterations shared out among OpenMP's threads, in so many pieces each (none: one thread does all), through the
runtime's own functions: no compiler support is needed. A thread that is done takes those pieces of the others' shares
that nobody has begun: the system may have stopped them. All threads of the limit begin, however few iterations there
are: libgomp ends the threads that a team has fewer than the one before it, and makes them anew for the next larger one.
The limit is torch's, since OpenMP's own knows of no `torch.set_num_threads` in threads that torch has not been in; a
call beside others has a share of it (native/cpu.c). No sum depends on the number of threads."""

_BIND = """\
__attribute__((constructor)) static void fb_bind() {{
  void* const torch = dlopen("libtorch_cpu.so", 5);
  *(void**)&fb_start = dlsym(torch, "GOMP_parallel");
  *(void**)&fb_thread = dlsym(torch, "omp_get_thread_num");
  *(void**)&fb_threads = dlsym(torch, "omp_get_num_threads");
  *(void**)&fb_limit = dlsym(torch, "_ZN2at15get_num_threadsEv");
{}}}
"""


def flags_of(text: str) -> tuple[str, ...]:
    """What a unit is built with, beside the flags of the target."""
    return (*_FLAGS, "-lm") if _LIBM.search(text) else _FLAGS


def kernel_units(schedule: Schedule, target: CpuTarget, config: Config) -> list[str]:
    """Texts of the translation units that hold all kernels of a schedule; none if it has no kernels."""
    exact = config.numerics == "eager"
    origins: dict[str, dict[str, None]] = {}
    for step in schedule.steps:
        if hasattr(step, "kernel") and step.origin:
            origins.setdefault(step.kernel, {})[step.origin] = None
    parts = list[_Part]()
    written = dict[str, _Part]()
    for kernel in schedule.kernels:
        part = _Part(Unit(target, exact))
        places = list(origins.get(kernel.name, ()))
        note = f"// {', '.join(places[:3])}{' ...' if len(places) > 3 else ''}\n" if places else ""
        if kernel.loops:
            text = kernel_text(kernel, part.unit)
            parts.append(part)
        else:
            part = written.setdefault(tiles_of(kernel.body, part.unit), part)
            text = written_text(kernel.body, part.unit, kernel.name)
        part.texts.append(note + text)
    for part in written.values():
        part.shared = sum(map(len, part.unit.helpers.values()))
    return [part.text() for part in _shared_out([*written.values(), *parts], workers(config))]


@dataclass(slots=True)
class _Part:
    """Kernels and what they need. shared: characters of what they have in common."""

    unit: Unit
    texts: list[str] = field(default_factory=list)
    shared: int = 0

    def size(self) -> int:
        """How long building takes, in characters of loops; tiles take twice as long."""
        return sum(map(len, self.texts)) + 2 * self.shared

    def add(self, other: _Part) -> None:
        """Take in another part's kernels."""
        self.unit.add(other.unit)
        self.texts += other.texts
        self.shared += other.shared

    def text(self) -> str:
        """The translation unit."""
        return unit_text(self.unit, self.texts)


def unit_text(unit: Unit, texts: Sequence[str]) -> str:
    """The translation unit of functions, with what `unit` says that they need."""
    binds = "".join(f'  *(void**)&{name} = dlsym(torch, "{name}");\n' for name in unit.functions)
    return _HEAD + _THREADS + unit.prelude() + _BIND.format(binds) + "\n" + "\n".join(texts)


def _shared_out(kernels: list[_Part], most: int) -> list[_Part]:
    """Kernels in as many parts as are worth a compiler each, of about the same size."""
    count = max(1, min(most, sum(k.size() for k in kernels) // _LEAST))
    parts: list[_Part] = []
    for kernel in sorted(kernels, key=_Part.size, reverse=True):
        if len(parts) < count:
            parts.append(kernel)
        else:
            min(parts, key=_Part.size).add(kernel)
    return sorted(parts, key=_Part.size, reverse=True)
