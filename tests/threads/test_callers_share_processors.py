"""Several Python threads in kernels at once share OpenMP's threads, and compute what one thread computes."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import firebrick

pytestmark = pytest.mark.compiler


def workers_of_a_new_thread(run, x):
    """How many threads a call from a new thread of Python adds to the process, while that thread lives."""
    counted = []

    def client():
        before = len(os.listdir("/proc/self/task"))
        with torch.no_grad():
            run(x)
        counted.append(len(os.listdir("/proc/self/task")) - before)

    thread = threading.Thread(target=client)
    thread.start()
    thread.join()
    return counted[0]


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="no list of threads")
def test_a_caller_beside_another_takes_no_more_than_its_share():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run = firebrick.compile(lambda x: (x.sin().exp() + x.cos().log1p()).tanh(), dynamic=True)
        large, small = torch.rand(1 << 27), torch.rand(1 << 20)
        with torch.no_grad():
            run(small)
            assert workers_of_a_new_thread(run, small) == 1
            busy = threading.Thread(target=run, args=(large,))
            busy.start()
            shared = workers_of_a_new_thread(run, small)
            assert busy.is_alive(), "the long call was over too early to tell"
            busy.join()
            assert workers_of_a_new_thread(run, small) == 1
        assert shared <= 1  # the long call's own worker may have begun meanwhile
    finally:
        torch.set_num_threads(threads)


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
