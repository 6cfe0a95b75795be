"""Every shipped rule matches what it is for and keeps the results."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from firebrick import passes
from firebrick.config import Config
from firebrick.extend import apply_passes, order, registry, set_fake_values, trace_torch
from firebrick.passes import rules
from firebrick.trace import trace_inference

X, W, V = torch.randn(4, 8), torch.randn(6, 8), torch.randn(5, 8)
B = torch.randn(6)
Q, K = torch.randn(2, 3, 7, 4), torch.randn(2, 3, 9, 4)


class Linears(torch.nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Parameter(torch.randn(n, 8)) for n in (6, 6, 5))
        self.p, self.q, self.r = (torch.nn.Parameter(torch.randn(n)) for n in (6, 6, 5))


class Qkv(Linears):
    def forward(self, x):
        q = torch.relu(F.linear(x, self.a, self.p))
        return q, F.linear(x, self.b, self.q) * 2, F.linear(x, self.c, self.r)


class Matmuls(Linears):
    def forward(self, x):
        return torch.relu(x @ self.a.t()), x @ self.a.t()


class Scaled(Linears):
    def forward(self, x):
        return F.linear(x, self.a, self.p) / 8, F.linear(x, self.b, self.q).add(3), F.linear(x, self.c) / 2


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


CASES = {
    "add_relu": (lambda x: F.relu(x + x * 2), [X]),
    "addcdiv": (lambda x, y: x + y / (x.abs() + 1), [X, X * 2]),
    "addcdiv_value": (lambda x, y: x + 0.3 * (y / (x.abs() + 1)), [X, X * 2]),
    "fold_div_into_linear": (Scaled(), [X]),
    "fold_add_into_linear": (Scaled(), [X]),
    "fold_div_into_linear_without_bias": (Scaled(), [X]),
    "fold_div_into_query": (lambda q, k: torch.matmul(q, k.transpose(-2, -1)) / 2.0, [Q, K]),
    "fold_mul_into_query": (lambda q, k: torch.matmul(q, k.transpose(-2, -1)) * 0.5, [Q, K]),
    "merge_linears": (Qkv(), [X]),
    "attention_div": (lambda q, k: F.softmax(q @ k.transpose(2, 3) / math.sqrt(4), dim=-1) @ k, [Q, K]),
    "attention_mul": (lambda q, k: (torch.matmul(q, k.mT) * 0.5).softmax(-1).matmul(k), [Q, K]),
    "attention_div_masked": (
        lambda q, k, m: F.dropout(F.softmax(q @ k.transpose(-1, -2) / 2 + m, -1), 0.1, False) @ k,
        [Q, K, torch.zeros(2, 1, 1, 9)],
    ),
    "attention_unscaled": (lambda q, k: torch.softmax(q @ k.transpose(-1, -2), 3) @ k, [Q, K]),
    "gelu_erf": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), [X]),
    "gelu_erf_mul": (lambda x: (x * 0.5) * (torch.erf(x * math.sqrt(0.5)) + 1), [X]),
    "gelu_tanh": (gelu_tanh, [X]),
    "gelu_tanh_product": (lambda x: 0.5 * x * (1 + torch.tanh(x * 0.7978845608028654 * (1 + 0.044715 * x * x))), [X]),
}


@pytest.mark.parametrize("name", CASES)
def test_shipped_rule(name):
    program, inputs = CASES[name]
    gm = set_fake_values(fx.symbolic_trace(program), inputs)
    wanted = program(*inputs)
    reports = apply_passes(gm, order([rules.remove_torch_noops, registry.get(name)]), verify=True)
    report = next(r for r in reports if r.name == name)
    assert report.applied >= 1, report
    gm.recompile()
    torch.testing.assert_close(gm(*inputs), wanted)


def test_attention_with_k_transposed_by_mT_is_not_lost():
    gm = set_fake_values(fx.symbolic_trace(CASES["attention_div"][0]), [Q, K])
    apply_passes(gm, rules.ATTENTION)
    assert sum(n.target is F.scaled_dot_product_attention for n in gm.graph.nodes) == 1


def test_noops_go_and_outputs_keep_their_memory():
    def program(x):
        y = (x + 0) * 1
        z = y.view(4, 8).to(torch.float32).expand(4, 8)
        return torch.relu(z[:, :]), torch.cat([z]) + 1

    aten = trace_inference(trace_torch(program, 1), [X], Config())
    apply_passes(aten.gm, [rules.remove_noops], verify=True)
    aten.gm.recompile()
    names = [n.target.name() for n in aten.gm.graph.nodes if n.op == "call_function"]
    assert sorted(names) == ["aten::add.Tensor", "aten::relu"]
    torch.testing.assert_close(aten.gm(X), program(X))

    aten = trace_inference(trace_torch(lambda x: x + 0, 1), [X], Config())
    apply_passes(aten.gm, [rules.remove_noops])
    assert len(aten.gm.graph.nodes) == 3


def test_defaults_and_switches():
    on = {name for name, state in registry.names().items() if state}
    assert on == rules.ON
    config = Config()
    names = [p.name for p in passes.active_passes("torch", (), config)]
    assert names == ["remove_inactive_dropout", "attention_div", "attention_mul"]
    exact = config.with_options({"numerics": "eager"})
    assert [p.name for p in passes.active_passes("torch", (), exact)] == ["remove_inactive_dropout"]
    off = config.with_options({"disable_passes": "attention_div"})
    assert "attention_div" not in [p.name for p in passes.active_passes("torch", (), off)]
    assert passes.passes_key((), config) != passes.passes_key((), off)
    with registry.enabled("add_relu"):
        assert passes.passes_key((), config) not in (None, passes.passes_key((), off))
        assert "add_relu" in [p.name for p in passes.active_passes("torch", (), config)]
    assert "add_relu" in [p.name for p in passes.active_passes("torch", [rules.ADD_RELU], config)]
