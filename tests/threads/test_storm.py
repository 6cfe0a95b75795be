"""32 threads compile and call at once, here and in a forked child; `make threads` is the long form."""

import sys
import threading
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.threads.storm import Net, fork_and_storm, storm  # noqa: E402

import firebrick  # noqa: E402


def test_threads_compile_and_call():
    assert storm(32, 640) == []


def test_threads_in_a_child_that_was_forked():
    assert fork_and_storm(8, 80, 1) == 0


def test_settings_of_one_thread_are_not_another_s():
    net = Net(4)
    compiled = firebrick.compile(net, backend="eager")
    x, seen = torch.ones(2, 4), {}
    inside, leave = threading.Event(), threading.Event()

    def other():
        with firebrick.disable():
            inside.set()
            leave.wait()
            seen["other"] = compiled(x)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    graphs = firebrick.stats()["counts"].get("graphs", 0)
    compiled(x)
    assert firebrick.stats()["counts"]["graphs"] > graphs
    leave.set()
    thread.join()
    assert torch.equal(seen["other"], net(x))


@pytest.mark.parametrize("where", ["parent", "child"])
def test_what_was_compiled_before_a_fork_runs_in_both(where):
    net = Net(4)
    compiled = firebrick.compile(net, backend="eager")
    x = torch.ones(2, 4)
    wanted = compiled(x)
    if where == "child":
        assert fork_and_storm(2, 20, 5) == 0
    assert torch.equal(compiled(x), wanted)
