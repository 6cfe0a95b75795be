"""Our kernel of attention is eager mode's, also beside numbers that are none; what is hidden from a block is left out."""

import ctypes
import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import firebrick
from firebrick.config import Config
from firebrick.targets.cpu.attention_kernel import Attention
from firebrick.targets.cpu.cpu_target import detect
from firebrick.targets.cpu.matmul_probe import probe_libraries
from firebrick.targets.cpu.unit_writer import Unit
from firebrick.targets.cpu.units import unit_text

pytestmark = pytest.mark.compiler
SHAPES = [(1, 2, 100, 100, 64), (2, 3, 33, 70, 32), (1, 2, 5, 300, 128), (1, 1, 530, 530, 96), (1, 2, 1, 40, 32)]


def lower(rows, keys, value=-math.inf):
    return torch.full((rows, keys), value).triu(1)


def padded(batch, keys):
    mask = torch.zeros(batch, 1, 1, keys)
    mask[-1, ..., keys // 3 :] = -math.inf
    return mask


def kernel(sizes, mask=None, causal=False, target=None, half=False):
    """A call of the kernel on tensors whose heads lie inside: (q, k, v) -> out."""
    batch, heads, rows, keys, size = sizes
    target = target or detect(Config.from_env())
    if not target.vector_bytes:
        pytest.skip("no vectors")
    lies = [(0, n * heads * size, size, heads * size) for n in (rows, keys, keys, rows)]
    hides = (-1, 0, 0, 0)
    if mask is not None:
        steps = [0 if n == 1 else s for n, s in zip(mask.shape, mask.stride(), strict=True)]
        hides = (0, *[0, 0, *steps][-4:-1])
    unit, shape = Unit(target), Attention(sizes, (*lies, hides), size**-0.5, causal, half)
    (library,) = probe_libraries(
        target, Config.from_env(), (unit_text(unit, [shape.text(unit, "attend")]), ("attend",))
    )
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.symbol("attend"))

    def run(*tensors):
        out = torch.empty_like(tensors[0])
        every = [t for t in (*tensors, mask, out) if t is not None]
        call((ctypes.c_void_p * len(every))(*(t.data_ptr() for t in every)), None)
        return library and out

    return run


def drawn(sizes):
    batch, heads, rows, keys, size = sizes
    return [torch.randn(batch, n, heads, size).transpose(1, 2) for n in (rows, keys, keys)]


def same(ours, eager):
    assert torch.equal(torch.isfinite(ours), torch.isfinite(eager))
    number = torch.isfinite(eager)
    torch.testing.assert_close(ours[number], eager[number], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["none", "causal", "lower", "least", "random", "padded", "hidden"])
def test_attention_is_eager_modes(sizes, kind):
    batch, _, rows, keys, _ = sizes
    mask = {
        "lower": lower(rows, keys), "least": lower(rows, keys, torch.finfo().min), "random": torch.randn(rows, keys),
        "padded": padded(batch, keys), "hidden": lower(rows, keys).index_fill_(0, torch.tensor([rows // 2]), -math.inf),
    }.get(kind)  # fmt: skip
    q, k, v = drawn(sizes)
    run = kernel(sizes, mask, kind == "causal")
    same(run(q, k, v), F.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal"))
    for which, value, place in itertools.product((0, 1, 2), (math.nan, math.inf, 3e38), (0, keys // 2, keys - 1)):
        tensors = [t.clone() for t in (q, k, v)]
        tensors[which][0, 0, min(place, tensors[which].shape[2] - 1), 3] = value
        same(run(*tensors), F.scaled_dot_product_attention(*tensors, mask, is_causal=kind == "causal"))


@pytest.mark.parametrize("simd", ["avx2", "auto"])
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["none", "causal", "random", "padded"])
def test_attention_of_bfloat16_is_float32s_rounded_once(sizes, kind, simd):
    batch, _, rows, keys, _ = sizes
    mask = {"random": torch.randn(rows, keys).bfloat16(), "padded": padded(batch, keys).bfloat16()}.get(kind)
    q, k, v = (t.bfloat16() for t in drawn(sizes))
    target = detect(Config.from_env().with_options({"simd": simd}))
    out = kernel(sizes, mask, kind == "causal", target, half=True)(q, k, v)
    wide = [t if t is None else t.double() for t in (q, k, v, mask)]
    exact = F.scaled_dot_product_attention(*wide, is_causal=kind == "causal")
    assert ((out - exact).abs() <= 2**-8 * exact.abs() + 1e-5).all()


def test_number_of_threads_changes_no_bit():
    sizes = (1, 3, 300, 300, 64)
    tensors, target = drawn(sizes), detect(Config.from_env())
    first, *others = (kernel(sizes, None, True, replace(target, threads=n))(*tensors) for n in (1, 3, 16))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize(
    ("simd", "dtype"), [("avx2", torch.float32), ("auto", torch.float32), ("avx2", torch.bfloat16)]
)
@pytest.mark.parametrize("lies", ["heads inside", "heads outside"])
@pytest.mark.parametrize("masked", ["none", "bool", "float", "causal"])
def test_graphs_take_the_kernel(simd, dtype, lies, masked, tmp_path, caplog):
    q, k, v = (t.to(dtype) for t in drawn((2, 3, 24, 40, 32)))
    if lies == "heads outside":
        q, k, v = (t.contiguous() for t in (q, k, v))
    mask = {"bool": torch.rand(2, 1, 24, 40) > 0.3, "float": torch.randn(24, 40, dtype=dtype)}.get(masked)

    def attend(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=masked == "causal", scale=0.3)

    options = {"cache_dir": tmp_path, "simd": simd, "measure": False, "debug": "aten"}
    with torch.no_grad():
        results, wanted = firebrick.compile(attend, options=options)(q, k, v, mask), attend(q, k, v, mask)
    close = {"atol": 1e-2, "rtol": 1e-2} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(results, wanted, **close)
    assert results.stride() == wanted.stride()
    assert "firebrick.attention" in caplog.text


@pytest.mark.parametrize("shape", [(1, 2, 8, 24), (1, 2, 8, 256)], ids=["odd", "wide"])
def test_other_sizes_stay_the_librarys(shape):
    q = torch.randn(shape)
    with torch.no_grad():
        run = firebrick.compile(lambda q: F.scaled_dot_product_attention(q, q, q), options={"measure": False})
        torch.testing.assert_close(run(q), F.scaled_dot_product_attention(q, q, q))


@pytest.mark.parametrize("masked", [False, True])
def test_sizes_that_are_symbols_take_the_kernel(masked, caplog):
    layer = torch.nn.Linear(96, 3 * 96)

    def attend(x):
        (batch, n, _), mask = x.shape, None
        q, k, v = layer(x).view(batch, n, 3, 3, 32).permute(2, 0, 3, 1, 4)
        if masked:
            place = torch.arange(n)
            mask = torch.where(place[None] <= place[:, None], 0.0, -math.inf)
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=not masked).transpose(1, 2).reshape(x.shape)

    with torch.no_grad():
        run = firebrick.compile(attend, options={"measure": False, "debug": "aten"}, dynamic=True)
        for shape in ((2, 40), (1, 70), (3, 300), (2, 33), (1, 1)):
            x = torch.randn(*shape, 96)
            torch.testing.assert_close(run(x), attend(x), atol=1e-5, rtol=1e-5)
    assert caplog.text.count("firebrick.attention(") == 1
