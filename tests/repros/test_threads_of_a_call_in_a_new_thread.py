"""`torch.set_num_threads` holds for compiled calls in threads that are new, where OpenMP itself does not know of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, threading
import torch, firebrick

def f(x):
    return (x.sin() + x.cos()).tanh()

def call():
    before = len(os.listdir("/proc/self/task"))
    same = torch.equal(compiled(x), wanted)
    print(same, len(os.listdir("/proc/self/task")) - before)

torch.set_num_threads(1)
x, compiled = torch.randn(1 << 20), firebrick.compile(f, options={"threads": 4})
wanted = compiled(x).clone()
thread = threading.Thread(target=call)
thread.start()
thread.join()
"""


@pytest.mark.compiler
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts the threads of a process")
def test_one_thread_when_one_is_set():
    environment = {**os.environ, "OMP_NUM_THREADS": "4"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "0"]
