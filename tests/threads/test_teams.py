"""Kernels keep the threads that they have: a team is as large as torch's limit, and calls side by side share it."""

import os
import threading

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
    run(x)
    assert seen[-1] == limit


def test_a_call_within_a_call_is_no_other_caller(limit, watched):
    op, seen, waits = watched
    inner, outer = firebrick.compile(lambda x: op(x + 2)), firebrick.compile(lambda x: op(x + 1) * 2)
    x = torch.ones(8)
    inner(x), outer(x)
    seen.clear()
    waits.append(lambda: inner(x))
    outer(x)
    assert seen == [limit, limit]
