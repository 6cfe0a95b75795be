"""C++ translation units: the kernels of a schedule with the prelude that they need.

No header is included and no library is linked: vector functions come from SLEEF inside libtorch_cpu and threads from
the OpenMP runtime that torch has loaded, both found by name when a unit is loaded, so a unit compiles in a moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firebrick.codegen.cpp_kernel import kernel_text
from firebrick.codegen.cpp_own import own_kernels, own_text
from firebrick.codegen.cpp_writer import Unit

if TYPE_CHECKING:
    from firebrick.codegen.target import CppTarget
    from firebrick.config import Config
    from firebrick.loops.schedule import Schedule

__all__ = ["FLAGS", "kernel_units"]

FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi")
"""Compiler flags of every unit, beside those of the target. None changes a result."""

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
struct fb_work { fb_part part; void* const* args; const int64_t* sizes; int64_t n; };
static void fb_share(void* p) {
  const fb_work w = *(const fb_work*)p;
  const int64_t t = fb_thread(), all = fb_threads();
  w.part(w.args, w.sizes, w.n * t / all, w.n * (t + 1) / all);
}
static void fb_parallel(fb_part part, void* const* args, const int64_t* sizes, int64_t n) {
  const int64_t limit = fb_start ? fb_limit() : 1;
  if (n <= 1 || limit <= 1) return part(args, sizes, 0, n);
  fb_work w = {part, args, sizes, n};
  fb_start(fb_share, &w, n < limit ? n : limit, 0);
}
"""
"""Iterations shared out among OpenMP's threads, through the runtime's own functions: no compiler support is needed."""

_BIND = """\
__attribute__((constructor)) static void fb_bind() {{
  void* const torch = dlopen("libtorch_cpu.so", 5);
  *(void**)&fb_start = dlsym(torch, "GOMP_parallel");
  *(void**)&fb_thread = dlsym(torch, "omp_get_thread_num");
  *(void**)&fb_threads = dlsym(torch, "omp_get_num_threads");
  *(void**)&fb_limit = dlsym(torch, "omp_get_max_threads");
{}}}
"""


def kernel_units(schedule: Schedule, target: CppTarget, config: Config) -> list[str]:
    """Texts of the translation units that hold all kernels of a schedule; none if it has no kernels."""
    shapes = own_kernels(schedule)
    if not schedule.kernels and not shapes:
        return []
    unit = Unit(target, config.numerics == "eager")
    origins: dict[str, dict[str, None]] = {}
    for step in schedule.steps:
        if hasattr(step, "kernel") and step.origin:
            origins.setdefault(step.kernel, {})[step.origin] = None
    texts = []
    for kernel in schedule.kernels:
        places = list(origins.get(kernel.name, ()))
        note = f"// {', '.join(places[:3])}{' ...' if len(places) > 3 else ''}\n" if places else ""
        texts.append(note + kernel_text(kernel, unit))
    texts += [own_text(shape, unit, target.threads) for shape in shapes.values()]
    binds = "".join(f'  *(void**)&{name} = dlsym(torch, "{name}");\n' for name in unit.bindings())
    return [_HEAD + _THREADS + unit.prelude() + _BIND.format(binds) + "\n" + "\n".join(texts)]
