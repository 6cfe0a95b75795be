"""Attention over short sequences is a kernel of our own; the library does the rest."""

import pytest
import torch
import torch.nn.functional as F
from interpreted import AVAILABLE

from firebrick.config import Config

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no triton")

if AVAILABLE:
    from groups import CARDS, CudaTarget, schedule
    from test_cubins import cubins
    from tile_agree import agree, calls, decompositions, launches, lower, planned, trace

aten = torch.ops.aten
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2}


def packed(batch, length, heads, width, dtype):
    torch.manual_seed(length)
    return torch.randn(batch, length, 3 * heads * width).to(dtype)


def attend(x, heads, mask=None, **named):
    """Attention as models have it: views of one projection, and rows of heads side by side."""
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in x.chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v, mask, **named).transpose(1, 2).flatten(2)


def is_ours(schedule):
    return [s.kernel.partition("_")[2] for s in schedule.steps if hasattr(s, "kernel")] == ["attention"]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("batch", "length", "heads", "width"),
    [(1, 128, 2, 64), (2, 197, 2, 24), (1, 16, 3, 128), (2, 1, 2, 64), (40, 70, 4, 16), (1, 300, 1, 80)],
)
def test_attention_agrees(dtype, batch, length, heads, width):
    x = packed(batch, length, heads, width, dtype)
    for named in ({}, {"is_causal": True}, {"scale": 0.3}):
        schedule = agree(lambda x: attend(x, heads, **named), x, tolerance=TOLERANCE[dtype])  # noqa: B023
        assert is_ours(schedule) and launches(schedule) == 1 and not calls(schedule)


@pytest.mark.parametrize("length", [48, 200])
def test_masks(length):
    x = packed(2, length, 3, 32, torch.float16)
    padding = torch.zeros(2, 1, 1, length).half()
    padding[0, ..., -5:] = -torch.inf
    bias = torch.randn(1, 3, length, length).half()
    nothing_seen = torch.zeros(2, 1, length, length).half()
    nothing_seen[:, :, 3] = -torch.inf
    for mask in (padding.expand(2, 1, length, length), bias, nothing_seen):
        assert is_ours(agree(lambda x, m: attend(x, 3, m), x, mask, tolerance=2e-3))
    see = (torch.rand(2, 1, length, length) > 0.3) | torch.eye(length, dtype=torch.bool)
    assert not calls(agree(lambda x, m: attend(x, 3, m), x, see, tolerance=2e-3))


def test_other_keys_than_queries():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, n, 32).bfloat16() for n in (5, 150, 150))
    assert is_ours(agree(F.scaled_dot_product_attention, q, k, v, tolerance=2e-2))
    assert is_ours(agree(F.scaled_dot_product_attention, k, q, q, tolerance=2e-2))


def test_what_is_not_a_number_or_infinite_stays_so():
    x = packed(1, 140, 1, 16, torch.float16)
    x[0, 7, 3], x[0, 90, 40] = torch.nan, torch.inf
    assert is_ours(agree(lambda x: attend(x, 1), x, tolerance=2e-3))


CUDNN, EFFICIENT, FLASH = (
    getattr(aten, f"_scaled_dot_product_{name}_attention").default for name in ("cudnn", "efficient", "flash")
)


@pytest.mark.parametrize(
    ("fn", "ours"),
    [
        (lambda q, k, v: CUDNN(q, k, v, None, False)[0], True),
        (lambda q, k, v: CUDNN(q, k, v, q @ k.mT, False, scale=0.3)[0], True),
        (lambda q, k, v: EFFICIENT(q, k, v, None, False)[0], True),
        (lambda q, k, v: FLASH(q, k, v, 0.0, True)[0], True),
        (lambda q, k, v: FLASH(q, k[:, :2], v[:, :2])[0], True),
        (lambda q, k, v: FLASH(q, k, v)[:2], False),
        (lambda q, k, v: FLASH(q, k, v, 0.1)[0], False),
        (lambda q, k, v: FLASH(q, k[:, :, :9], v[:, :, :9], 0.0, True)[0], False),
        (lambda q, k, v: FLASH(*(t.repeat(1, 1, 6, 1) for t in (q, k, v)))[0], False),
        (lambda q, k, v: FLASH(*(t.repeat(1, 1, 1, 4) for t in (q, k, v)))[0], False),
        (lambda q, k, v: FLASH(*(t.repeat(40, 40, 1, 1) for t in (q, k, v)))[0], False),
    ],
    ids="cudnn bias efficient causal shared sums dropout rectangle long wide many".split(),
)
def test_which_calls_are_ours(fn, ours):
    inputs = [torch.randn(1, 4, 100, 64).half() for _ in range(3)]
    steps = [getattr(s, "kernel", "") or s.op for s in planned(fn, *inputs)[1].steps]
    assert any("attention" in s and "::" not in s for s in steps) == ours


def test_groups_of_heads_share_keys():
    q, k, v = (torch.randn(2, n, 40, 32).half() for n in (6, 2, 2))
    (text,) = planned(lambda q, k, v: FLASH(q, k, v)[0], q, k, v)[2]
    assert "head // 3" in text


def test_eager_numerics_leave_it_to_the_library():
    exact = CudaTarget(CARDS[90], exact=True)
    program = lower(
        trace(lambda x: attend(x, 2), [packed(1, 64, 2, 32, torch.half)], decompositions()), {"cpu": exact}, Config()
    )
    assert calls(schedule(program, {"cpu": exact}, Config()))


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(("length", "width"), [(1, 128), (128, 64), (197, 64), (512, 128)])
def test_attention_is_built(arch, length, width, tmp_path):
    for dtype in TOLERANCE:
        for named in ({}, {"is_causal": True}, {"mask": torch.zeros(length, dtype=dtype).expand(1, 4, length, length)}):
            x = packed(1, length, 4, width, dtype)
            assert cubins(lambda x: attend(x, 4, **named), x, arch=arch, folder=tmp_path)  # noqa: B023
