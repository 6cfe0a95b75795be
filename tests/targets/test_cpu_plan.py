"""How a CPU runs the loops of a group: which are lanes, which are tiles of lanes, which are shared out among threads."""

import pytest

from firebrick.config import Config
from firebrick.fuse import schedule
from firebrick.ir.kernels.tree import loops_of
from firebrick.ir.loops.parse import parse
from firebrick.targets.cpu.cpu_target import CpuTarget

WIDE, SCALAR = CpuTarget("avx512", 64, 4, (), 32), CpuTarget("scalar", 0, 4)


def loops(text, target=WIDE):
    """Of the one kernel: size, kind, and whether threads share the iterations."""
    (kernel,) = schedule(parse(f"loops f\n{text}"), {"cpu": target}, Config()).kernels
    return [(str(x.axis.size), x.kind, x.parallel) for x in loops_of(kernel.body)]


POINTWISE = """\
  input  x: f32[{n}, 64]
  output y: f32[{n}, 64]
  n0 for i in {n}, j in 64
    y[64*i + j] = tanh(x[64*i + j])
  out  y
"""
ROWS = """\
  input  x: f32[{n}, 300]
  output y: f32[{n}]
  n0 for i in {n}
    y[i] = sum(x[300*i + r] for r in 300)
  out  y
"""
COLUMNS = """\
  input  x: f32[300, 64]
  output y: f32[64]
  n0 for i in 64
    y[i] = sum(x[64*r + i] for r in 300)
  out  y
"""
TRANSPOSE = """\
  input  x: f32[64, 48]
  output y: f32[48, 64]
  n0 for i in 48, j in 64
    y[64*i + j] = x[48*j + i]
  out  y
"""
SCATTER = """\
  input  x: f32[4, 64], k: i64[4]
  output y: f32[8, 64]
  n0 for i in 4, j in 64
    y[64*d + j, d := below(k[i], 8)] = atomic_add(x[64*i + j])
  out  y
"""


def test_neighbours_that_all_accesses_walk_are_one_loop_of_lanes():
    assert loops(POINTWISE.format(n=8)) == [("512", "vector", False)]


def test_threads_share_what_is_worth_it():
    assert loops(POINTWISE.format(n=4096)) == [("262144", "vector", True)]


def test_a_sum_along_a_row_has_its_lanes_in_the_row():
    assert loops(ROWS.format(n=4)) == [("4", "serial", False), ("300", "vector", False)]
    assert loops(ROWS.format(n=4000)) == [("4000", "serial", True), ("300", "vector", False)]


def test_a_sum_across_rows_is_done_for_a_tile_of_columns_at_once():
    assert loops(COLUMNS) == [("64", "tile", False), ("300", "serial", False)]


def test_a_transposing_copy_goes_in_tiles_across_what_is_read():
    assert loops(TRANSPOSE) == [("64", "tile", False), ("48", "serial", False)]


def test_updates_that_may_meet_have_lanes_where_they_are_neighbours_and_no_threads_where_they_meet():
    assert loops(SCATTER) == [("4", "serial", False), ("64", "vector", False)]
    text = SCATTER.replace("64*d + j", "d").replace("f32[8, 64]", "f32[8]")
    assert {(kind, parallel) for _, kind, parallel in loops(text)} == {("serial", False)}


@pytest.mark.parametrize("text", [POINTWISE.format(n=8), ROWS.format(n=4), COLUMNS, TRANSPOSE])
def test_without_vectors_all_loops_are_serial(text):
    assert {kind for _, kind, _ in loops(text, SCALAR)} == {"serial"}


def test_with_a_symbolic_size_the_kernel_decides_itself_whether_threads_share():
    text = "  size s in 1..inf\n" + POINTWISE.replace("{n}", "s")
    assert loops(text) == [("64*s0", "vector", True)]
