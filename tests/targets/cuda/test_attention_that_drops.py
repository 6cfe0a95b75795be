"""Efficient attention with dropout in training: the backward has the forward's numbers, wherever these lie."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick
from firebrick.runtime import cuda_attention
from firebrick.runtime.cuda_graphs import recorder_of
from firebrick.runtime.load import resolve

aten = torch.ops.aten
NAME = "_scaled_dot_product_efficient_attention"


def kept(seed, q, k, p):
    generator = torch.Generator().manual_seed(int(seed))
    return (torch.rand(*q.shape[:3], k.shape[2], generator=generator) >= p) / (1 - p)


def weights(q, k, bias):
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return (scores if bias is None else scores + bias).softmax(-1)


def forward(q, k, v, bias, sums, p=0.0, causal=False, *, scale=None):
    seed = torch.randint(0, 1 << 40, ())
    out = ((weights(q, k, bias) * kept(seed, q, k, p)) @ v).transpose(1, 2).contiguous().transpose(1, 2)  # as torch's
    return out, out.new_empty(*q.shape[:2], -(-q.shape[2] // 32) * 32), seed, torch.zeros((), dtype=torch.int64)


@pytest.fixture
def numbers(monkeypatch):
    """torch's operators on a CPU; the seeds and offsets that its backward got."""
    seen = []

    def backward(grad, q, k, v, bias, out, sums, seed, offset, p, wanted, causal=False, *, scale=None):
        seen.append((seed, offset))
        probs, keep = weights(q, k, bias), kept(seed, q, k, p)
        by_probs = (grad @ v.transpose(-1, -2)) * keep
        by_scores = probs * (by_probs - (by_probs * probs).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        by_v = (probs * keep).transpose(-1, -2) @ grad
        return by_scores @ k, by_scores.transpose(-1, -2) @ q, by_v, torch.zeros(0)

    library = torch.library.Library("aten", "IMPL")
    library.impl(NAME, forward, "CPU")
    library.impl(f"{NAME}_backward", backward, "CPU")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    yield seen
    library._destroy()


def gradients(net, run, *inputs):
    torch.manual_seed(3)
    seen = []
    for _ in range(3):
        net.zero_grad()
        y = run(*inputs)
        y.square().mean().backward()
        seen += [y.detach(), net.weight.grad.clone()]
    return seen


@pytest.mark.parametrize("options", [{}, {"memory_budget": 0}], ids=["saved", "again"])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_eagers(masked, options, numbers):
    net = nn.Linear(64, 64)

    def fn(x, mask):
        y = F.dropout(net(x), 0.1).view(2, 32, 4, 16).transpose(1, 2)
        z = getattr(aten, NAME)(y * 2, y, torch.sin(y), mask if masked else None, True, 0.25)[0]
        return F.dropout(z, 0.1)

    inputs = torch.randn(2, 32, 64), torch.randn(2, 4, 32, 32)
    want = gradients(net, fn, *inputs)
    firebrick.reset()
    graphs = firebrick.graphs_compiled()
    for a, b in zip(gradients(net, firebrick.compile(fn, options=options), *inputs), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert firebrick.graphs_compiled() > graphs
    assert len({int(seed) for seed, _ in numbers}) == 3  # new ones at each call


def test_a_checkpoint_does_not_draw_again(numbers):
    net = nn.Linear(64, 64)

    def part(x):
        y = net(x).view(2, 32, 4, 16).transpose(1, 2)
        return getattr(aten, NAME)(y * 2, y, torch.sin(y), None, True, 0.25)[0]

    def fn(x):
        return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False).sin()

    x = torch.randn(2, 32, 64)
    for a, b in zip(gradients(net, firebrick.compile(fn), x), gradients(net, fn, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_steps_read_what_the_host_knows_and_graphs_what_the_card_has(numbers, monkeypatch):
    q = torch.randn(1, 1, 32, 8)
    out, sums, *_ = forward(q, q, q, None, True)
    known = [torch.tensor(n) for n in (7, 9)]
    there = [cuda_attention.moved(n, q.device) for n in known]
    rest = q, q, q, q, None, out, sums, *there, 0.5, [True, True, True, False]
    op = getattr(torch.ops.firebrick, f"{NAME}_backward")
    op(*rest)
    assert numbers[-1][0] is not there[0]
    assert [int(n) for n in numbers[-1]] == [7, 9]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    op(*rest)
    assert [n.data_ptr() for n in numbers[-1]] == [n.data_ptr() for n in there]


def test_what_the_host_knows_comes_with_what_is_saved():
    seen = []
    library = torch.library.Library("firebrick_seeds", "DEF")
    library.define("put(Tensor x) -> (Tensor, Tensor)", tags=torch.Tag.nondeterministic_seeded)
    library.define("get(Tensor x, Tensor seed) -> Tensor")
    library.impl("put", lambda x: (x * 2, cuda_attention.moved(torch.tensor(5), x.device)), "CPU")
    library.impl("get", lambda x, seed: seen.append(seed.on_host) or x * seed, "CPU")
    library.impl("put", lambda x: (x * 2, x.new_empty((), dtype=torch.int64)), "Meta")
    library.impl("get", lambda x, seed: x * 2, "Meta")
    ops = torch.ops.firebrick_seeds

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y, seed = ops.put(x)
            ctx.save_for_backward(seed)
            return y

        @staticmethod
        def backward(ctx, g):
            return ops.get(g, *ctx.saved_tensors)

    x = torch.randn(4, requires_grad=True)
    firebrick.compile(Twice.apply)(x).sum().backward()
    assert seen == [torch.tensor(5)]
    assert torch.equal(x.grad, torch.full((4,), 5.0))
    library._destroy()


def test_both_are_recorded_and_the_forward_by_torch():
    def made(op, p):
        schema = resolve("op", op)._schema
        args = [["f", p] if a.name == "dropout_p" else ["t", 0] for a in schema.arguments]
        call = ["call", op, args, ["T"] * len(args), len(args), [], [], False, True]
        table = {"slots": [["input", "f32", [4], [1], 0, "cuda:0"]], "steps": [call]}
        return recorder_of("g", table, resolve, True)

    for suffix in ("", "_backward"):
        for of in ("firebrick::_scaled_dot_product_efficient", "aten::_scaled_dot_product_cudnn"):
            assert made(f"{of}_attention{suffix}", 0.5).random == (not suffix)
