"""torch's decomposition of addcmul refuses a fraction for whole numbers, which eager takes."""

import torch
from same import same


def test_addcmul_of_whole_numbers():
    same(lambda x: torch.addcmul(x, x, x, value=0.5), torch.arange(5))
