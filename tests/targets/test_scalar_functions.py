"""Every row of the table of scalar functions, for every dtype that it takes, against the reference interpreter."""

import ctypes
import math
import platform

import pytest
import torch
from machine import Runner
from tests.ir.interp import run

from firebrick.config import Config
from firebrick.ir.index.expr import ONE, ZERO, const, var
from firebrick.ir.loops.constructors import constant, load, op
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Axis, Buffer, LoopProgram, Nest, Ref, Store
from firebrick.ir.loops.scalar_ops import SCALAR_OPS
from firebrick.targets.cpu.cpu_target import detect
from firebrick.targets.cpu.scalar_functions import SLEEF
from firebrick.targets.cpu.unit_writer import Unit

pytestmark = pytest.mark.compiler

KINDS = {"float": ("f32", "f64"), "int": ("i64", "i32", "i16", "i8"), "uint": ("u8",), "bool": ("b8",)}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 1e30, 88.0, -104.0]
SIZE = 67  # four full vectors of 16 and a tail
ULPS = {"pow": 4, "lgamma": 40, "rsqrt": 2, "sigmoid": 3, "erfc": 8, "hypot": 2, "tan": 3, "asinh": 3, "acosh": 3}


def values(dtype, seed):
    row = DTYPES[dtype]
    g = torch.Generator().manual_seed(seed)
    if row.is_float:
        x = torch.randn(SIZE, generator=g, dtype=torch.float64) * 3
        x[: len(SPECIAL)] = torch.tensor(SPECIAL, dtype=torch.float64)
        return x[torch.randperm(SIZE, generator=g)].to(row.torch)
    if row.kind == "bool":
        return torch.rand(SIZE, generator=g) < 0.5
    x = torch.randint(max(row.lo, -100), min(row.hi, 100) + 1, (SIZE,), generator=g)
    x[:5] = torch.tensor([0, 1, row.lo, row.hi, 7])
    return x[torch.randperm(SIZE, generator=g)].to(row.torch)


def buffer(name, dtype, kind, size=SIZE):
    return Buffer(name, dtype, (const(size),), (ONE,), kind)


def program_of(rows, size=SIZE):
    """A program with one nest a (result dtype, function of loads) row."""
    i = var("i", 0, size - 1)
    inputs, nests, outs = {}, [], []
    for k, (needs, make) in enumerate(rows):
        args = []
        for slot, dtype in enumerate(needs):
            name = f"x{slot}_{dtype}"
            inputs[name] = buffer(name, dtype, "input", size)
            args.append(load(name, dtype, i))
        value = make(*args)
        out = buffer(f"out{k}", value.dtype, "output", size)
        outs.append(out)
        nests.append(Nest(f"n{k}", (Axis(i, const(size)),), (Store(out.name, i, value),)))
    refs = tuple(Ref(o.name, o.shape, o.strides, ZERO) for o in outs)
    return LoopProgram("ops", (*inputs.values(), *outs), tuple(nests), tuple(inputs), (), refs)


def inputs_of(program):
    made = []
    for name in program.inputs:
        slot, dtype = name[1:].split("_")
        made.append(values(dtype, int(slot) * 7 + 1))
    return made


def check(program, labels, inputs, simd, ulps=ULPS, numerics="eager"):
    runner = Runner(program, Config(simd=simd, numerics=numerics))
    wanted = run(program, [x.clone() for x in inputs], {})
    problems = []
    for label, want, got in zip(labels, wanted, runner([x.clone() for x in inputs], {}), strict=True):
        assert got.dtype == want.dtype, label
        if not want.dtype.is_floating_point:
            wrong = got != want
            if wrong.any():
                problems.append((label, got[wrong], want[wrong], [x[wrong] for x in inputs if x.shape == wrong.shape]))
            continue
        same = (got == want) | (got.isnan() & want.isnan())
        near = (got.double() - want.double()).abs() <= ulps.get(label[0], 2) * (
            torch.finfo(want.dtype).eps * want.double().abs() + torch.finfo(want.dtype).tiny
        )
        wrong = ~(same | near)
        if label[0] in ("mod", "fmod"):
            # Eager's own vector code gives NaN for divisors below the normal numbers.
            wrong &= ~want.isnan()
        if wrong.any():
            problems.append((label, got[wrong], want[wrong], [x[wrong] for x in inputs if x.shape == wrong.shape][:4]))
        if label[0] not in ("lgamma", "pow"):
            zeros = (want == 0) & same
            if not torch.equal(got[zeros].signbit(), want[zeros].signbit()):
                problems.append((label, "sign of zero"))
    assert not problems, "\n".join(map(str, problems))


