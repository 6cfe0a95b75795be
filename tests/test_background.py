"""`options={"background": True}`: no call waits for a compile, and what comes of it is eager's result."""

import threading
import time

import pytest
import torch
from torch import nn

import firebrick
from firebrick import pipeline
from firebrick.capture import hook

OPTIONS = {"background": True}


def counted():
    return firebrick.stats()["counts"].get("graphs compiled in the background", 0)


def called_until_compiled(call, check, seconds=120):
    """Call until what was compiled is in use; each result is checked."""
    before, end = counted(), time.monotonic() + seconds
    while counted() == before:
        assert time.monotonic() < end
        check(call())
        time.sleep(0.02)
    check(call())


@pytest.fixture
def held(monkeypatch):
    """An event that compiles wait for."""
    event, generate = threading.Event(), pipeline._Compile.generate

    def waiting(self, *args):
        assert event.wait(60)
        return generate(self, *args)

    monkeypatch.setattr(pipeline._Compile, "generate", waiting)
    yield event
    event.set()


def test_calls_run_eagerly_until_the_compile_is_done(held, tmp_path):
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    x = torch.randn(3, 8)
    compiled = firebrick.compile(model, options={**OPTIONS, "cache_dir": str(tmp_path)})
    with torch.no_grad():
        wanted, before = model(x), firebrick.graphs_compiled()
        for _ in range(3):
            assert torch.equal(compiled(x), wanted)
        assert firebrick.graphs_compiled() == before
        held.set()
        called_until_compiled(lambda: compiled(x), lambda y: torch.testing.assert_close(y, wanted))
    assert firebrick.graphs_compiled() == before + 1


def test_a_frame_is_captured_once(tmp_path):
    def function(x):
        return x.sin() * 2

    compiled, x = firebrick.compile(function, options={**OPTIONS, "cache_dir": str(tmp_path)}), torch.randn(5)
    called_until_compiled(lambda: compiled(x), lambda y: torch.testing.assert_close(y, x.sin() * 2))
    assert len(hook.entries(function.__code__)) == 1


def test_what_lies_in_the_cache_is_taken_at_once(tmp_path):
    def function(x):
        return x.cos() * 3

    options, x = {"cache_dir": str(tmp_path)}, torch.randn(5)
    firebrick.compile(function, options=options)(x)
    firebrick.reset()
    before, background = firebrick.graphs_compiled(), counted()
    torch.testing.assert_close(firebrick.compile(function, options={**OPTIONS, **options})(x), x.cos() * 3)
    assert (firebrick.graphs_compiled(), counted()) == (before + 1, background)


def test_training(tmp_path):
    model, x = nn.Linear(8, 4), torch.randn(3, 8)

    def gradient(loss):
        model.zero_grad()
        loss(x).backward()
        return model.weight.grad.clone()

    def loss(x):
        return model(x).tanh().square().sum()

    wanted = gradient(loss)
    compiled = firebrick.compile(loss, options={**OPTIONS, "cache_dir": str(tmp_path)})
    called_until_compiled(lambda: gradient(compiled), lambda g: torch.testing.assert_close(g, wanted))


def test_sizes_that_vary(tmp_path):
    """A second size is compiled in the background too; what it decided about sizes is guarded."""
    model = nn.Linear(8, 4).eval()

    def function(x):
        return model(x).view(-1, 2).softmax(0)

    compiled = firebrick.compile(function, options={**OPTIONS, "cache_dir": str(tmp_path)})
    before = firebrick.graphs_compiled()
    with torch.no_grad():
        for n in (3, 5):
            x = torch.randn(n, 8)
            called_until_compiled(lambda x=x: compiled(x), lambda y, x=x: torch.testing.assert_close(y, function(x)))
        for n in (6, 1, 9):
            x = torch.randn(n, 8)
            torch.testing.assert_close(compiled(x), function(x))
    assert firebrick.graphs_compiled() - before <= 3


def test_what_must_be_a_number_is_captured_again(tmp_path, monkeypatch):
    def function(x):
        return x * 2 + 1

    def refuse(gm, run):
        sizes = pipeline._sizes_of(gm)
        if sizes is None:
            return run()
        raise pipeline.SizesRefused("for the test")

    monkeypatch.setattr(pipeline, "_with_symbols", refuse)
    compiled = firebrick.compile(function, options={**OPTIONS, "cache_dir": str(tmp_path)})
    for n in (3, 5):
        x = torch.randn(n)
        called_until_compiled(lambda x=x: compiled(x), lambda y, x=x: torch.testing.assert_close(y, x * 2 + 1))


def test_a_compile_that_fails_is_a_warning(monkeypatch, tmp_path):
    def fail(*_):
        raise RuntimeError("no luck")

    monkeypatch.setattr(pipeline._Compile, "generate", fail)
    compiled, x = firebrick.compile(lambda x: x.tan(), options={**OPTIONS, "cache_dir": str(tmp_path)}), torch.ones(3)
    with pytest.warns(firebrick.report.FirebrickWarning, match="no luck"):
        for _ in range(200):
            assert torch.equal(compiled(x), x.tan())
            time.sleep(0.02)
    assert torch.equal(compiled(x), x.tan())
