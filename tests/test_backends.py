"""Backends by name, by function and through torch.compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import firebrick
from firebrick import errors
from firebrick.api import torch_compile_backend
from firebrick.backends import backend_registry as registry

X, W = torch.randn(8, 16), torch.randn(16, 32)


def score(x: Tensor, w: Tensor) -> Tensor:
    return F.gelu(x @ w).softmax(-1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "firebrick"])
def test_own_backends(backend: str) -> None:
    with torch.no_grad():
        torch.testing.assert_close(firebrick.compile(score, backend=backend)(X, W), score(X, W), atol=1e-5, rtol=1e-5)


def test_list_backends() -> None:
    assert {"eager", "aot_eager", "firebrick", "inductor"} <= set(firebrick.list_backends())


@pytest.mark.parametrize("grad", [False, True])
def test_backend_of_torch(grad: bool) -> None:
    net = nn.Linear(16, 4)
    compiled = firebrick.compile(net, backend="inductor")
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(compiled(X), net(X), atol=1e-5, rtol=1e-5)


def test_registered_backend() -> None:
    seen = []

    @firebrick.register_backend(name="counting")
    def count(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        seen.append(gm)
        return gm.forward

    assert "counting" in firebrick.list_backends()
    firebrick.compile(score, backend="counting")(X, W)
    assert len(seen) == 1
    with pytest.raises(errors.ConfigError, match="firebrick"):
        firebrick.register_backend(count, name="firebrick")


def test_backend_of_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name = "packaged"

        @staticmethod
        def load() -> Any:
            return lambda gm, example_inputs: gm.forward

    monkeypatch.setattr(registry, "_entry_points", lambda: {"packaged": Entry})
    torch.testing.assert_close(firebrick.compile(score, backend="packaged")(X, W), score(X, W))


def test_bad_backends() -> None:
    with pytest.raises(errors.BackendError, match="can't be called"):
        firebrick.compile(score, backend=lambda gm, example_inputs: 3)(X, W)

    def broken(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        raise ValueError("no such chip")

    with pytest.raises(errors.BackendError, match="broken raised ValueError: no such chip"):
        firebrick.compile(score, backend=broken)(X, W)
    with pytest.raises(errors.ConfigError, match="backend"):
        firebrick.compile(score, backend=3)  # type: ignore[call-overload]


@pytest.mark.parametrize("grad", [False, True])
def test_torch_compile_with_our_backend(grad: bool) -> None:
    net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 4)).eval()
    torch.compiler.reset()  # what it has seen of other modules' sizes
    before = firebrick.graphs_compiled()
    compiled = torch.compile(net, backend=torch_compile_backend)
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(compiled(X), net(X), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(compiled(X[:3]), net(X[:3]), atol=1e-5, rtol=1e-5)
    assert firebrick.graphs_compiled() >= before + (not grad)


def test_a_backend_that_a_package_made_for_torch_compile(tmp_path):
    (tmp_path / "theirs.py").write_text(
        "calls = []\ndef compiler(gm, inputs):\n    calls.append(gm)\n    return gm.forward\n"
    )
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\ntheirs = theirs:compiler\n")
    code = (
        "import torch, firebrick; assert 'theirs' in firebrick.list_backends();"
        "f = firebrick.compile(lambda x: torch.relu(x) + 1, backend='theirs'); x = torch.randn(4);"
        "torch.testing.assert_close(f(x), torch.relu(x) + 1); import theirs; assert len(theirs.calls) == 1"
    )
    source = Path(firebrick.__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{source}", "FIREBRICK_STRICT": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_a_backend_that_registers_with_torch_compile_later():
    import torch._dynamo

    firebrick.list_backends()
    torch._dynamo.register_backend(lambda gm, inputs: gm.forward, name="later")
    torch.testing.assert_close(firebrick.compile(score, backend="later")(X, W), score(X, W))
