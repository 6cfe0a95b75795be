"""A module that is converted after a compile raised ConstantsChanged, or ran on with what its old dtype had decided."""

import pytest
import torch

import firebrick

pytestmark = pytest.mark.compiler


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.arange(12.0).reshape(4, 3))

    def forward(self, index):
        return torch.nn.functional.embedding(index, self.table) * 2


@pytest.mark.parametrize("backend", ["eager", "firebrick"])
def test_module_that_is_converted(backend):
    firebrick.reset()
    net, index = Net(), torch.tensor([1, 3])
    compiled = firebrick.compile(net, backend=backend)
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
            net.to(dtype)
            for _ in range(2):
                result = compiled(index)
                assert result.dtype is dtype
                assert torch.equal(result, net(index))
    assert sum(firebrick.stats()["reasons"]["recompile"].values()) >= 2
    firebrick.reset()
