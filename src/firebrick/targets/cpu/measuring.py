"""Times of the forms of a matmul by a constant weight on this machine, before any of them is built into a graph.

Library calls are made as a graph would make them, our kernels by `MatmulProbe`. Each form has a copy of the weight, and
all caches are emptied between two rounds: in a model a weight comes from memory, and what it is multiplied with does
not. Bounded: forms that fall behind drop out, and a large weight stands for itself by a part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from firebrick.targets.cpu.matmul_probe import MatmulProbe
from firebrick.targets.cpu.processor import caches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from firebrick.config import Config
    from firebrick.targets.cpu.cpu_target import CpuTarget

aten, mkl, mkldnn = torch.ops.aten, torch.ops.mkl, torch.ops.mkldnn

Run = Callable[[], Any]

_ROUNDS = 3, 25
"""Least and most calls of a form that are timed."""
_SECONDS = 0.1
"""Most that is spent on a shape; it ends with the round in which this is over."""
_AGREE = 1.05
"""Two best calls of a form that are so close are what it takes; other programs only add to a time."""
_BEHIND = 1.5
"""Times the best form's time beyond which a form whose calls agree drops out."""
_PRODUCTS = 1 << 27
"""Multiplications of a thread beyond which rows and columns are left out: a millisecond or two of them decide."""
_ROWS, _COLUMNS = 256, 1024
"""Rows and columns that are never left out: tiles, and threads' shares, have to be as they will be."""
_OVERHEAD = 8
"""A call that takes less than so many calls of Python is not decided: the same library call from a graph costs less."""

_probes: dict[Any, MatmulProbe] = {}


def measure(
    target: CpuTarget, config: Config, x: torch.Tensor, weight: torch.Tensor, forms: Mapping[str, int]
) -> dict[str, float]:
    """Seconds of a call of each form of x [rows, inner] by weight [inner, outer] plus a bias; empty if nothing can be
    told from them.

    Args:
        x: like the factor, without its elements; so is `weight`.
        forms: form -> passes over the results that follow it and that another form does on the way.
    """
    sizes = sample(target, x, weight)
    turned = weight.stride(0) == 1
    with torch.inference_mode(False), torch.no_grad():
        runs = _runs(target, config, sizes, turned, weight.dtype, forms)
        if len(runs) < 2:
            return {}
        for run in runs.values():
            run()
        first = min(_timed(run) for run in runs.values())
        if first < _OVERHEAD * min(_timed(_nothing) for _ in range(5)):
            return {}
        return race(runs, _evictor())


def sample(target: CpuTarget, x: torch.Tensor, weight: torch.Tensor) -> tuple[int, int, int]:
    """Rows, products of a sum and columns of the part of a matmul that is measured."""
    (rows, inner), outer = x.shape, weight.shape[1]
    most = max(_PRODUCTS * target.threads // inner, 1)
    rows = min(rows, max(most // outer, _ROWS))
    return rows, inner, min(outer, max(most // rows, _COLUMNS))


def _runs(
    target: CpuTarget,
    config: Config,
    sizes: tuple[int, int, int],
    turned: bool,
    dtype: torch.dtype,
    forms: Mapping[str, int],
) -> dict[str, Run]:
    rows, inner, outer = sizes
    probe = None
    if not forms.keys().isdisjoint(_OWN):
        key = (target, config.compiler, dtype)
        probe = _probes.get(key)
        if probe is None:
            probe = _probes[key] = MatmulProbe(target, config, dtype is torch.bfloat16)
        inner, outer = probe.rounded(inner, outer)
    draw = torch.Generator().manual_seed(0)
    x, bias = (torch.randn(shape, generator=draw).to(dtype) for shape in ((rows, inner), (outer,)))
    found: dict[str, Run] = {}
    ours = set()
    for form, passes in forms.items():
        if probe is not None and form in _OWN:
            plan = probe.blocking(form, (rows, inner, outer), turned)
            if plan.form in ours:
                continue
            ours.add(plan.form)
        weight = torch.empty((outer, inner) if turned else (inner, outer), dtype=dtype).normal_(generator=draw)
        weight = weight.t() if turned else weight
        try:
            if probe is not None and form in _OWN:
                run = probe.run(plan, (x, weight, bias.float()), torch.empty(rows, outer))
            else:
                run = _library(form, x, weight, bias)
            found[form] = _followed(run, (rows, outer), passes)
        except (RuntimeError, ValueError):  # a library without this shape, or a kernel without its tiles
            continue
    return found


_OWN = frozenset({"own", "dots", "panels"})


def _library(form: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Run:
    """A call of a library; its weight is packed now."""
    rows, source = x.shape[0], weight.t()
    if form == "mkl":
        packed = mkl._mkl_reorder_linear_weight(source, rows)
        return lambda: mkl._mkl_linear(x, packed, source, bias, rows)
    if form == "packed":
        packed = mkldnn._reorder_linear_weight(source, rows)
        return lambda: mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    out = x.new_empty(rows, weight.shape[1])
    return lambda: torch.addmm(bias, x, weight, out=out)


def _followed(run: Run, shape: tuple[int, int], passes: int) -> Run:
    """A call, and passes over its results."""
    if not passes:
        return run
    results = torch.zeros(shape)

    def both() -> None:
        run()
        for _ in range(passes):
            results.neg_()

    return both


def race(runs: Mapping[str, Run], evict: Run, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Seconds of the fastest call of each, taken by turns until the two best calls of each agree; those far behind the
    best drop out. Empty where nothing can be told, since the machine is busy: calls of the fastest or of the one that
    costs prefer do not agree in time, and not even two calls of the former are faster than all of the latter.
    """
    times: dict[str, list[float]] = {form: [] for form in runs}
    left, end = dict(runs), clock() + _SECONDS
    for turn in range(_ROUNDS[1]):
        evict()
        for form, run in left.items():
            start = clock()
            run()
            times[form] = sorted((*times[form], clock() - start))[:2]
        sure = {form for form, (best, *second) in times.items() if second and second[0] <= _AGREE * best}
        best = min(times.values())[0]
        left = {form: run for form, run in left.items() if form not in sure or times[form][0] <= _BEHIND * best}
        if turn + 1 >= _ROUNDS[0] and (len(left) < 2 or sure.issuperset(left) or clock() > end):
            break
    preferred, fastest = next(iter(runs)), min(times, key=times.__getitem__)
    decided = {preferred, fastest} <= sure or times[fastest][-1] < times[preferred][0]
    return {form: best for form, (best, *_) in times.items()} if decided else {}


def _timed(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _nothing() -> torch.Tensor:
    return aten.alias.default(_EMPTY)


_EMPTY = torch.empty(1)


def _evictor() -> Run:
    """What reads as much memory as the last cache has."""
    buffer = torch.zeros(caches()[3] // 4)
    return lambda: buffer.sum()
