"""Tests run strict, with a cache of their own that the workers of one run share, and with the same random numbers."""

import os
import random
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings

os.environ.setdefault("FIREBRICK_STRICT", "1")
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
os.environ.setdefault("FIREBRICK_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"firebrick-tests-{_RUN}"))
os.environ.setdefault("FIREBRICK_MEASURE", "0")  # tests name the kernels that they expect
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Each run looks at other operators of torch's database; workers inherit the choice.
os.environ.setdefault("OPERATOR_SEED", str(random.SystemRandom().randrange(1000)))

# The same examples in every run: searching for new ones is the fuzzer's work.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"operators were sampled with OPERATOR_SEED={os.environ['OPERATOR_SEED']}")


def pytest_collectstart():
    torch.manual_seed(0)  # a module's own tensors


@pytest.fixture(autouse=True)
def equal_random_numbers():
    """A test draws the same numbers alone, in any order and in each run."""
    torch.manual_seed(0)
    random.seed(0)


@pytest.fixture(autouse=True)
def nothing_stays_registered(monkeypatch):
    """Passes and backends that a test registers are known to no later test of the process."""
    from firebrick import passes, torchscript
    from firebrick.backends import backend_registry as backends
    from firebrick.extend import registry

    assert passes.rules, "the shipped rules register when this is imported, which must not be undone"
    monkeypatch.setattr(backends, "_registered", dict(backends._registered))
    with registry.restored(), torchscript.registry.restored():
        yield
