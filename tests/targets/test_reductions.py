"""Reductions as generated code: special values, ties, tails, threads, and the error of long sums beside eager's."""

import ctypes
import math
import mmap

import pytest
import torch
from graphs import HOST, trace
from machine import Runner

import firebrick
from firebrick.config import Config
from firebrick.lower import lower

pytestmark = pytest.mark.compiler


def compiled(fn, *inputs, **options):
    aten = trace(fn, inputs)
    return Runner(lower(aten, HOST, Config()), Config(**options))([x.clone() for x in inputs], aten.constants)


def test_nan_and_infinity(simd):
    x = torch.randn(6, 67)
    x[0, 5] = math.nan
    x[1, 66] = math.nan
    x[2] = -math.inf
    x[3, 0] = math.inf
    x[4] = math.nan

    def fn(x):
        return (
            x.amax(-1),
            x.amin(-1),
            x.argmax(-1),
            x.argmin(-1),
            x.sum(-1),
            (x > 0).any(-1),
            (x == x).all(-1),
            x.amax(0),
        )

    for want, got in zip(fn(x), compiled(fn, x, simd=simd), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8])
def test_first_of_equals_wins(dtype):
    x = torch.randint(0, 3, (40, 53)).to(dtype)

    def fn(x):
        return x.argmax(-1), x.argmin(0), x.argmax(), x.t().argmax(-1)

    for want, got in zip(fn(x), compiled(fn, x), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("shape", [(1_000_003,), (7, 50257), (30000, 20)])
def test_long_sums_are_as_exact_as_eager_within_two_units_in_the_last_place(shape):
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    exact = x.double()

    def fn(x):
        return x.sum(), x.sum(0), x.mean(-1)

    for want, eager, got in zip(fn(exact), fn(x), compiled(fn, x), strict=True):
        error = (got.double() - want).abs().max() / want.abs().max()
        # two units in the last place: which of the two rounds luckier depends on the numbers
        assert error <= 1.1 * (eager.double() - want).abs().max() / want.abs().max() + 2.4e-7


def test_result_does_not_depend_on_threads():
    x = torch.randn(1_000_003)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(compiled(lambda x: (x.sum(), (x * x).mean(), x.argmax()), x))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("size", range(1, 68, 6))
def test_every_tail(size):
    x = torch.randn(5, size)

    def fn(x):
        return torch.softmax(x, -1), torch.softmax(x, 0), x.sum(0), x.amax(1), x.t().contiguous()

    for want, got in zip(fn(x), compiled(fn, x), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_tails_reach_nothing_beyond_their_elements(dtype, simd):
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert not ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0)
    elements = mmap.PAGESIZE // dtype.itemsize

    def fn(x):
        total = x.sum(-1)
        x.add_(1)
        return total

    whole = torch.frombuffer(pages, dtype=dtype, count=elements)
    made = firebrick.compile(fn, options={"simd": simd})
    for size in (1, 3, 7, 13, 29, 61):
        for x in (whole[-size:], whole[-size - 64 :][:size]):
            whole.copy_(torch.arange(elements) % 50)
            want = x + 1
            behind = x.new_empty(0) if x.data_ptr() == whole[-size:].data_ptr() else whole[-64:].clone()
            torch.testing.assert_close(made(x), (want - 1).sum(-1), rtol=1e-2, atol=0)
            assert torch.equal(x, want)
            assert torch.equal(whole[len(whole) - len(behind) :], behind)
