"""Few parts of a concatenation are read where they are used, in place of being stored by a launch each."""

import pytest
import torch
from interpreted import AVAILABLE

if AVAILABLE:
    from tile_agree import for_a_card, launches

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no triton")


def check(fn, *inputs):
    """How many kernels a function is, whose results are eager's."""
    made, results = for_a_card(fn, *inputs)
    for a, b in zip(results, [fn(*inputs)], strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b)
    return launches(made)


def turned(x, c, s):
    half = x.shape[-1] // 2
    return x * c + torch.cat((-x[..., half:], x[..., :half]), -1) * s


def test_halves_that_change_places_are_no_kernel():
    assert check(turned, torch.randn(2, 3, 5, 8), torch.randn(5, 8), torch.randn(5, 8)) == 1


@pytest.mark.parametrize(("parts", "kernels"), [(2, 1), (3, 1), (4, 1), (6, 6)])
def test_many_parts_are_stored_each(parts, kernels):
    x, y = torch.randn(3, 9), torch.randn(3, 1)
    assert check(lambda x, y: torch.cat([x[:, k:] * k + y for k in range(parts)], 1), x, y) == kernels


def test_parts_of_other_types():
    x, y = torch.randn(3, 9), torch.randn(3, 9)
    check(lambda x, y: torch.cat([x > 0, y > 0, x == y], 0), x, y)
    check(lambda x, y: torch.cat([x.long(), y.int().long()], -1).sum(-1), x, y)
    check(lambda x, y: torch.cat([x.half(), y], -1).amax(0), x, y)
