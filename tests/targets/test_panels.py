"""Kernels on packed panels with every set of instructions that they know, AMX's by an emulation where it is missing."""

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from firebrick.config import Config
from firebrick.ir.operators.panel_op import pack_panels_op, panel_op
from firebrick.targets.cpu.cpu_target import detect, runs_here
from firebrick.targets.cpu.matmul_probe import probe_library
from firebrick.targets.cpu.panel_kernel import HALVES, PANEL_COLUMNS, VNNI, PanelProduct
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
    library = probe_library(target, Config.from_env(), text, ("product",))
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
