"""Functions of every kind on CUDA tensors: compiled by the backend itself, against eager and float64."""

import random

import pytest
import torch
import torch.nn.functional as F

import firebrick

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def places(high, *shape):
    return torch.randint(0, high, shape, device="cuda")


def _flat(value):
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _error(a, b):
    return (a.double() - b.double()).abs().nan_to_num().max().item() if a.numel() else 0.0


def elsewhere(value):
    """The same tensor in other memory, laid out alike."""
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty(0, dtype=value.dtype, device=value.device)
    return made.set_(value.untyped_storage().clone(), value.storage_offset(), value.shape, value.stride())


def agree(fn, *inputs, slack=1.0):
    """Our results have eager's dtype, shape and strides, and are as near to float64 as eager's, with graphs or without."""
    torch.manual_seed(0)
    want = _flat(fn(*inputs))
    wide = [t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in inputs]
    torch.manual_seed(0)
    exact = _flat(fn(*wide))
    for graphs in (False, True):
        firebrick.reset()
        before = firebrick.graphs_compiled()
        run = firebrick.compile(fn, options={"graphs": graphs})
        seen = []
        for call in range(7):
            args = inputs if call < 4 else [elsewhere(t) for t in inputs]
            torch.manual_seed(0)
            seen.append((args, _flat(run(*args))))
        assert firebrick.graphs_compiled() > before
        for _, made in (seen[0], *seen[3:]):
            near(made, want, exact, slack)


def near(made, want, exact, slack):
    for a, b, c in zip(made, want, exact, strict=True):
        assert (a.dtype, a.shape, a.stride(), a.device) == (b.dtype, b.shape, b.stride(), b.device)
        if not a.is_floating_point():
            assert torch.equal(a, b)
            continue
        unit = torch.finfo(a.dtype).eps * max(1.0, c.abs().nan_to_num().max().item() if c.numel() else 1.0)
        assert _error(a, c) <= 1.1 * _error(b, c) + 4 * slack * unit
        assert torch.equal(a.isnan(), b.isnan())


POINTWISE = {
    "gelu": lambda x: F.gelu(x) * 2 + 1,
    "silu": lambda x: F.silu(x) + x.sigmoid(),
    "chain": lambda x: (x.sin() + x.abs().sqrt()).tanh() * x.exp().log1p(),
    "where": lambda x: torch.where(x > 0, x, x * 0.1).clamp(-1, 1),
    "row and column": lambda x: x + x.mean(0) * x.amax(1, keepdim=True),
    "transposed": lambda x: (x.t().contiguous() + 1, x.t() * 2),
    "cat": lambda x: torch.cat([x, x * 2, x[:3]]),
    "softmax": lambda x: (x.softmax(-1), x.log_softmax(0)),
    "norm": lambda x: F.layer_norm(x, x.shape[1:]) + F.rms_norm(x, x.shape[1:]),
    "reductions": lambda x: (x.sum(), x.mean(0), x.var(1), x.amax(0), x.argmax(1), x.std()),
    "scans": lambda x: (x.float().cumsum(1), x.float().cumsum(0)),
    "sort": lambda x: x.float().sort(1),
    "matmul": lambda x: F.relu(x @ x.t() + 1),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0), value=0.5) * 2,
    "roll": lambda x: x.roll(3, 1) + x.flip(0),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", POINTWISE)
def test_by_dtype(name, dtype):
    for shape in ((5, 7), (64, 128), (300, 1000)):
        agree(POINTWISE[name], rand(*shape, dtype=dtype), slack=64 if name in ("matmul", "scans", "chain") else 4)


