"""A child of a process that had a team of OpenMP threads waited for ever for those, in compiled calls and in eager mode."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
import torch, firebrick

def f(x):
    return (x.sin() + x.cos()).tanh()

torch.set_num_threads(4)
x, compiled = torch.randn(1 << 20), firebrick.compile(f, options={"threads": 4})
wanted, plain = compiled(x), f(x)
for _ in range(2):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        fine = torch.equal(compiled(x), wanted) and torch.equal(f(x), plain) and torch.get_num_threads() == 4
        os._exit(0 if fine else 3)
    print(os.waitpid(child, 0)[1], torch.equal(compiled(x), wanted), torch.get_num_threads())
"""


@pytest.mark.compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_compiled_and_eager_calls_in_a_child():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["0", "True", "4"] * 2
