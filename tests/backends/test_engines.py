"""Engines behind subgraph compilers: each op of the ONNX table, whole graphs, fallback for what is lacking."""

import importlib.util

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick
from firebrick.backends.engines import engine_backend
from firebrick.config import Config
from firebrick.extend import partition, trace_torch
from firebrick.report import FirebrickWarning
from firebrick.trace import trace_inference

X = torch.randn(2, 6, 8)
INDEX = torch.arange(6)
IMAGE = torch.randn(1, 3, 12, 12)
MASK = torch.rand(2, 1, 6, 6) > 0.3
Q = torch.randn(2, 2, 6, 4)

PROGRAMS = {
    "pointwise": (lambda x: torch.tanh(x) * torch.sigmoid(x) + F.gelu(x) - x.relu() / 3, [X]),
    "more pointwise": (lambda x: F.silu(x).exp().log().abs().sqrt() + x.erf() + F.gelu(x, approximate="tanh"), [X]),
    "comparisons": (lambda x, i: torch.where((x > 0) & (i[:, None] < 3), x, 2.0) + (i == 2)[:, None], [X, INDEX]),
    "integers": (lambda i: (i * 2 + 1 - i, i + 0.5, (i.float() / 2).to(torch.int64)), [INDEX]),
    "views": (
        lambda x: x.view(12, 8).t().unsqueeze(0).permute(2, 0, 1).expand(12, 3, 8)[:, 1:, ::2].contiguous() * 2,
        [X],
    ),
    "joins": (lambda x: torch.cat([x, x * 2], 1)[:, -1] + x.select(1, 0) + torch.full((8,), 3.0), [X]),
    "matmuls": (
        lambda x: torch.bmm(x, x.transpose(1, 2)) @ (x * 2) + F.linear(x, torch.ones(8, 8), torch.ones(8)),
        [X],
    ),
    "norms": (lambda x: F.layer_norm(x, (8,)) + F.layer_norm(x, (6, 8), torch.ones(6, 8)) + torch.softmax(x, -1), [X]),
    "sums": (lambda x: x.mean(-1, keepdim=True) + x.sum((1, 2), keepdim=True) + x.amax(2, keepdim=True), [X]),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q), [Q]),
    "masked attention": (lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m, scale=0.3) * 2, [Q, MASK]),
    "causal attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2) + 1, [Q]),
    "embedding": (lambda i: F.embedding(i, torch.arange(24.0).view(8, 3)) * 2 + 1, [INDEX]),
    "convolution": (
        lambda x: F.max_pool2d(F.relu(F.conv2d(x, torch.ones(4, 3, 3, 3), stride=2, padding=1)), 2) * 2,
        [IMAGE],
    ),
    "powers": (lambda x: x**2 + (x.abs() + 1) ** 0.5 + torch.rsqrt(x * x + 1) + x.clamp(-1, 1), [X]),
}


def engine(name):
    """An engine, or skip where its package is missing."""
    package = {"onnxrt": "onnxruntime", "openvino": "openvino", "tvm": "tvm"}[name]
    for needed in ("onnx", package):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    if name == "tvm":
        from firebrick.backends.tvm import Tvm

        return Tvm()
    if name == "openvino":
        from firebrick.backends.openvino import OpenVino

        return OpenVino()
    from firebrick.backends.onnxruntime import OnnxRuntime

    return OnnxRuntime()


@pytest.mark.parametrize(
    ("name", "program"), [("onnxrt", p) for p in PROGRAMS] + [("openvino", p) for p in PROGRAMS if p != "embedding"]
)
def test_rows(name, program):
    fn, inputs = PROGRAMS[program]
    compiler = engine(name)
    compiler.min_size = 1
    aten = trace_inference(trace_torch(fn, len(inputs)), inputs, Config())
    wanted = aten.gm(*inputs)
    config = Config(strict=True, cache=False, verify_passes=True)
    result = partition(aten.gm, [compiler], config=config, frozen=aten.frozen)
    assert result.percent == 100, result
    for a, b in zip(aten.gm(*inputs), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        y = F.gelu(self.a(x))
        return self.b(y.cumsum(1)) + 1


@pytest.mark.parametrize("name", ["onnxrt", "openvino", "tvm"])
def test_backend_by_name(name):
    engine(name)
    model = Net().eval()
    compiled = firebrick.compile(model, backend=name)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(X), model(X), rtol=1e-3, atol=1e-4)


def test_torchscript_backend():
    model = Net().eval()
    compiled = firebrick.compile(model, backend="torchscript")
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X))
        torch.testing.assert_close(compiled(X * 2), model(X * 2))
    compiled(X).sum().backward()
    assert model.a.weight.grad is not None


def test_what_an_engine_lacks_stays():
    compiler = engine("onnxrt")
    texts = []
    model = Net().eval()
    compiled = firebrick.compile(model, backend=engine_backend(compiler, report=texts.append))
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X), rtol=1e-3, atol=1e-4)
    assert "onnxrt refused 1: no ONNX form (cumsum)" in texts[0]


def test_gradients_run_eagerly():
    compiler = engine("onnxrt")
    model = Net().eval()
    compiled = firebrick.compile(model, backend=engine_backend(compiler))
    with pytest.warns(FirebrickWarning, match="run at inference"):
        compiled(X).sum().backward()
    assert model.a.weight.grad is not None


@pytest.mark.parametrize("name", ["onnxrt", "openvino"])
def test_sessions_come_back_from_disk(name, tmp_path):
    fn, inputs = PROGRAMS["matmuls"]
    config = Config(cache_dir=tmp_path)
    for expected in ((1, 0), (0, 1)):
        aten = trace_inference(trace_torch(fn, 1), inputs, config)
        result = partition(aten.gm, [engine(name)], config=config, frozen=aten.frozen)
        torch.testing.assert_close(aten.gm(*inputs)[0], fn(*inputs), rtol=1e-3, atol=1e-4)
        group = result.claims[0].group
        assert (group.compiles, group.loads) == expected
