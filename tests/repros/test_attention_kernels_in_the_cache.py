"""A graph compiled under `sdpa_kernel` was taken from the cache under another: its kernels, and a GPU's dropout, were the first's."""

from torch.nn.attention import SDPBackend, sdpa_kernel

from firebrick.trace.graph_key import state_text


def test_states_differ_by_the_attention_kernels_that_are_allowed():
    texts = {state_text()}
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        with sdpa_kernel(kernel):
            texts.add(state_text())
    assert len(texts) == 4
