"""`firebrick.export`: one graph with sizes that vary, saved, run where the program's code is not, converted."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import firebrick
from firebrick.errors import CacheError, ConfigError, Unsupported


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Any) -> Any:
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))


class Mixed(nn.Module):
    """Options, a mask, sizes as numbers, and a nested result."""

    def forward(self, x: Any, scale: float = 2.0, *, mask: Any = None) -> Any:
        y = torch.relu(x) * scale * x.shape[0]
        return {"y": y if mask is None else y.masked_fill(mask, 0.0), "more": [y.sum(0), x, 3]}


class Residual(nn.Module):
    """A convolution beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: Any) -> Any:
        return F.adaptive_avg_pool2d(torch.relu(self.norm(self.conv(x)) + x), 2).flatten(1)


X, IMAGES = torch.randn(4, 6), torch.randn(4, 3, 8, 8)
MODELS: dict[str, tuple[Any, torch.Tensor]] = {
    "linear": (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)), X),
    "norms": (nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.SiLU()), X),
    "convolutions": (nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)), IMAGES),
    "residual": (Residual(), IMAGES),
    "depthwise": (nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.Hardswish(), nn.Conv2d(6, 4, 1)), IMAGES),
    "attention": (nn.Sequential(Block(), Block()), torch.randn(4, 5, 16)),
    "embedding": (nn.Sequential(nn.Embedding(20, 16), Block(), nn.Linear(16, 3)), torch.randint(0, 20, (4, 5))),
    "rows": (nn.Sequential(nn.Conv1d(3, 4, 3), nn.ELU(), nn.Flatten(), nn.Linear(24, 2)), torch.randn(4, 3, 8)),
    "groups": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Mish()), IMAGES),
    "mixed": (Mixed(), X),
}
LOAD = """
import sys, torch, firebrick
for name in sys.argv[2:]:
    program, (x, want) = firebrick.load(f"{sys.argv[1]}/{name}.pt2"), torch.load(f"{sys.argv[1]}/{name}.ref")
    torch.testing.assert_close(program(x), want)
    print(name)
"""


def of(x: torch.Tensor, count: int) -> torch.Tensor:
    """As many rows."""
    return torch.cat([x, x.flip(0)] * count)[:count]


def first(model: Any) -> str:
    return "x" if isinstance(model, (Mixed, Residual)) else "input"


def test_ten_models_run_where_their_code_is_not(tmp_path):
    assert len(MODELS) == 10
    for name, (model, x) in MODELS.items():
        program = firebrick.export(model.eval(), (x,), dynamic={first(model): 0})
        for count in (4, 7, 2):
            torch.testing.assert_close(program(of(x, count)), model(of(x, count)))
        program.save(tmp_path / f"{name}.pt2")
        torch.save((of(x, 3), model(of(x, 3))), tmp_path / f"{name}.ref")
    command = [sys.executable, "-c", LOAD, str(tmp_path), *MODELS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [*MODELS], done.stderr


def test_torch_export_has_the_graph_with_a_symbol():
    model, x = MODELS["linear"]
    exported = firebrick.export(model, (x,), dynamic={"input": {0: (2, 64)}}).to_torch()
    assert isinstance(exported, torch.export.ExportedProgram)
    (shape,) = [n.meta["val"].shape for n in exported.graph.nodes if n.name in exported.graph_signature.user_inputs]
    assert type(shape[0]) is torch.SymInt
    torch.testing.assert_close(exported.module()(of(x, 9))[0], model(of(x, 9)))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "mixed"])  # it gives back an argument and a number
def test_onnx(name, tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the extra onnxruntime is not installed: {package}")
    model, x = MODELS[name]
    firebrick.export(model.eval(), (x,), dynamic={first(model): 0}).to_onnx(tmp_path / "model.onnx")
    session = importlib.import_module("onnxruntime").InferenceSession(tmp_path / "model.onnx")
    results = session.run(None, {session.get_inputs()[0].name: of(x, 7).numpy()})
    torch.testing.assert_close(torch.from_numpy(*results), model(of(x, 7)), rtol=1e-4, atol=1e-4)


def test_sizes_that_decide_otherwise_are_errors():
    def f(x: Any) -> Any:
        return x * 2 if x.shape[0] > 3 else x * 3

    program = firebrick.export(f, (X,), dynamic={"x": 0})
    torch.testing.assert_close(program(of(X, 9)), of(X, 9) * 2)
    with pytest.raises(ConfigError, match=r"decided at test_export\.py:\d+"):
        program(of(X, 3))
    with pytest.raises(ConfigError, match="is for float32"):
        program(torch.randn(4, 7))
    with pytest.raises(ConfigError, match="is for"):
        program(X.double())


def test_other_constants_are_errors():
    program = firebrick.export(Mixed(), (X, 3.0), dynamic=True)
    torch.testing.assert_close(program(of(X, 6), 3.0), Mixed()(of(X, 6), 3.0))
    with pytest.raises(ConfigError, match="scale=4"):
        program(X, 4.0)


def test_the_first_break_is_named():
    def f(x: Any) -> Any:
        return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(Unsupported, match=r"test_export\.py:\d+"):
        firebrick.export(f, (X,))


@pytest.mark.parametrize("said", ["batch", torch.export.Dim("batch", min=2, max=8), torch.export.Dim.DYNAMIC])
def test_dimensions_vary_by_what_torch_export_takes(said):
    program = firebrick.export(lambda x: x + x.shape[0], (X,), dynamic={"x": {0: said}})
    torch.testing.assert_close(program(torch.cat([X, X])), torch.cat([X, X]) + 2 * len(X))


def test_what_cannot_vary_is_named():
    with pytest.raises(ConfigError, match="has to be 4"):
        firebrick.export(lambda x: x.view(2, 2, 6), (X,), dynamic={"x": 0})
    with pytest.raises(ConfigError, match="name one of x"):
        firebrick.export(lambda x: x + 1, (X,), dynamic={"y": 0})


class Point(NamedTuple):
    """A result of a class of its own."""

    left: torch.Tensor
    right: torch.Tensor


def test_a_class_that_is_not_there_is_a_dict(tmp_path):
    firebrick.export(lambda x: Point(x + 1, x + 2), (X,)).save(tmp_path / "point.pt2")
    code = f"import torch, firebrick; print(sorted(firebrick.load({str(tmp_path / 'point.pt2')!r})(torch.ones(4, 6))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['left', 'right']", done.stderr


def test_a_corrupt_file_is_an_error(tmp_path):
    path = tmp_path / "x.pt2"
    firebrick.export(lambda x: x + 1, (X,)).save(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 400] = bytes(400)
    path.write_bytes(data)
    with pytest.raises(CacheError):
        firebrick.load(path)
