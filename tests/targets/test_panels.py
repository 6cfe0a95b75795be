"""Kernels on packed panels with every set of instructions that they know, AMX's by an emulation where it is missing."""

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from firebrick.config import Config
from firebrick.ir.operators.panel_op import pack_panels_op, panel_convolution_op, panel_op
from firebrick.targets.cpu.cpu_target import detect, runs_here
from firebrick.targets.cpu.matmul_probe import probe_libraries
from firebrick.targets.cpu.panel_kernel import HALVES, PANEL_COLUMNS, VNNI, PanelProduct, window_of
from firebrick.targets.cpu.unit_writer import Unit
from firebrick.targets.cpu.units import unit_text

SHAPES = [(1, 64, 32), (5, 100, 40), (33, 770, 96), (48, 200, 64), (70, 65, 33), (3, 4100, 64), (200, 64, 33)]
"""Rows, products of a sum, columns: whole tiles and what is left of them, several pieces, threads that share rows."""
TYPES = {torch.int8: "int8_t", torch.uint8: "uint8_t", torch.bfloat16: "uint16_t"}


def kernel(target, dtype, attr="none", bias=None):
    """A call of the kernel: (x, packed, bias or None, out)."""
    unit, depth = Unit(target), HALVES if dtype is torch.bfloat16 else VNNI
    rows, inner, outer = (f"sizes[{i}]" for i in range(3))
    made = PanelProduct(rows, inner, outer, (0, inner), 0, outer, depth, TYPES[dtype], bias, attr)
    text = unit_text(unit, [made.text(unit, "product")])
    (library,) = probe_libraries(target, Config.from_env(), (text, ("product",)))
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.symbol("product"))

    def run(*tensors):
        args, x, out = [t.data_ptr() for t in tensors if t is not None], tensors[0], tensors[-1]
        call((ctypes.c_void_p * len(args))(*args), (ctypes.c_int64 * 3)(*x.shape, out.shape[1]))
        return library

    return run


def machine(simd, emulated=False):
    if not runs_here("avx512_vnni" if emulated else simd):
        pytest.skip(f"no {simd} here")
    target = detect(Config.from_env().with_options({"simd": "avx512", "threads": 16}))
    more = ("-include", str(Path(__file__).parent / "amx.h")) if emulated else ()
    return replace(target, simd=simd, flags=(*target.flags, *more))


MACHINES = [("avx512_amx", True), ("avx512_amx", False), ("avx512_vnni", False)]


@pytest.mark.parametrize(("simd", "emulated"), MACHINES)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_sums_of_bytes_are_exact(simd, emulated, dtype):
    run, draw = kernel(machine(simd, emulated), dtype), torch.Generator().manual_seed(0)
    for rows, inner, outer in SHAPES:
        x = torch.randint(0, 256, (rows, inner), dtype=torch.uint8, generator=draw).view(dtype)
        w = torch.randint(-128, 128, (inner, outer), dtype=torch.int8, generator=draw)
        packed = pack_panels_op(w, PANEL_COLUMNS[64], VNNI)
        out = torch.empty(rows, outer, dtype=torch.int32)
        run(x, packed, None, out)
        assert torch.equal(out, x.int() @ w.int())
        assert torch.equal(out, panel_op(x, packed, outer))


@pytest.mark.parametrize(("simd", "emulated"), [*MACHINES[:2], ("avx512_bf16", False)])
@pytest.mark.parametrize("attr", ["none", "gelu"])
def test_products_of_bfloat16_are_rounded_once(simd, emulated, attr):
    run, draw = kernel(machine(simd, emulated), torch.bfloat16, attr, 0), torch.Generator().manual_seed(0)
    for rows, inner, outer in SHAPES:
        x, w = (torch.randn(n, generator=draw).bfloat16() for n in ((rows, inner), (inner, outer)))
        bias = torch.randn(outer, generator=draw)
        packed, out = pack_panels_op(w, PANEL_COLUMNS[64], HALVES), torch.empty(rows, outer, dtype=torch.bfloat16)
        run(x, packed, bias, out)
        exact = x.double() @ w.double() + bias
        exact = torch.nn.functional.gelu(exact) if attr == "gelu" else exact
        assert ((out - exact).abs() <= 2**-8 * exact.abs() + 1e-5 * inner**0.5).all()
        torch.testing.assert_close(out, panel_op(x, packed, outer, bias, attr, []), rtol=2**-7, atol=1e-3)


WINDOWS = [
    # channels, results, image, window, stride, padding, dilation
    ((2, 3, 23, 30), 40, (7, 7), (2, 2), (3, 3), (1, 1)),
    ((1, 64, 9, 14), 64, (3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 32, 9, 8), 33, (1, 1), (2, 2), (0, 0), (1, 1)),
    ((2, 96, 5, 7), 70, (1, 1), (1, 1), (0, 0), (1, 1)),
    ((1, 520, 6, 5), 64, (3, 2), (1, 2), (2, 1), (2, 3)),
]


@pytest.mark.parametrize(("simd", "emulated"), [*MACHINES[:2], ("avx512_bf16", False)])
@pytest.mark.parametrize(("size", "outer", "window", "stride", "padding", "dilation"), WINDOWS)
def test_convolutions_of_bfloat16_are_rounded_once(simd, emulated, size, outer, window, stride, padding, dilation):
    target, draw, how = machine(simd, emulated), torch.Generator().manual_seed(0), (stride, padding, dilation)
    x = torch.randn(size, generator=draw).bfloat16().contiguous(memory_format=torch.channels_last)
    w = torch.randn(outer, size[1], *window, generator=draw).bfloat16()
    exact = torch.nn.functional.conv2d(x.double(), w.double(), None, *how)
    scale, bias = torch.randn(2, outer, generator=draw)
    other = torch.randn(exact.shape, generator=draw).bfloat16().contiguous(memory_format=torch.channels_last)
    exact = (exact * scale.view(-1, 1, 1) + bias.view(-1, 1, 1) + other).relu()
    packed = pack_panels_op(w.permute(2, 3, 1, 0).reshape(-1, outer), PANEL_COLUMNS[64], HALVES)
    numbers, inner, apart = window_of(size, x.stride(), exact.shape[2:], window, *how)
    unit, ends = Unit(target), (0, "relu", (), 0, 0, numbers)
    made = PanelProduct(exact[:, 0].numel(), inner, outer, (0, apart), 0, outer, HALVES, "uint16_t", *ends)
    text = unit_text(unit, [made.text(unit, "convolution")])
    (library,) = probe_libraries(target, Config.from_env(), (text, ("convolution",)))
    out = torch.empty_like(other)
    args = [t.data_ptr() for t in (x, packed, scale, bias, other, out)]
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.symbol("convolution"))((ctypes.c_void_p * 6)(*args))
    assert ((out - exact).abs() <= 2**-8 * exact.abs() + 1e-4 * inner**0.5).all()
    given = panel_convolution_op(x, packed, outer, bias, "relu", [], scale, other, window, *how)
    torch.testing.assert_close(out, given, rtol=2**-7, atol=1e-2)
