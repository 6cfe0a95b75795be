"""`mode="max-autotune"`: a size that most calls have gets code of its own, if that is faster."""

import threading
import time

import pytest
import torch
from torch import nn

import firebrick
from firebrick.runtime import deferred


def reasons():
    return firebrick.stats()["reasons"].get("hot size", {})


def slow(x):
    time.sleep(0.002)
    return (x + 1,)


def called(hot, x, times=1000):
    """Call until it is decided."""
    before = sum(reasons().values())
    for _ in range(times):
        (y,) = hot(x)
        assert torch.equal(y, x + 1)
        if sum(reasons().values()) > before:
            return
        time.sleep(0.0005)
    raise AssertionError


def test_faster_code_is_taken_for_two_sizes_at_most():
    compiled = []

    def compile(inputs):
        compiled.append(inputs[0].shape)
        return lambda x: (x + 1,)

    hot = deferred.Hot("graph", slow, 0.01, compile)
    for n in (3, 4):
        called(hot, torch.zeros(n))
    for _ in range(150):
        hot(torch.zeros(5))
    assert compiled == [(3,), (4,)]
    taken = [text for text in reasons() if text.startswith(("graph of 3:", "graph of 4:"))]
    assert len(taken) == 2 and all(text.endswith(", taken") for text in taken)
    hot._many = None
    assert torch.equal(hot(torch.zeros(3))[0], torch.ones(3))


def test_slower_code_is_dropped():
    def slower(x):
        time.sleep(0.005)
        return (x + 1,)

    hot = deferred.Hot("slower", slow, 0.01, lambda inputs: slower)
    called(hot, torch.zeros(3))
    assert next(text for text in reasons() if text.startswith("slower of 3")).endswith("not taken")
    assert hot._sizes[(torch.Size([3]),)].run is slow


def test_few_or_short_calls_and_a_compile_that_fails():
    def fail(inputs):
        raise ValueError("no luck")

    hot = deferred.Hot("failing", slow, 0.01, fail)
    for _ in range(90):
        hot(torch.zeros(3))
    short = deferred.Hot("short", lambda x: (x + 1,), 1e6, fail)
    for _ in range(300):
        short(torch.zeros(3))
    assert not any(text.startswith(("failing", "short")) for text in reasons())
    called(hot, torch.zeros(3))
    assert reasons()["failing of 3: not compiled: no luck"] == 1
    assert torch.equal(hot(torch.zeros(3))[0], torch.ones(3))


def test_calls_of_several_threads():
    hot, wrong = deferred.Hot("threads", slow, 0.01, lambda inputs: lambda x: (x + 1,)), []

    def work(n):
        x = torch.full((n,), float(n))
        for _ in range(300):
            if not torch.equal(hot(x)[0], x + 1):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in (3, 3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(deferred, "_CALLS", 5)
    make = deferred.Hot.__init__
    monkeypatch.setattr(
        deferred.Hot, "__init__", lambda self, name, many, _, compile: make(self, name, many, 0.0, compile)
    )


def test_a_model(soon):
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)).eval()
    compiled, before = firebrick.compile(model, mode="max-autotune"), sum(reasons().values())
    with torch.no_grad():
        for n in (3, 5):
            torch.testing.assert_close(compiled(x := torch.randn(n, 8)), model(x))
        x, end = torch.randn(6, 8), time.monotonic() + 60
        while sum(reasons().values()) == before and time.monotonic() < end:
            torch.testing.assert_close(compiled(x), model(x))
        assert sum(reasons().values()) == before + 1
        for n in (6, 7, 6, 1, 3):
            torch.testing.assert_close(compiled(x := torch.randn(n, 8)), model(x))
        model[0].weight.mul_(2)
        torch.testing.assert_close(compiled(x := torch.randn(6, 8)), model(x))
        model[0].weight.data = torch.randn(16, 8)
        torch.testing.assert_close(compiled(x := torch.randn(6, 8)), model(x))


def test_written_arguments_and_numbers_that_vary(soon):
    def step(x, state, n):
        state.mul_(0.5).add_(x.sum())
        return (x * n).softmax(-1) + state[: x.shape[0], None]

    compiled, before = firebrick.compile(step, mode="max-autotune"), sum(reasons().values())
    mine, other = torch.zeros(16), torch.zeros(16)
    for i in range(200):
        x, n = torch.randn(4 + (i < 1), 8), 3 + i % 2
        torch.testing.assert_close(compiled(x, mine, n), step(x, other, n))
        torch.testing.assert_close(mine, other)
        time.sleep(0.01 if sum(reasons().values()) == before else 0)
    assert sum(reasons().values()) > before


def test_not_where_equal_calls_must_give_equal_bits():
    def function(x):
        return x.softmax(-1)

    for options, mode in (({}, None), ({"deterministic": True}, "max-autotune")):
        compiled, before = firebrick.compile(function, mode=mode, options=options), sum(reasons().values())
        for n in (3, 4, *[5] * 200):
            compiled(torch.randn(8, n))
        assert sum(reasons().values()) == before
