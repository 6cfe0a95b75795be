"""The order in which torch tries a GPU's kernels of attention."""

import functools

import torch


@functools.cache
def _choose() -> None:
    torch._fused_sdp_choice(q := torch.empty(1, 1, 8, 64, dtype=torch.float16, device="cuda"), q, q)


def attention_order() -> list[int]:
    """The order, behind torch's first choice in this process, at which it makes one that suits the card."""
    _choose()
    return torch._C._get_sdp_priority_order()
