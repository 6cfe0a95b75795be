"""One kernel for all sizes: softmax, transposition, sums by column and of everything, with sizes known at the call."""

import ctypes

import pytest
import torch
from machine import build

from firebrick.config import Config
from firebrick.fuse import schedule
from firebrick.ir.loops.parse import parse
from firebrick.targets.cpu.cpu_target import detect
from firebrick.targets.cpu.units import kernel_units

pytestmark = pytest.mark.compiler

PROGRAM = """
loops f
  size s0 in 2..inf
  size s1 in 2..inf
  input  x: f32[s0, s1], w: f32[s1]
  temp   m: f32[s0], e: f32[s0, s1], s: f32[s0]
  output y: f32[s0, s1], t: f32[s1, s0], c: f32[s1], a: f32[]
  n0 for i in s0
    m[i] = max(x[s1*i + r] for r in s1)
  n1 for i in s0, j in s1
    e[s1*i + j] = exp(x[s1*i + j] - m[i])
  n2 for i in s0
    s[i] = sum(e[s1*i + r] for r in s1)
  n3 for i in s0, j in s1
    y[s1*i + j] = e[s1*i + j] / s[i] * w[j]
  n4 for i in s1, j in s0
    t[s0*i + j] = x[s1*j + i] * 2.0
  n5 for j in s1
    c[j] = sum(x[s1*r + j] for r in s0)
  n6 once
    a[0] = sum(x[s1*r + q] for r in s0 for q in s1)
  out  y, t, c, a
"""


def test_kernels_take_sizes(simd):
    config = Config(simd=simd, build_workers=1)
    target = detect(config)
    plan = schedule(parse(PROGRAM), {"cpu": target}, config)
    assert len(plan.kernels) == 4
    (library,) = build(kernel_units(plan, target, config), target)
    for rows, columns in [(3, 5), (17, 33), (64, 100), (300, 1000), (2, 70000)]:
        x, w = torch.randn(rows, columns), torch.randn(columns)
        made = {"x": x, "w": w, "y": torch.empty(rows, columns), "t": torch.empty(columns, rows)}
        made |= {"c": torch.empty(columns), "a": torch.empty(())}
        for step in plan.steps:
            args = (ctypes.c_void_p * len(step.args))(*[made[a].data_ptr() for a in step.args])
            sizes = [e.evaluate({"s0": rows, "s1": columns}) for e in step.sizes]
            getattr(library, step.kernel)(args, (ctypes.c_int64 * len(sizes))(*sizes))
        torch.testing.assert_close(made["y"], torch.softmax(x, -1) * w)
        assert torch.equal(made["t"], x.t() * 2)
        torch.testing.assert_close(made["c"], x.sum(0), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(made["a"], x.double().sum().float(), rtol=1e-5, atol=1e-3)
