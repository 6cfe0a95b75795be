"""Tests run strict, with a cache of their own that the workers of one run share."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("FIREBRICK_STRICT", "1")
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
os.environ.setdefault("FIREBRICK_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"firebrick-tests-{_RUN}"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# The same examples in every run: searching for new ones is the fuzzer's work.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


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
