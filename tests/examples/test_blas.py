"""Matmuls on OpenBLAS and Eigen, with the constant operations after them folded in."""

import ctypes.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import firebrick
from firebrick.backends.engines import engine_backend
from firebrick.errors import CompileError

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "blas"))
import blas_engine  # noqa: E402

pytestmark = pytest.mark.compiler


INSTALLED = {"openblas": bool(ctypes.util.find_library("openblas")), "eigen": Path("/usr/include/eigen3").exists()}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 16))
        self.bias = nn.Parameter(torch.randn(16))
        self.up, self.down = nn.Linear(16, 12), nn.Linear(12, 8, bias=False)

    def forward(self, x):
        y = (x @ self.w) / 4.0 + (x @ self.w + self.bias)
        return self.down(torch.relu(self.up(y))) * 0.5


@pytest.mark.parametrize("name", INSTALLED)
def test_matmuls_are_claimed_and_right(name):
    if not INSTALLED[name]:
        pytest.skip(f"{name} is not installed")
    compiler, model, x, texts = blas_engine.Blas(name), Net().eval(), torch.randn(6, 8), []
    compiled = firebrick.compile(model, backend=engine_backend(compiler, report=texts.append))
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert "9 of 11 ops claimed" in texts[0], texts[0]


def test_a_missing_library_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(blas_engine, "BUILD", tmp_path)
    monkeypatch.setitem(blas_engine.FLAGS, "eigen", ["-I/nowhere"])
    with pytest.raises(CompileError, match="apt-get install libeigen3-dev"):
        blas_engine.load_library("eigen")
