"""A graph compiled under `sdpa_kernel` was taken from the cache under another: its kernels, and a GPU's dropout, were the first's."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from firebrick.trace import graph_key
from firebrick.trace.graph_key import state_text

ORDER = [1, 2, 0, 3, 4]


def test_states_differ_by_the_attention_kernels_that_are_allowed():
    texts = {state_text(False)}
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        with sdpa_kernel(kernel):
            texts.add(state_text(False))
    assert len(texts) == 4


@pytest.fixture
def order(monkeypatch):
    """The order of kernels on a card for which torch changes it when it first chooses one."""
    now = [*ORDER]
    monkeypatch.setattr(torch._C, "_get_sdp_priority_order", lambda: [*now])
    monkeypatch.setattr(torch, "empty", lambda *shape, device, **kw: torch.zeros(shape))
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda q, k, v: now.__setitem__(slice(None), [3, 1, 2, 0, 4]))
    graph_key._choose.cache_clear()
    yield now
    graph_key._choose.cache_clear()


def test_the_order_that_torch_changes_itself_is_no_other_state(order):
    """A file that `save` wrote was refused in a process that had not used attention yet."""
    before = state_text(True)
    assert state_text(True) == before and "[3, 1, 2, 0, 4]" in before
    order[:] = ORDER  # a user's, from now on
    assert state_text(True) != before


def test_a_program_of_the_cpu_has_no_order(order):
    before = state_text(False)
    torch._fused_sdp_choice(None, None, None)
    assert state_text(False) == before
