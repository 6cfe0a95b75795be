"""libgomp ends the threads that a team has fewer than the one before it, and makes them anew for the next larger one:
teams as small as a kernel's parts cost as much as the kernels."""

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick

LIMIT = 4


def threads_of_the_process():
    return set(os.listdir("/proc/self/task"))


@pytest.mark.compiler
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts the threads of a process")
def test_teams_of_one_size():
    wide, few, sequence = torch.randn(64, 4096), torch.randn(2, 1 << 17), torch.randn(8, 2, 64)
    layer, lstm, before = nn.Linear(4096, 256), nn.LSTM(64, 64), torch.get_num_threads()

    def f(x, y, sequence):
        return F.relu(layer(x)), y.exp().sum(1), lstm(sequence)[0], x.sin()

    torch.set_num_threads(LIMIT)
    try:
        with torch.no_grad():
            run = firebrick.compile(f, options={"threads": LIMIT, "measure": False})
            for result, wanted in zip(run(wide, few, sequence), f(wide, few, sequence), strict=True):
                torch.testing.assert_close(result, wanted, atol=1e-3, rtol=1e-3)
            for _ in range(10):  # a thread that has called a few times gives its team back
                run(wide, few, sequence)
            threads = threads_of_the_process()
            for _ in range(5):
                run(wide, few, sequence)
                wide.mul(2)
        assert threads_of_the_process() <= threads
    finally:
        torch.set_num_threads(before)
