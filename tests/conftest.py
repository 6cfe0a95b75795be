"""Tests run strict, with a cache of their own that the workers of one run share."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("FIREBRICK_STRICT", "1")
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
os.environ.setdefault("FIREBRICK_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"firebrick-tests-{_RUN}"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
