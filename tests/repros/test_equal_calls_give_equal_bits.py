"""A thread exchanged weights for packed ones 0.4 s after the first call, and libraries round otherwise on those."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch

load = importlib.import_module("firebrick.runtime.load")  # the package has a function of this name


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="there is no oneDNN")
def test_weights_are_packed_before_the_first_call_goes_on() -> None:
    slot = ["float32", [64, 64], [64, 1], 0, "cpu"]
    call = ["call", "mkldnn::_reorder_linear_weight.default", [["t", 0], ["i", 32]], ["Tensor", "int?"], 2, [], [1]]
    table = {
        "slots": [["const", *slot], ["derived", *slot]],
        "views": [[0, [64, 64], [64, 1], 0, None]],
        "recipe": [[*call, False, True]],
    }
    (packed,) = load._Refresh(table, {})([torch.randn(64, 64)])
    assert packed.layout is torch._mkldnn


ALONE = """
import gc, threading
from firebrick.gc_pause import collector_paused
with collector_paused():
    assert not gc.isenabled()
assert gc.isenabled()
done = threading.Event()
other = threading.Thread(target=done.wait)
other.start()
with collector_paused():
    assert gc.isenabled()
done.set()
other.join()
"""


def test_the_collector_of_other_threads_goes_on() -> None:
    # A process of its own: the workers of a test run have threads.
    subprocess.run([sys.executable, "-c", ALONE], check=True)
