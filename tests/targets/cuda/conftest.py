"""A driver and a library in place of a card's."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from firebrick import _native

aten = torch.ops.aten


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


def _fused(x, w, bias, stride, padding, dilation, groups):
    return torch.relu(aten.convolution(x, w, bias, stride, padding, dilation, False, [0, 0], groups))


def _added(x, w, z, alpha, bias, stride, padding, dilation, groups):
    return torch.relu(aten.convolution(x, w, bias, stride, padding, dilation, False, [0, 0], groups) + alpha * z)


@pytest.fixture(scope="module")
def cudnn():
    """The library's calls, on a CPU."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("cudnn_convolution_relu", _fused, "CPU")
    library.impl("cudnn_convolution_add_relu", _added, "CPU")
    yield
    library._destroy()
