"""Results of these ops lay otherwise than eager's, so that a later `flatten` was a copy here and a view there."""

import pytest
import torch
from torch.nn import functional as F

import firebrick
from firebrick.fakes import mode

aten = torch.ops.aten


def turned(*shape, dtype=torch.float32):
    """The last dimension outermost."""
    numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape[-1], *shape[:-1])
    return (numbers / 7 + 1).to(dtype).movedim(0, -1)


def image(*shape):
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    return torch.linspace(-2, 2, torch.Size(shape).numel()).reshape(shape).contiguous(memory_format=layout)


def expanded(*shape, dtype=torch.float32):
    return turned(shape[0], 1, shape[2], dtype=dtype).expand(shape)


ROW = torch.tensor([0.5, 1.0, 2.0])
STATS = (torch.zeros(3), torch.ones(3))
ONE_PIXEL_WIDE = torch.arange(64.0).as_strided((1, 8, 8, 1), (1, 1, 8, 64))
CASES = {
    "logaddexp": (torch.logaddexp, ROW, turned(17, 2, 3)),
    "logaddexp2": (torch.logaddexp2, ROW, turned(17, 2, 3)),
    "xlogy": (torch.xlogy, turned(5, 4, 3), ROW),
    "xlog1py": (torch.special.xlog1py, turned(5, 4, 3), ROW),
    "huber_loss": (lambda a, b: F.huber_loss(a, b, reduction="none"), ROW.expand(5, 4, 3), turned(5, 4, 3)),
    "binary_cross_entropy": (
        lambda a, b: F.binary_cross_entropy(a / 99, b / 99, reduction="none"),
        turned(3, 5),
        turned(5, 3).t(),
    ),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), torch.arange(40.0).view(1, 8, 5).mT),
    "heaviside": (torch.heaviside, ROW, turned(17, 2, 3) - 2),
    "pow of a number": (lambda x: 2.0**x, turned(5, 4)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), image(2, 4, 3, 5)),
    "eig": (lambda x: torch.linalg.eig(x)[1], turned(4, 4)),
    "nll_loss": (lambda x: F.nll_loss(x, torch.ones(2, 4, 5).long().mT, reduction="none"), turned(2, 3, 5, 4)),
    "normal": (lambda x: torch.normal(x, 0.0), turned(5, 4)),
    "ldexp": (torch.ldexp, expanded(5, 4, 3), turned(4, 3)),
    "max_pool1d by name": (
        lambda x: F.max_pool1d(input=x, kernel_size=2, padding=1, ceil_mode=True),
        torch.arange(40.0).view(1, 8, 5).mT,
    ),
    "one_hot": (lambda x: F.one_hot(x, 20), turned(3, 5, dtype=torch.int64)),
    "igamma": (torch.igamma, expanded(5, 4, 3, dtype=torch.bfloat16), turned(4, 3, dtype=torch.bfloat16)),
    "complex": (torch.complex, expanded(5, 4, 3), turned(4, 3)),
    "polar": (torch.polar, expanded(5, 4, 3), turned(4, 3)),
    "whole numbers": (torch.div, expanded(5, 4, 3, dtype=torch.int64), turned(4, 3, dtype=torch.int64) + 1),
    "a wider type": (torch.add, expanded(5, 4, 3, dtype=torch.float16), turned(4, 3)),
    "where": (lambda a, b: torch.where(b > 1, a, b), expanded(5, 4, 3, dtype=torch.float16), turned(5, 4, 3)),
    "rsub": (torch.rsub, expanded(5, 4, 3, dtype=torch.int64), turned(4, 3)),
    "dropout_backward": (lambda g: aten.native_dropout_backward(g, g > 1, 2.0), turned(5, 4, 3, 2)),
    "index_fill": (lambda x: x.index_fill(0, torch.tensor([1]), 3.0), turned(5, 8)[:, ::2]),
    "index_fill by a tensor": (
        lambda x, v: x.index_fill(0, torch.tensor([1]), v),
        turned(5, 8)[:, ::2],
        torch.tensor(3.0),
    ),
    "reflection_pad": (lambda x: F.pad(x, (1, 1, 1, 0), mode="reflect"), image(2, 3, 4, 5)),
    "replication_pad": (lambda x: F.pad(x, (1, 1, 0, 9, 1, 1), mode="replicate"), image(2, 3, 4, 5, 2)),
    "max_unpool": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), image(2, 3, 4, 6)),
    "max_unpool3d": (lambda x: F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), 2), image(2, 3, 4, 6, 4)),
    "batch_norm": (lambda x, m, v: F.batch_norm(x, m, v), turned(2, 3, 4, 5), *STATS),
    "batch_norm in training": (lambda x: F.batch_norm(x, None, None, training=True), turned(2, 3, 4, 5)),
    "pool": (lambda x: F.adaptive_avg_pool2d(x, (5, 7)), ONE_PIXEL_WIDE),
    "stack": (lambda x: torch.stack([x, x]), ONE_PIXEL_WIDE),
    "svd": (lambda x: torch.linalg.svd(x)[2], turned(4, 4)),
    "irfft": (lambda x: torch.fft.irfft(x, dim=1), turned(5, 6, 7)),
    "rfft": (lambda x: torch.fft.rfftn(x), turned(5, 6, 7)),
    "nonzero_static": (lambda x: torch.nonzero_static(x, size=3), turned(5, 6, 7)),
}
"""Name -> (function, arguments)."""


@pytest.mark.parametrize("name", CASES)
def test_they_lie_as_eagers(name):
    function, *args = CASES[name]
    wanted, got = function(*args), firebrick.compile(function)(*args)
    assert got.stride() == wanted.stride()
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("op", [torch.logaddexp, torch.logaddexp2])
def test_a_view_of_the_result_is_one(op):
    def double(a, b):
        y = op(b, a)
        y.flatten().mul_(2)
        return y

    args = turned(17, 1, 3), ROW
    torch.testing.assert_close(firebrick.compile(double)(*args), double(*args))


@pytest.mark.parametrize("op", [torch.logaddexp, torch.logaddexp2])
def test_whole_numbers_are_refused(op):
    whole = torch.arange(6)
    with pytest.raises(NotImplementedError):
        op(whole, whole)
    with pytest.raises(NotImplementedError):
        firebrick.compile(lambda x: op(x, x))(whole)


def test_a_kernel_is_asked_on_memory_that_begins_as_far_in():
    """cuFFT copies numbers that begin at an odd place: the result's dimensions then lie as in a contiguous tensor."""
    x = torch.zeros(600, dtype=torch.float16).as_strided((2, 8, 16), (17, 2, 34), 33)
    asked = mode._zeros(x)
    assert (asked.shape, asked.stride(), asked.storage_offset()) == (x.shape, x.stride(), 1)
