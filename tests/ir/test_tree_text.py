"""Kernels as text: what is printed reads back as the same kernel."""

import pytest
from tests.ir.tree_text import parse_kernel, show_kernel

from firebrick.config import Config
from firebrick.fuse import schedule
from firebrick.ir.loops.parse import LoopSyntaxError, parse
from firebrick.targets.cpu.cpu_target import CpuTarget

TARGET = CpuTarget("avx512", 64, 4, (), 32)

PROGRAM = """
loops f
  size s0 in 2..inf
  input  x: f32[512, 128], z: f32[s0, 64], i: i64[40], b: b8[512, 128]
  temp   m: f32[512, 1], e: f32[512, 128], s: f32[512, 1]
  output y: f32[512, 128], p: i64[512], t: f32[64, s0], g: f32[40, 128], h: f32[512, 128], q: f32[]
  n0 for i in 512
    m[i] = max(x[128*i + r] for r in 128)
  n1 for i in 512, j in 128
    e[128*i + j] = exp(x[128*i + j] - m[i])
  n2 for i in 512
    s[i] = sum(e[128*i + r] for r in 128)
  n3 for i in 512, j in 128
    y[128*i + j] = e[128*i + j] / s[i]
  n4 for i in 512
    p[i] = argmax(x[128*i + r] for r in 128)
  n5 for i in 64, j in s0
    t[i*s0 + j] = z[64*j + i] * 2.0
  n6 for k in 40, j in 128
    g[128*k + j] = x[128*d + j, d := below(i[k], 512)] + 1.0
  n7 for i in 512, j in 128
    v0 = x[128*i + j]
    h[128*i + j] = masked(b[128*i + j], v0 * v0, 0.5)
  n8 once
    q[0] = sum(x[128*r + k] for r in 512 for k in 128)
  out  y, p, t, g, h, q
"""


def test_round_trip():
    kernels = schedule(parse(PROGRAM), {"cpu": TARGET}, Config()).kernels
    assert len(kernels) >= 5
    for kernel in kernels:
        text = show_kernel(kernel)
        assert parse_kernel(text) == kernel, text


def test_small_kernel_reads_as_written():
    text = """kernel k0_reduce
  param a0: f32
  param a1: f32 written
  for i0 in 8 parallel
    acc r0: max f32
    for i1 in 16 vector
      fold r0[0] = a0[16*i0 + i1]
    a1[i0] = r0[0]
"""
    assert show_kernel(parse_kernel(text)) == text


def test_what_is_no_kernel_is_refused():
    with pytest.raises(LoopSyntaxError):
        parse_kernel("kernel k0\n  param a0: f32\n  nonsense\n")
