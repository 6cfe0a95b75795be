"""A driver in place of a card's."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from firebrick import _native


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    library = tmp_path_factory.mktemp("driver") / "libcuda.so"
    source = Path(__file__).with_name("fake_driver.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(library), str(source)], check=True)
    _native.cuda_open(str(library))
    found = ctypes.CDLL(str(library))
    found.fake_log.restype = found.fake_contexts.restype = ctypes.c_char_p
    return found


@pytest.fixture
def log(driver):
    driver.fake_clear()
    driver.fake_fail(0)
    return lambda: driver.fake_log().decode().split("\n")[:-1]
