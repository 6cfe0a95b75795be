"""What random programs of tensor operations found in views, layouts and writes; all but the first were silently wrong.

- a tensor that takes another shape in place after an op of several results was stored with its new strides;
- `as_strided` of a written argument that begins inside of its storage read elsewhere, and a write through it was lost;
- bilinear upsampling of uint8 differed by one; the nearest one of rows had the layout of its argument, so that a later
  `flatten` was a copy where eager has a view.
"""

import pytest
import torch
import torch.nn.functional as F

import firebrick


def compare(function, *tensors):
    """Results, what is written, and layouts; arguments begin inside of their storages."""

    def inside(t):
        memory = torch.zeros(t.untyped_storage().nbytes() // t.element_size() + 7, dtype=t.dtype)
        made = memory.as_strided(t.shape, t.stride(), 5)
        made.copy_(t)
        return memory, made

    plain, ours = [inside(t) for t in tensors], [inside(t) for t in tensors]
    compiled = firebrick.compile(function, options={"cache": False, "strict": True})
    found, wanted = compiled(*(t for _, t in ours)), function(*(t for _, t in plain))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
    for (a, _), (b, _) in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b)


def test_a_new_view_in_place_of_one_of_several_results():
    def call(x):
        y = F.layer_norm(x, x.shape[-1:])
        y.swapaxes_(0, -1)
        largest, places = x.max(0)
        places.unsqueeze_(0)
        return y, torch.tensor_split(y, 2, -2)[1], largest, places

    compare(call, torch.randn(1, 3))


def test_as_strided_of_what_was_written():
    def call(x, z):
        x.view(4, 2, 1).neg_()
        seen = torch.as_strided(x, (2,), (1,)) * 1
        z.diagonal().fill_(3)
        part = torch.as_strided(z, (2,), (2,))
        part.exp_()
        return seen, part * 1, z * 2

    compare(call, torch.randn(8), torch.randn(7, 3, 3))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
def test_upsampled_rows_are_contiguous(mode):
    def call(x):
        y = F.interpolate(x, scale_factor=2, mode=mode)
        y.flatten().mul_(2)
        return (y,)

    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0)):
        compare(call, torch.randn(3, 4, 5).permute(order))


def test_bilinear_upsampling_of_bytes():
    x = torch.randint(0, 255, (2, 3, 7, 9), dtype=torch.uint8)
    compare(lambda t: (F.interpolate(t, scale_factor=2, mode="bilinear"),), x)


def test_linear_upsampling_between_infinities_is_infinite():
    x = torch.tensor([1.0, float("inf"), float("inf"), 2.0, -float("inf"), -float("inf")]).reshape(1, 1, 2, 3)
    for mode in ("bilinear", "linear"):
        given = x if mode == "bilinear" else x.flatten(2)
        found = firebrick.compile(lambda t, m=mode: F.interpolate(t, scale_factor=2, mode=m), options={"cache": False})(
            given
        )
        torch.testing.assert_close(found, F.interpolate(given, scale_factor=2, mode=mode), equal_nan=True)
