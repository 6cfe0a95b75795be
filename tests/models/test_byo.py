"""Each shipped engine runs its share of a BERT, with the right result."""

import ctypes.util
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import firebrick
from firebrick.backends.engines import engine_backend
from firebrick.tools.models import build_model

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path += [str(EXAMPLES / "blas"), str(EXAMPLES / "firebrick_simchip" / "src")]
pytestmark = [pytest.mark.models, pytest.mark.slow]

INSTALLED = {"openblas": bool(ctypes.util.find_library("openblas")), "eigen": Path("/usr/include/eigen3").exists()}
SHARES = {"onnxruntime": 100, "openvino": 94, "tvm": 90, "openblas": 25, "eigen": 25, "simchip": 85}


def compiler(name):
    if name in ("openblas", "eigen"):
        import blas_engine

        if not INSTALLED[name]:
            pytest.skip(f"{name} is not installed")
        return blas_engine.Blas(name)
    if name == "simchip":
        import firebrick_simchip

        return firebrick_simchip.SimChip(firebrick_simchip.Chip())
    for package in ("onnx", name):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    kind = {"onnxruntime": "OnnxRuntime", "openvino": "OpenVino", "tvm": "Tvm"}[name]
    return getattr(importlib.import_module(f"firebrick.backends.{name}"), kind)()


@pytest.mark.parametrize("name", SHARES)
def test_engine_on_bert(name):
    model, inputs = build_model("bert", layers=2)
    texts = []
    compiled = firebrick.compile(model, backend=engine_backend(compiler(name), report=texts.append))
    with torch.no_grad():
        wanted, found = model(**inputs)[0], compiled(**inputs)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    share = int(texts[0].split("(")[1].split(" %")[0])
    assert share >= SHARES[name], texts[0]
