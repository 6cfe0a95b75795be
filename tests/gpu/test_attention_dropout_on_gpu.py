"""Attention with dropout in training: outputs and gradients are eager's after the same seed, also from recorded graphs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import firebrick

HALVES = [torch.float16, torch.bfloat16]
KERNELS = [(k, d) for k in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION) for d in HALVES]
KERNELS += [(SDPBackend.EFFICIENT_ATTENTION, d) for d in (torch.float32, *HALVES)]
KERNELS += [(SDPBackend.MATH, torch.float32)]
MASKS = ["none", "causal", "bool", "float"]


class Attention(nn.Module):
    def __init__(self, width, mask, between=False):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.mask, self.between = mask, between

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (f(x).view(rows, length, -1, 64).transpose(1, 2) for f in (self.q, self.k, self.v))
        seen = torch.ones(length, length, device=x.device, dtype=torch.bool).tril()
        seen = torch.where(seen, 0.0, -1e4).to(x.dtype) if self.mask == "float" else seen
        mask = seen.expand(rows, 1, length, length) if self.mask in ("bool", "float") else None
        y = F.scaled_dot_product_attention(q, k, v, mask, 0.2, self.mask == "causal")
        y = self.o(y.transpose(1, 2).reshape(x.shape))
        return F.dropout(y, 0.1) + x if self.between else y


def weights(net):
    """Those with gradients: one of the keys' bias shifts all scores of a query alike, and has nothing but rounding."""
    return [p for name, p in net.named_parameters() if name != "k.bias"]


def offset():
    return torch.cuda.default_generators[0].get_offset()


def steps(net, run, x, times=10, **seeds):
    torch.manual_seed(5)
    seen = []
    for _ in range(times):
        net.zero_grad()
        y = run(x)
        y.float().square().mean().backward()
        seen.append((y.detach(), *[p.grad for p in weights(net)]))
    return seen, offset()


def agree(net, x, dtype, **options):
    firebrick.reset()
    graphs = firebrick.graphs_compiled()
    want, after = steps(net, net, x)
    got, ours = steps(net, firebrick.compile(net, **options), x)
    assert firebrick.graphs_compiled() > graphs, firebrick.stats()["reasons"]
    assert ours == after
    for a, b in zip(got, want, strict=True):
        for s, t in zip(a, b, strict=True):  # another mask would be far from it
            assert (s.float() - t.float()).norm() <= 2e-2 * t.float().norm() + 1e-6
    assert not torch.equal(got[-1][0], got[-2][0])


def allowed(kernel, dtype, mask):
    if kernel == SDPBackend.FLASH_ATTENTION and mask in ("bool", "float"):
        pytest.skip("flash attention takes no mask")
    q = torch.randn(2, 4, 128, 64, device="cuda", dtype=dtype, requires_grad=True)
    bias = torch.zeros(2, 1, 128, 128, device="cuda", dtype=dtype) if mask in ("bool", "float") else None
    try:
        with sdpa_kernel(kernel):
            F.scaled_dot_product_attention(q, q, q, bias, 0.2, mask == "causal")
    except RuntimeError as error:
        pytest.skip(f"not on this card: {error}")


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("kernel", "dtype"), KERNELS, ids=lambda v: getattr(v, "name", str(v)))
def test_steps_are_eagers(kernel, dtype, mask, graphs):
    allowed(kernel, dtype, mask)
    torch.manual_seed(1)
    net, x = Attention(256, mask).cuda().to(dtype), torch.randn(2, 128, 256, device="cuda", dtype=dtype)
    with sdpa_kernel(kernel):
        agree(net, x, dtype, options={"graphs": graphs})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recorded_at_once_among_other_draws(dtype):
    net, x = Attention(256, "bool", between=True).cuda().to(dtype), torch.randn(2, 128, 256, device="cuda", dtype=dtype)
    agree(net, x, dtype, mode="reduce-overhead")
    assert firebrick.stats()["counts"].get("CUDA graphs: recorded", 0) >= 2, firebrick.stats()["reasons"]


def test_one_is_recorded_and_the_other_runs_step_by_step():
    """A backward in a graph looks for the seeds elsewhere than one in steps."""
    net, x = Attention(256, "bool").cuda(), torch.randn(2, 128, 256, device="cuda")
    want, _ = steps(net, net, x, times=6)
    run = firebrick.compile(net, mode="reduce-overhead")

    def check(y, row):
        made = torch.autograd.grad(y.square().mean(), weights(net), retain_graph=True)
        for s, t in zip((y, *made), row, strict=True):
            assert (s - t).norm() <= 1e-3 * t.norm() + 1e-6

    torch.manual_seed(5)
    results = [run(x) for _ in want]  # recorded from the third on
    for y, row in reversed([*zip(results, want, strict=True)]):
        check(y, row)  # the first in steps, with the seeds of a graph
    for _ in range(4):
        check(results[0], want[0])  # recorded by now, with the seeds of steps


@pytest.mark.parametrize("budget", [0, 0.5])
def test_what_is_computed_again_does_not_draw_again(budget):
    net, x = Attention(256, "bool", between=True).cuda(), torch.randn(2, 128, 256, device="cuda")
    agree(net, x, torch.float32, options={"memory_budget": budget})


def test_a_users_capture():
    net, x = Attention(256, "bool").cuda(), torch.randn(2, 128, 256, device="cuda")
    run = firebrick.compile(net)
    for _ in range(3):
        run(x).square().mean().backward()
    net.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(x)
        y.square().mean().backward()
    torch.manual_seed(5)
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append([y.clone(), *[p.grad.clone() for p in weights(net)]])
    for a, b in zip(seen, steps(net, net, x, times=3)[0], strict=True):
        for s, t in zip(a, b, strict=True):
            assert (s - t).norm() <= 1e-3 * t.norm() + 1e-6


@pytest.mark.parametrize("dropped", [0.0, 0.1])
def test_gpt2_trains(dropped):
    """While it is compiled its code makes a mask, which it leaves out in eager mode: another kernel, another dropout."""
    text = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = text.GPT2Config(use_cache=False, n_layer=2, n_embd=256, n_head=4, vocab_size=1000, attn_pdrop=dropped)
    net, x = text.GPT2LMHeadModel(config).cuda(), torch.randint(0, 1000, (2, 64), device="cuda")

    def run(model):
        with torch.autocast("cuda", torch.bfloat16):
            return model(x).logits

    got = []
    for model in (net, firebrick.compile(net)):
        torch.manual_seed(5)
        for _ in range(8):
            net.zero_grad()
            y = run(model)
            y.float().square().mean().backward()
        got.append((y.detach(), net.transformer.h[0].attn.c_attn.weight.grad))
    assert not [k for k in firebrick.stats()["reasons"] if "fallback" in k]
    for s, t in zip(*got, strict=True):
        assert (s.float() - t.float()).norm() <= (5e-2 if not dropped else 2) * t.float().norm()
