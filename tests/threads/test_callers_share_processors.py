"""Several Python threads in kernels at once compute what one thread computes."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import firebrick

pytestmark = pytest.mark.compiler


def test_models_called_from_many_threads_give_equal_bits():
    torch.manual_seed(0)
    models = [
        nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.LayerNorm(256), nn.Softmax(-1)).eval()
        for _ in range(3)
    ]
    with torch.no_grad():
        runs = [firebrick.compile(model, options={"measure": True}) for model in models]
        inputs = [torch.randn(64, 256) for _ in range(4)]
        wanted = {(m, i): runs[m](x).clone() for m in range(3) for i, x in enumerate(inputs)}

    def call(number):
        m, i = number % 3, number % 4
        with torch.no_grad():
            return torch.equal(runs[m](inputs[i]), wanted[m, i])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(240)))
