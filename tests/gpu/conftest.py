"""Tests of this folder need a GPU; `make test-gpu` runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import firebrick

SECONDS = 120
"""What no process may take: a test that waits for ever would hide the names of those that failed."""
if torch.cuda.is_available():  # processes that build kernels, for each process that tests
    share = (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    os.environ.setdefault("FIREBRICK_BUILD_WORKERS", str(max(1, min(8, share))))


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if "/gpu/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason="no GPU"))
        return
    # What starts processes takes longest: it begins first, a few tests apart, so that workers share it.
    slow = [i for i in items if i.path.stem in ("test_tools_on_gpu", "test_bundles_on_gpu", "test_search_on_gpu")]
    rest = [i for i in items if i not in slow]
    for k, item in enumerate(slow):
        rest.insert(6 * k, item)
    items[:] = rest


@pytest.fixture
def run_python(tmp_path):
    """Runs Python in a folder of its own with this package, wherever PYTHONPATH has it from; what it did.

    Raises:
        subprocess.TimeoutExpired: it took longer than `SECONDS`.
    """
    told = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    path = os.pathsep.join(map(str, [Path(firebrick.__file__).parents[1], *(Path(p).absolute() for p in told)]))

    def run(*args, **env):
        return subprocess.run(
            [sys.executable, *args],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, **env},
            timeout=SECONDS,
        )

    return run
