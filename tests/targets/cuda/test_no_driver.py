"""Without a driver nothing of a GPU can be made, and says so."""

import subprocess
import sys

SCRIPT = """
from firebrick import _native
for make in (lambda: _native.cuda_stream(0), lambda: _native.CudaModule(b"cubin", "add", 0, 128, 0, False)):
    try:
        make()
    except OSError as error:
        assert str(error) == "no CUDA driver is open"
    else:
        raise AssertionError
"""


def test_it_is_an_error():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)


NO_TRITON = """
import sys
import firebrick
from firebrick.runtime import load, triton_build
from firebrick.targets.cuda import cuda_target
triton_build.triton_version()
assert "triton" not in sys.modules
"""


def test_triton_is_not_imported():
    """That takes a second; kernels are compiled in processes of their own."""
    subprocess.run([sys.executable, "-c", NO_TRITON], check=True)
