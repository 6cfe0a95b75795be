"""Programs that are called with tensors of many sizes: few compiles, and eager's results."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import firebrick

_SIZES = [(3, 5), (4, 7), (2, 9), (8, 33), (17, 64), (5, 2), (130, 3)]


def _x(b, s):
    return torch.randn(b, s, 8)


def _pair(b, s):
    return torch.randn(b, s, 8), torch.randn(b, s, 8)


_W = torch.randn(8, 16)
_TABLE = torch.randn(50, 8)


def _attention(x):
    b, s, d = x.shape
    q = x.view(b, s, 2, d // 2).transpose(1, 2)
    scores = q @ q.transpose(-1, -2) / math.sqrt(d // 2)
    mask = torch.tril(torch.ones(s, s, dtype=torch.bool))
    return (scores.masked_fill(~mask, -1e9).softmax(-1) @ q).transpose(1, 2).reshape(b, s, d)


def _shifted(x):
    return F.pad(x, (0, 0, 1, 0))[:, : x.shape[1]] - x


def _halves(x):
    n = x.shape[1] // 2
    return torch.cat([-x[:, n:], x[:, :n]], 1)


def _counted(x):
    b, s = x.shape[:2]
    return (x * s).sum((1, 2)) / (b * s) + torch.full((b,), 1.0) * min(s, 4) + max(b, 3)


def _numbers(x):
    b, s, d = x.size()
    return x + 1, b * s + d, (s // 2, s % 3), [b - 1], {"n": -b}


def _branch(x):
    return x * 2 if x.shape[1] > 20 else x - 1


def _written(x):
    x = x.clone()
    x[:, 0] = 1
    x[:, -1] += 2
    return x.add_(1)


PROGRAMS = {
    "pointwise": (lambda x: torch.relu(x + 1) * x, _x, 2),
    "two arguments": (lambda x, y: x * y + y.sin(), _pair, 2),
    "reductions": (lambda x: (x.sum(), x.mean(1), x.sum((0, 2)), x.var(-1), x.argmax(1)), _x, 2),
    "softmax": (lambda x: x.softmax(1) + x.log_softmax(-1), _x, 2),
    "layer norm": (lambda x: F.layer_norm(x, (8,)), _x, 2),
    "matmul": (lambda x: x.reshape(-1, 8) @ _W, _x, 2),
    "matmul of rows": (lambda x: x @ _W, _x, 2),
    "linear": (lambda x: F.gelu(F.linear(x, _W.t())), _x, 2),
    "view": (lambda x: x.view(x.shape[0] * x.shape[1], -1).view(x.shape[0], -1, 4), _x, 2),
    "flatten": (lambda x: x.flatten(1).sum(1) + x.flatten().sum(), _x, 2),
    "transpose": (lambda x: x.transpose(0, 1).contiguous() + 1, _x, 2),
    "permute": (lambda x: x.permute(2, 0, 1).reshape(8, -1).cumsum(1), _x, 2),
    "slices": (lambda x: x[1:, :-1] + x[:-1, 1:], _x, 2),
    "last": (lambda x: x[:, -1].sum(0) + x[-1].sum(0), _x, 2),
    "halves": (_halves, _x, 4),
    "shifted": (_shifted, _x, 2),
    "cat": (lambda x: torch.cat([x, x + 1, x[:, :1]], 1), _x, 2),
    "stack": (lambda x: torch.stack([x, -x]), _x, 8),
    "expand": (lambda x: x[:, :, :1].expand(-1, -1, 6) + x.sum(1, keepdim=True)[..., :6], _x, 2),
    "repeat": (lambda x: x.repeat(2, 1, 1), _x, 2),
    "arange": (lambda x: x + torch.arange(x.shape[1])[:, None] + torch.arange(0, x.shape[0])[:, None, None], _x, 2),
    "embedding": (lambda x: F.embedding((x[..., 0] > 0).long() + 3, _TABLE), _x, 2),
    "gather": (lambda x: x.gather(1, x.argsort(1)), _x, 2),
    "attention": (_attention, _x, 2),
    "sdpa": (lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]), _x, 2),
    "triangle": (lambda x: torch.triu(x @ x.transpose(1, 2), 1), _x, 2),
    "counted": (_counted, _x, 8),
    "numbers": (_numbers, _x, 2),
    "branch": (_branch, _x, 4),
    "written": (_written, _x, 8),
    "factory": (lambda x: x.new_zeros(x.shape[0], 3) + torch.ones(x.shape[0], 1), _x, 2),
    "einsum": (lambda x: torch.einsum("bsd,bte->bst", x, x), _x, 2),
    "unsqueeze": (lambda x: (x.unsqueeze(1) - x.unsqueeze(2)).abs().sum(-1), _x, 2),
    "length": (lambda x: x * len(x) + x.numel() + x.dim(), _x, 8),
    "chunk": (lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1], _x, 2),
    "where": (lambda x: torch.where(x > 0, x, torch.zeros_like(x)), _x, 2),
    "topk": (lambda x: x.topk(2, 1)[0], _x, 2),
}


def _same(found, wanted):
    if isinstance(wanted, torch.Tensor):
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
    elif isinstance(wanted, (tuple, list)):
        assert type(found) is type(wanted) and len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            _same(a, b)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            _same(found[key], wanted[key])
    else:
        assert found == wanted and type(found) is type(wanted)


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_sizes_after_the_first_share_a_compile(name, dynamic):
    function, arguments, most = PROGRAMS[name]
    compiled = firebrick.compile(function, dynamic=dynamic)
    before = firebrick.graphs_compiled()
    for sizes in _SIZES:
        given = arguments(*sizes)
        given = given if isinstance(given, tuple) else (given,)
        _same(compiled(*given), function(*given))
    assert firebrick.graphs_compiled() - before <= most


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_of_one_and_none_are_eagers_too(name):
    function, arguments, _ = PROGRAMS[name]
    compiled = firebrick.compile(function, dynamic=True, recompile_limit=20)
    for sizes in [(4, 6), (3, 4), (1, 7), (6, 1), (1, 1), (0, 4), (4, 0), (1, 3), (2, 2), (300, 2)]:
        given = arguments(*sizes)
        given = given if isinstance(given, tuple) else (given,)
        try:
            wanted = function(*given)
        except (RuntimeError, IndexError):
            continue  # eager refuses these sizes
        _same(compiled(*given), wanted)
