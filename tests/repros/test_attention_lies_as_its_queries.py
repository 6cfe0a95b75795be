"""Our attention said that its results lie as one of ATen's ways through a mask has them; they lie as its queries."""

import torch

import firebrick
from firebrick.ir.operators.linear_op import attention_op


def test_results_lie_as_atens_kernel_leaves_them():
    k, v = torch.randn(2, 3, 8, 4), torch.randn(2, 3, 8, 4)
    for q in (
        k * 2,
        torch.randn(2, 8, 3, 4).transpose(1, 2),
        torch.randn(2, 8, 36)[..., :12].view(2, 8, 3, 4).transpose(1, 2),
    ):
        for mask in (None, torch.zeros(8, 8), torch.zeros(2, 1, 8, 8)):
            out = attention_op(q, k, v, mask, 0.5, mask is None)
            aten = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
            want = aten(q, k, v, 0.0, mask is None, attn_mask=mask, scale=0.5)[0]
            torch.testing.assert_close(out, want)
            assert out.stride() == want.stride()


def test_layouts_are_checked_behind_a_mask_of_numbers():
    def attend(q, k, v, mask):
        return (torch.nn.functional.scaled_dot_product_attention(q, k, v, mask) + 1).transpose(1, 2).flatten(2) * 2

    q, k, v = (torch.randn(1, 12, 128, 64) for _ in range(3))
    mask = torch.zeros(1, 1, 128, 128).masked_fill(torch.rand(1, 1, 1, 128) > 0.7, -1e9)
    with torch.no_grad():
        got = firebrick.compile(attend, options={"check": "ir"})(q, k, v, mask)
    torch.testing.assert_close(got, attend(q, k, v, mask), atol=1e-4, rtol=1e-4)
