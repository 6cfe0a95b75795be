"""How TVM's loops run on a CPU: rows in parallel, columns in vector lanes, sums in registers.

TVM ships schedules for GPUs and, for CPUs, of a few shapes only; what has none runs as one plain loop. The rule is
textbook: the last spatial axis is innermost and vectorized, reductions lie between, the axes before are parallel.
"""

from __future__ import annotations

from typing import Any

_COLUMNS, _LANES, _ROWS = 64, 16, 4
"""Of a tile whose sums stay in registers: 4 rows of 64 columns; 16 columns where there are fewer than 64."""
_PARALLEL = 4096
"""Elements from which a loop without reductions is spread over threads."""
_SPATIAL, _REDUCTION = 0, 2
"""TVM's IterVar kinds (DataPar, CommReduce)."""


def scheduled(library: Any, module: Any) -> Any:
    """The module with each of its loop nests scheduled; a nest that the rule does not fit stays as it is.

    library: `tvm.s_tir` (apache-tvm 0.27 and later).
    """
    for name, function in module.functions_items():
        if function.__class__.__name__ != "PrimFunc":
            continue
        schedule = library.Schedule(function)
        for block in schedule.get_child_blocks(schedule.get_sblock("root")):
            try:
                _block(schedule, block)
            except library.ScheduleError:
                continue  # each step by itself keeps the meaning, so what was done before it may stay
        module[name] = schedule.mod["main"].with_attr("tirx.is_scheduled", True)
    return module


def _block(schedule: Any, block: Any) -> None:
    loops, axes = schedule.get_loops(block), schedule.get(block).iter_vars
    kinds = [int(axis.iter_type) for axis in axes]
    sizes = [getattr(schedule.get(loop).extent, "value", 0) for loop in loops]  # 0: not known, or nothing to do
    if len(loops) != len(kinds) or not all(sizes) or not set(kinds) <= {_SPATIAL, _REDUCTION}:
        return
    spatial = [(loop, size) for loop, size, kind in zip(loops, sizes, kinds, strict=True) if kind == _SPATIAL]
    summed = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _REDUCTION]
    if not spatial:
        return
    if not summed:
        _pointwise(schedule, spatial)
    elif spatial[-1][1] >= _LANES:
        _tiled(schedule, block, spatial, summed)
    else:
        schedule.reorder(*(loop for loop, _ in spatial), *summed)
        schedule.parallel(_fused(schedule, [loop for loop, _ in spatial]))


def _fused(schedule: Any, loops: list[Any]) -> Any:
    return schedule.fuse(*loops) if len(loops) > 1 else loops[0]


def _pointwise(schedule: Any, spatial: list[tuple[Any, int]]) -> None:
    count = 1
    for _, size in spatial:
        count *= size
    if count >= _PARALLEL:
        outer, inner = schedule.split(_fused(schedule, [loop for loop, _ in spatial]), [None, _COLUMNS])
        schedule.parallel(outer)
        schedule.vectorize(inner)


def _tiled(schedule: Any, block: Any, spatial: list[tuple[Any, int]], summed: list[Any]) -> None:
    """Matmuls and the like: a tile's sums are kept in a local buffer and written once."""
    *before, (last, columns) = spatial
    outer = [loop for loop, _ in before]
    column, lane = schedule.split(last, [None, _COLUMNS if columns >= _COLUMNS else _LANES])
    rows = []
    if before and before[-1][1] >= _ROWS:
        row, inner = schedule.split(outer.pop(), [None, _ROWS])
        outer, rows = [*outer, row], [inner]
    schedule.reorder(*outer, column, *summed, *rows, lane)
    sums = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(sums, column)
    schedule.parallel(_fused(schedule, [*outer, column]))
    schedule.vectorize(lane)
    for inner in rows:
        schedule.unroll(inner)
    schedule.decompose_reduction(block, summed[0])
    schedule.vectorize(schedule.get_loops(sums)[-1])
