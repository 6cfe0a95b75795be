"""Kernels keep the threads that they have: a team is as large as torch's limit, and calls side by side share it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import firebrick

pytestmark = pytest.mark.compiler
THREADS = 4


@pytest.fixture
def limit():
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield THREADS
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def watched():
    """An op that says how many threads it may use, once `wait` says so."""
    seen, waits = [], []

    @torch.library.custom_op("firebrick_tests::threads_here", mutates_args=())
    def threads_here(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        if waits:
            waits.pop(0)()
        return x.clone()

    threads_here.register_fake(torch.empty_like)
    return threads_here, seen, waits


def test_calls_side_by_side_share_the_processors(limit, watched):
    op, seen, waits = watched
    run = firebrick.compile(lambda x: op(x + 1) * 2)
    x = torch.ones(8)
    run(x)
    seen.clear()
    inside, leave, after = threading.Event(), threading.Event(), []

    def wait():
        inside.set()
        leave.wait(60)

    def other():
        run(x)
        after.append(torch.get_num_threads())

    waits.append(wait)
    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(60)
    run(x)
    leave.set()
    thread.join()
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert seen == [limit, min(limit, share)]
    assert after == [limit]
    assert torch.get_num_threads() == limit
    time.sleep(0.1)  # a caller that has left for long does not come back
    run(x)
    assert seen[-1] == limit


def test_a_caller_between_two_calls_keeps_its_share(limit, watched):
    op, seen, waits = watched
    run = firebrick.compile(lambda x: op(x + 1) * 2)
    x, inside, leave = torch.ones(8), threading.Event(), threading.Event()
    run(x)
    share, begun = max(1, len(os.sched_getaffinity(0)) // 2), time.perf_counter()
    waits.append(lambda: (inside.set(), leave.wait(60)))
    thread = threading.Thread(target=run, args=(x,))
    thread.start()
    assert inside.wait(60)
    run(x)
    leave.set()
    thread.join()
    seen.clear()
    run(x)
    if time.perf_counter() - begun < 0.02:
        assert seen == [min(limit, share)]


def test_threads_that_call_at_once_keep_their_memory():
    threads, rounds = 4, 5
    places, meet = {}, []

    @torch.library.custom_op("firebrick_tests::place_of", mutates_args=())
    def place_of(x: torch.Tensor) -> torch.Tensor:
        if meet:
            places.setdefault(threading.get_ident(), []).append(x.data_ptr())
            meet[0].wait(60)
        return x.sum(0)

    place_of.register_fake(lambda x: x.new_empty(()))
    run, x = firebrick.compile(lambda x: place_of(x + 1) * 2), torch.ones(1 << 18)
    run(x)
    meet.append(threading.Barrier(threads))
    calls = lambda: [(run(x), meet[0].wait(60)) for _ in range(rounds)]  # all are back before the next one begins
    together = [threading.Thread(target=calls) for _ in range(threads)]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    assert len(places) == len({found[-1] for found in places.values()}) == threads
    assert all(len(set(found)) == 1 for found in places.values())


def test_a_call_within_a_call_is_no_other_caller(limit, watched):
    op, seen, waits = watched
    inner, outer = firebrick.compile(lambda x: op(x + 2)), firebrick.compile(lambda x: op(x + 1) * 2)
    x = torch.ones(8)
    inner(x), outer(x)
    seen.clear()
    waits.append(lambda: inner(x))
    outer(x)
    assert seen == [limit, limit]


PROGRAM = """
import os, threading
import torch, firebrick

torch.set_num_threads(4)
x, run = torch.randn(1 << 20), firebrick.compile(lambda x: x.sin().cos(), options={"threads": 4})
counts = [len(os.listdir("/proc/self/task"))]

def call(times):
    for _ in range(times):
        run(x)
    counts.append(len(os.listdir("/proc/self/task")))

call(2)
call(10)
print(*[count - counts[0] for count in counts[1:]])
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts the threads of a process")
def test_a_thread_that_has_called_a_few_times_keeps_no_team():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    few, many = map(int, done.stdout.split())
    assert (few, many) == (0, 3)
