"""Dropout in kernels of our own draws eager's numbers, and leaves the generator as eager would."""

import pytest
import torch
import torch.nn.functional as F

import firebrick
from firebrick.config import Config
from firebrick.targets.by_device import TARGETS

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHAPES = ((4096, 4096), (8, 128, 768), (33, 7), (3, 5, 7), (2, 50257), (1_000_001,), (1,), (6,), (3, 3, 1_000_002))


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def offset():
    return torch.cuda.default_generators[0].get_offset()


def calls():
    return {k for k in firebrick.stats()["reasons"] if "library" in k}


@pytest.fixture(autouse=True)
def _fresh():
    firebrick.reset()
    assert TARGETS["cuda"](Config()).draws


def agree(fn, *inputs, graphs, times=6, exact=True):
    run = firebrick.compile(fn, options={"graphs": graphs})
    torch.manual_seed(11)
    want = [fn(*inputs) for _ in range(times)]
    after = offset()
    torch.manual_seed(11)
    for k, w in enumerate(want):
        made = run(*inputs)
        for a, b in zip(made, w, strict=True) if isinstance(w, tuple) else [(made, w)]:
            if exact:
                assert torch.equal(a, b), k
            else:
                torch.testing.assert_close(a, b)
    assert offset() == after


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits(dtype, graphs):
    for shape in SHAPES:
        agree(lambda x: torch.ops.aten.native_dropout(x, 0.3, True), rand(*shape, dtype=dtype), graphs=graphs)
        firebrick.reset()


@pytest.mark.parametrize("graphs", [False, True])
def test_with_neighbours(graphs):
    x, r, w = rand(64, 768), rand(64, 768), rand(768)
    agree(lambda x, r: F.dropout(x, 0.1, True) + r, x, r, graphs=graphs)
    agree(lambda x, r: F.dropout(x * 2, 0.1, True) * 3 + F.dropout(r, 0.5, True), x, r, graphs=graphs)
    agree(lambda x, r, w: F.layer_norm(F.dropout(x, 0.1, True) + r, (768,), w), x, r, w, graphs=graphs, exact=False)
    agree(lambda x, r: F.dropout((x @ r.t()).softmax(-1), 0.1, True) @ r, x, r, graphs=graphs, exact=False)


@pytest.mark.parametrize("graphs", [False, True])
def test_among_other_draws(graphs):
    def fn(x):
        y = F.dropout(x, 0.1, True) + torch.rand_like(x)
        return F.dropout(y, 0.2, True) * torch.bernoulli(torch.full_like(x, 0.5)) + torch.randn_like(x)

    agree(fn, rand(300, 1000), graphs=graphs)
    q = rand(2, 4, 64, 64, dtype=torch.float16)

    def attention(q):
        y = F.scaled_dot_product_attention(F.dropout(q, 0.1, True), q, q, dropout_p=0.2)
        return F.dropout(y, 0.1, True)

    agree(attention, q, graphs=graphs, exact=False)


@pytest.mark.parametrize("graphs", [False, True])
def test_inputs_at_odd_places(graphs):
    for dtype in (torch.float32, torch.bfloat16):
        room = rand(8_000_100, dtype=dtype)
        run = firebrick.compile(lambda x: F.dropout(x, 0.4, True), options={"graphs": graphs})
        for first in (0, 1, 2, 4, 8, 0, 3, 6, 1, 1, 0):
            x = room[first : first + 4096 * 1024]
            torch.manual_seed(first)
            want = F.dropout(x, 0.4, True)
            torch.manual_seed(first)
            assert torch.equal(run(x), want), (dtype, first)
        firebrick.reset()


@pytest.mark.parametrize("graphs", [False, True])
def test_training(graphs):
    def losses(compiled):
        torch.manual_seed(3)
        net = torch.nn.Sequential(
            torch.nn.Linear(64, 256),
            torch.nn.GELU(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(256, 64),
            torch.nn.Dropout(),
        ).cuda()
        run = firebrick.compile(net, options={"graphs": graphs}) if compiled else net
        opt, seen = torch.optim.SGD(net.parameters(), lr=0.1), []
        x = rand(32, 64)
        for _ in range(8):
            loss = (run(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen.append(loss.item())
        return seen, offset()

    want, after = losses(False)
    made, ours = losses(True)
    assert made == pytest.approx(want, rel=1e-4)
    assert ours == after


def test_a_users_graph_draws_anew():
    run, x = firebrick.compile(lambda x: F.dropout(x, 0.5, True) + 1), rand(64, 1000)
    run(x)
    graph = torch.cuda.CUDAGraph()
    torch.manual_seed(5)
    with torch.cuda.graph(graph):
        made = run(x)
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(made.clone())
    torch.manual_seed(5)
    for y in seen:
        assert torch.equal(y, F.dropout(x, 0.5, True) + 1)


def test_sizes_that_vary():
    run = firebrick.compile(lambda x: F.dropout(x, 0.25, True) * 2, dynamic=True)
    for shape in ((64, 768), (3, 7), (1000, 1001), (2, 2), (5, 6), (4096, 1024)):
        x = rand(*shape)
        torch.manual_seed(1)
        want = F.dropout(x, 0.25, True) * 2
        torch.manual_seed(1)
        assert torch.equal(run(x), want), shape
