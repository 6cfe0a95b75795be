"""Compiled calls within a parallel region are no teams of their own: each thread of the region computes all."""

import ctypes
import os
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick

pytestmark = pytest.mark.compiler
TEAM = 4


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts the threads of a process")
def test_calls_of_the_threads_of_a_team():
    wide, few, sequence = torch.randn(64, 4096), torch.randn(2, 1 << 17), torch.randn(8, 2, 64)
    layer, lstm, before = nn.Linear(4096, 256), nn.LSTM(64, 64), torch.get_num_threads()
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))  # its calls release the GIL

    def f(x, y, sequence):
        return F.relu(layer(x)), y.exp().sum(1), y.sum(), lstm(sequence)[0], x.sin()

    equal = {}

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def one_thread(_):
        with torch.no_grad():
            results = run(wide, few, sequence)
        same = all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))
        equal.setdefault(threading.get_ident(), []).append((same, torch.get_num_threads()))

    torch.set_num_threads(TEAM)
    try:
        with torch.no_grad():
            run = firebrick.compile(f, options={"threads": TEAM})
            wanted = run(wide, few, sequence)
        threads = set(os.listdir("/proc/self/task"))
        for _ in range(3):
            library.GOMP_parallel(one_thread, None, TEAM, 0)
        assert set(os.listdir("/proc/self/task")) <= threads
    finally:
        torch.set_num_threads(before)
    assert list(equal.values()) == [[(True, TEAM)] * 3] * TEAM


def test_a_limit_that_is_set_between_calls():
    seen, limits = [], [1, 3, 2, 5]

    @torch.library.custom_op("firebrick_tests::limit_in", mutates_args=())
    def limit_in(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return x.clone()

    limit_in.register_fake(torch.empty_like)
    run, x = firebrick.compile(lambda x: limit_in(x.sin()).cos().sum(0)), torch.randn(1 << 12, 64)
    before = torch.get_num_threads()
    try:
        wanted = run(x).clone()
        seen.clear()
        for limit in limits:
            torch.set_num_threads(limit)
            assert torch.equal(run(x), wanted)
            assert torch.get_num_threads() == limit
    finally:
        torch.set_num_threads(before)
    assert seen == limits