CASES = {
    "embedding": (lambda w, i: F.embedding(i, w) * 2, lambda: (rand(100, 64), places(100, 7, 9))),
    "gather": (lambda x, i: x.gather(1, i) + 1, lambda: (rand(50, 10), places(10, 50, 30))),
    "scatter add": (lambda x, i, s: x.scatter_add(1, i, s), lambda: (rand(5, 10), places(10, 5, 30), rand(5, 30))),
    "index": (lambda x, i: x[i] * 2, lambda: (rand(50, 10), places(50, 300))),
    "cross entropy": (lambda x, y: F.cross_entropy(x, y), lambda: (rand(64, 1000), places(1000, 64))),
    "convolution": (
        lambda x, w: F.relu(F.conv2d(x, w, padding=1)) + 1,
        lambda: (rand(2, 8, 14, 14), rand(16, 8, 3, 3)),
    ),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1) * 2, lambda: (rand(2, 8, 14, 14),)),
    "average pool": (lambda x: F.adaptive_avg_pool2d(x, 1) * 2, lambda: (rand(2, 8, 14, 14),)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda: (rand(2, 8, 14, 14),)),
    "attention": (
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True) * 2,
        lambda: (rand(2, 4, 64, 64, dtype=torch.float16),),
    ),
    "masked attention": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m) * 2,
        lambda: (rand(2, 4, 64, 64, dtype=torch.float16), rand(2, 1, 64, 64) > 0),
    ),
    "mask that repeats an element": (
        lambda q, r: F.scaled_dot_product_attention(q, q, q, attn_mask=(r >= 0)[:, None].expand(2, 1, 64, 64)) * 2,
        lambda: (rand(2, 4, 64, 64, dtype=torch.float16), places(9, 64)),
    ),
    "integers": (lambda x: (x // 3 + x % 5, x.sum(), (x > 4).any()), lambda: (places(100, 40, 50),)),
    "number of a CPU": (lambda x, s: x * s + s.exp(), lambda: (rand(40, 50), torch.tensor(1.5))),
    "made on a CPU": (lambda x: x + torch.arange(50).to("cuda") * 2, lambda: (rand(40, 50),)),
    "to a CPU": (lambda x: (x * 2).cpu() + 1, lambda: (rand(40, 50),)),
    "odd place": (lambda x: x.sigmoid() * 3, lambda: (rand(1001)[1:],)),
    "expanded": (lambda x: x + 1, lambda: (rand(40, 1).expand(40, 50),)),
    "empty": (lambda x: (x * 2, x.sum()), lambda: (rand(0, 5),)),
    "double": (lambda x: x.double().softmax(-1).sum(0), lambda: (rand(40, 50),)),
    "complex": (lambda x: torch.fft.fft(x).abs() * 2, lambda: (rand(40, 64),)),
    "addmm": (lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda: (rand(32, 64), rand(128, 64), rand(128))),
    "baddbmm": (lambda x: torch.baddbmm(x, x, x) + 1, lambda: (rand(4, 32, 32),)),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    fn, make = CASES[name]
    agree(fn, *make(), slack=64)


def test_large_split_reductions():
    agree(lambda x: (x.sum(), x.mean(1), x.softmax(1)), rand(3, 3_000_000), slack=64)
    agree(lambda x: (x.sum(0), x.var(0)), rand(200_000, 33), slack=64)


def test_dropout_and_random_numbers_are_eagers():
    agree(lambda x: F.dropout(x, 0.3, True) * 2, rand(100, 200))
    agree(lambda x: x + torch.rand_like(x) + torch.randn(100, 200, device="cuda"), rand(100, 200))


def test_in_place_and_views():
    def fn(x, y):
        x.add_(y).mul_(2)
        y[:, 0] = 7
        return x[1:], y.t()

    for _ in range(5):
        x, y = rand(8, 9), rand(8, 9)
        a, b = x.clone(), y.clone()
        want = fn(a, b)
        made = firebrick.compile(fn)(x, y)
        for s, t in zip((*want, a, b), (*made, x, y), strict=True):
            torch.testing.assert_close(t, s)


def test_changing_sizes():
    run = firebrick.compile(lambda x, w: F.layer_norm(F.gelu(x @ w), (64,)).softmax(-1))
    w = rand(32, 64)
    for n in (5, 17, 1000, 1):
        x = rand(n, 32)
        torch.testing.assert_close(run(x, w), F.layer_norm(F.gelu(x @ w), (64,)).softmax(-1), rtol=1e-4, atol=1e-5)


def test_long_rows_of_changing_sizes():
    """One program would take seconds for the longest."""

    def fn(x):
        return (x * 2).mean(), x.amax(), x.argmax(), (x - x.mean()).square().sum().sqrt()

    run = firebrick.compile(fn, dynamic=True)
    for n in (5, 1000, 1 << 20, (1 << 27) + 3):
        x = rand(n)
        run(x)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        made = run(x)
        end.record()
        torch.testing.assert_close(made, fn(x), rtol=1e-4, atol=1e-4)
        assert begin.elapsed_time(end) < 100


def test_streams_and_threads():
    run = firebrick.compile(lambda x: (x * 2).sin().sum(-1))
    x = rand(64, 1000)
    want = (x * 2).sin().sum(-1)
    stream = torch.cuda.Stream()
    for _ in range(8):
        torch.testing.assert_close(run(x), want)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            made = run(x)
        stream.synchronize()
        torch.testing.assert_close(made, want)


def test_a_users_capture_of_our_call():
    run = firebrick.compile(lambda x, w: F.gelu(x @ w).softmax(-1) * 2)
    x, w = rand(32, 64), rand(64, 64)
    for _ in range(6):
        run(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = run(x, w)
    x.copy_(rand(32, 64))
    graph.replay()
    torch.testing.assert_close(made, F.gelu(x @ w).softmax(-1) * 2, rtol=1e-4, atol=1e-5)


def test_results_of_earlier_calls_stay():
    run = firebrick.compile(lambda x, w: (F.gelu(x @ w) @ w.t()).softmax(-1))
    w = rand(64, 64)
    xs = [rand(32, 64) for _ in range(12)]
    made = [run(x, w) for x in xs]
    for x, y in zip(xs, made, strict=True):
        torch.testing.assert_close(y, (F.gelu(x @ w) @ w.t()).softmax(-1), rtol=1e-4, atol=1e-5)


def test_a_training_step_and_its_optimizer():
    def model():
        torch.manual_seed(1)
        return torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 10)
        ).cuda()

    losses = []
    for compiled in (False, True):
        net = model()
        opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
        run = firebrick.compile(net) if compiled else net
        step = firebrick.compile(opt.step) if compiled else opt.step
        torch.manual_seed(2)
        seen = []
        for _ in range(8):
            x, y = rand(32, 64), places(10, 32)
            loss = F.cross_entropy(run(x), y)
            opt.zero_grad()
            loss.backward()
            step()
            seen.append(loss.item())
        losses.append(seen)
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_autocast():
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 10)).cuda()
    x = rand(32, 64)
    with torch.autocast("cuda", torch.bfloat16):
        made, want = firebrick.compile(net)(x), net(x)
    assert made.dtype == want.dtype
    torch.testing.assert_close(made, want, rtol=2e-2, atol=2e-2)


def test_a_quotient_by_a_number_that_differs_is_eagers():
    def fn(x, rng):
        return x / (rng.random() + 1)

    run = firebrick.compile(fn, backend="eager")
    a, b = random.Random(5), random.Random(5)
    for _ in range(5):
        x = rand(1000)
        assert torch.equal(run(x, a), fn(x, b))