@pytest.mark.parametrize("numerics", ["default", "eager"])
def test_every_function(simd, numerics):
    rows, labels = [], []
    for name, row in SCALAR_OPS.items():
        if name in ("to", "where", "drawn"):
            continue
        for kind in row.takes.split():
            for dtype in KINDS[kind]:
                rows.append(((dtype,) * row.arity, lambda *a, name=name: op(name, *a)))
                labels.append((name, dtype))
    program = program_of(rows)
    check(program, labels, inputs_of(program), simd, numerics=numerics)


def test_where_of_every_dtype(simd):
    dtypes = [d for kind in KINDS.values() for d in kind]
    rows = [(("b8", d, d), lambda c, a, b: op("where", c, a, b)) for d in dtypes]
    program = program_of(rows)
    check(program, [("where", d) for d in dtypes], inputs_of(program), simd)


def test_every_cast(simd):
    from firebrick.ir.loops.constructors import cast

    names = [n for n, row in DTYPES.items() if row.loops]
    rows, labels = [], []
    for a in names:
        for b in names:
            if a != b:
                rows.append(((a,), lambda x, b=b: cast(x, b)))
                labels.append(("to", a, b))
    program = program_of(rows)
    inputs = []
    for name, x in zip(program.inputs, inputs_of(program), strict=True):
        if x.dtype.is_floating_point:
            # What C leaves open (a float that the integer type can't hold) is not asked for.
            x = x.nan_to_num(3.0, 100.0, 100.0).clamp(0, 100) if name.split("_")[1] else x
        inputs.append(x)
    check(program, labels, inputs, simd)


@pytest.mark.parametrize("half", ["bf16", "f16"])
def test_rounding_to_half(half, simd):
    from firebrick.ir.loops.constructors import cast

    bits = torch.randint(-(2**31), 2**31, (4096,), generator=torch.Generator().manual_seed(3)).to(torch.int32)
    x = bits.view(torch.float32)
    x[:2048] = torch.randn(2048, generator=torch.Generator().manual_seed(4)) * 10.0 ** torch.randint(-9, 6, (2048,))
    x[:6] = torch.tensor([65504.0, 65519.0, 65520.0, 65536.0, 2.0**-25, 2.0**-24 * 1.5])
    program = program_of([(("f32",), lambda v: cast(v, half)), ((half,), lambda v: cast(v, "f32"))], 4096)
    every = torch.arange(4096, dtype=torch.int32).mul(16).to(torch.int16).view(DTYPES[half].torch)
    check(program, [("to", half), ("from", half)], [x, every], simd, {"to": 0, "from": 0})


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 66])
def test_tails(size):
    rows = [
        (("f32", "f32"), lambda a, b: op("add", op("mul", a, b), constant(1.5, "f32"))),
        (("f32", "i64"), lambda a, b: op("lt", b, constant(3, "i64"))),
        (("b8", "f64"), lambda c, a: op("where", c, a, constant(-0.0, "f64"))),
    ]
    program = program_of(rows, size)
    inputs = [x[:size] for x in inputs_of(program)]
    check(program, [("chain", size), ("less", size), ("pick", size)], inputs, "auto")


def test_gelu_is_closer_than_eager(simd):
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([0.0, -0.0, math.inf, math.nan, -100.0])])
    rows = [
        (
            ("f32",),
            lambda a: op(
                "mul",
                op("mul", a, constant(0.5, "f32")),
                op("add", op("erf", op("mul", a, constant(0.5**0.5, "f32"))), constant(1.0, "f32")),
            ),
        )
    ]
    program = program_of(rows, x.numel())
    (got,) = Runner(program, Config(simd=simd))([x], {})
    exact, eager = torch.nn.functional.gelu(x.double()), torch.nn.functional.gelu(x)
    finite = exact.isfinite()
    assert got[-2].isnan()
    assert got[-3] == math.inf
    error = (got.double() - exact)[finite].abs().max()
    assert error <= 1.1 * (eager.double() - exact)[finite].abs().max()
    assert (got.double() - exact)[finite].square().mean() <= 1.1 * (eager.double() - exact)[finite].square().mean()


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("simd", ["avx2", "avx512", "neon"])
def test_torch_has_the_functions_that_are_called(simd, width):
    if (simd == "neon") != (platform.machine() in ("arm64", "aarch64")):
        pytest.skip("another architecture")
    target = detect(Config(simd=simd))
    if width > target.vector_bytes:
        pytest.skip("wider than registers")
    unit, torch_cpu = Unit(target), ctypes.CDLL("libtorch_cpu.so")
    for name in SLEEF.values():
        for lane, nbytes in (("f32", 4), ("f64", 8)):
            unit.library(name, lane, width // nbytes, 1)
    assert [f for f in unit.functions if not hasattr(torch_cpu, f)] == []
