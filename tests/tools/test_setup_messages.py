"""What `make demo` says on a machine where something is missing: one error with its fix, no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "setup_venv.py"
OLD = "import runpy, sys; sys.version_info = (3, 9, 18); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], None, '__main__')"


def setup(folder, *python, **env):
    command = [sys.executable, *python, str(SCRIPT), str(folder)]
    found = subprocess.run(
        command, env={**os.environ, **env}, cwd=SCRIPT.parents[1], capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 1 and "Traceback" not in found.stderr
    return found.stderr


def test_a_python_that_is_too_old_is_named(tmp_path):
    said = setup(tmp_path / "venv", "-c", OLD)
    assert f"{sys.executable} is 3.9" in said and "fix: install one of them" in said


@pytest.mark.parametrize("name", ["CC", "CXX"])
def test_a_compiler_that_is_missing_is_named(tmp_path, name):
    said = setup(tmp_path / "venv", **{name: "compiler-that-is-not-there"})
    assert "compiler-that-is-not-there" in said and "apt-get install g++" in said


def test_a_package_index_that_does_not_answer_is_said(tmp_path):
    nowhere = "http://127.0.0.1:9/simple"
    said = setup(
        tmp_path / "venv", PIP_INDEX_URL=nowhere, PIP_RETRIES="0", PIP_CONFIG_FILE=os.devnull, PIP_NO_CACHE_DIR="1"
    )
    assert "error: installing requirements" in said and "fix: check the network connection" in said
