"""Bags of embeddings in loops: modes, weights, an index that doesn't count, layouts and numbers that are none."""

import math

import pytest
import torch
import torch.nn.functional as F
from agree import agree, calls

import firebrick

pytestmark = pytest.mark.compiler

MODES = ("sum", "mean", "max")


def rand(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def places(*shape, high=20):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(6))


def bag(mode, **kwargs):
    return lambda i, w: F.embedding_bag(i, w, mode=mode, **kwargs)


TABLES = {
    "whole": rand(20, 70),
    "narrow": rand(20, 3),
    "one column": rand(20, 1),
    "transposed": rand(33, 20).t(),
    "strided": rand(20, 64)[:, ::2],
    "every other row": rand(40, 33)[::2],
}


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TABLES)
def test_tables(name, mode, padding):
    fn = bag(mode, padding_idx=padding)
    assert calls(agree(fn, places(9, 7), TABLES[name], tolerance=1e-6)) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype, mode):
    for padding in (None, 3):
        table, index = rand(20, 33).to(dtype), places(9, 7)
        fn = bag(mode, padding_idx=padding)
        assert calls(agree(fn, index, table, exact=False, tolerance=1e-12)) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_error_is_at_most_eagers(dtype):
    table, index = rand(200, 64).to(dtype), places(50, 60, high=200)
    for mode in ("sum", "mean"):
        fn = bag(mode)
        wide = fn(index, table.double())
        made = firebrick.compile(fn)(index, table)
        assert (made - wide).abs().max() <= 1.1 * (fn(index, table) - wide).abs().max()


def test_weights():
    fn = lambda i, w, p: F.embedding_bag(i, w, mode="sum", per_sample_weights=p)  # noqa: E731
    assert calls(agree(fn, places(9, 7), rand(20, 33), rand(9, 7), tolerance=1e-6)) == []
    assert calls(agree(fn, places(9, 7), rand(20, 33), rand(7, 9).t(), tolerance=1e-6)) == []
    double = lambda i, w, p: F.embedding_bag(i, w, mode="sum", per_sample_weights=p.cos() * 2, padding_idx=1)  # noqa: E731
    assert calls(agree(double, places(9, 7), rand(20, 33), rand(9, 7), tolerance=1e-6)) == []


INDICES = {
    "int32": places(9, 7).int(),
    "one of one": places(1, 1),
    "one bag": places(1, 50),
    "transposed": places(7, 9).t(),
    "strided": places(9, 14)[:, ::2],
    "none counts": torch.full((4, 3), 3),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", INDICES)
def test_indices(name, mode):
    fn = bag(mode, padding_idx=3)
    assert calls(agree(fn, INDICES[name], rand(20, 33), tolerance=1e-6)) == []


def test_offsets_that_are_known():
    def fn(i, w):
        offsets = torch.arange(0, 61, 6)
        return F.embedding_bag(i, w, offsets[:-1], mode="mean"), F.embedding_bag(
            i, w, offsets, mode="mean", include_last_offset=True
        )

    assert calls(agree(fn, places(60), rand(20, 8), tolerance=1e-6)) == []


def test_offsets_from_data_are_left_to_the_library():
    fn = lambda i, w, o: F.embedding_bag(i, w, o, mode="sum") * 2  # noqa: E731
    made = agree(fn, places(60), rand(20, 8), torch.tensor([0, 6, 6, 31]), tolerance=1e-6)
    assert calls(made) == ["aten::_embedding_bag_forward_only"]


def test_numbers_that_are_none():
    nan, inf = math.nan, math.inf
    table = torch.tensor([[1.0, nan], [nan, 2.0], [3.0, 3.0], [nan, nan], [-inf, -inf], [inf, nan]])
    index = torch.cartesian_prod(*[torch.arange(6)] * 3)
    for mode in MODES:
        for padding in (None, 3):
            agree(bag(mode, padding_idx=padding), index, table, exact=False)


@pytest.mark.parametrize("mode", MODES)
def test_an_index_outside_raises(mode):
    fn = bag(mode)
    made = firebrick.compile(fn)
    made(places(2, 2), rand(20, 8))
    for index in (20, -1):
        with pytest.raises(RuntimeError, match=f"(takes value|found idx to be) {index}"):
            made(torch.tensor([[1, index], [0, 0]]), rand(20, 8))


def test_gradients_are_eagers():
    index = places(9, 7)
    tables = [rand(20, 33).requires_grad_() for _ in range(2)]
    for table, fn in zip(tables, (bag("mean"), firebrick.compile(bag("mean"))), strict=True):
        fn(index, table).sin().sum().backward()
    torch.testing.assert_close(tables[0].grad, tables[1].grad)
