"""What was compiled for one GPU names it, so a graph on another one was given an artifact that refused its tensors."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from firebrick.trace.graph_key import metas_text


def test_a_graph_on_another_gpu_has_a_key_of_its_own():
    with FakeTensorMode():
        first, second = (torch.empty(3, device=f"cuda:{i}") for i in range(2))
    assert metas_text([first]) != metas_text([second])
    assert metas_text([torch.empty(3)]) == metas_text([torch.empty(3)])
