"""An operator of others that writes to its arguments and has no functional form stays in a compiled graph: the graph
ran on eager kernels."""

import subprocess
import sys

import pytest
import torch

import firebrick


@torch.library.custom_op("firebrick_repro_forms::add_twice", mutates_args=("out",))
def add_twice(x: torch.Tensor, out: torch.Tensor, times: int = 2, note: str = "(") -> None:
    out.add_(x * times)


@torch.library.custom_op("firebrick_repro_forms::swap", mutates_args=("a", "b"))
def swap(a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    kept = a.clone()
    a.copy_(b)
    b.copy_(kept)
    return kept * scale


@swap.register_fake
def _(a, b, scale):
    return torch.empty_like(a)


def alone(x):
    out = torch.zeros_like(x)
    add_twice(x + 1, out)
    return out * 3


def by_name(x):
    out = torch.ones_like(x)
    add_twice(out=out.t(), x=x.t(), times=3)
    return out - x


def argument(x):
    add_twice(x * 2, x)
    return x + 1


def several(x):
    a, b = x + 1, x * 2
    c = swap(a, b, 0.5)
    return a - b, c


@pytest.mark.parametrize("fn", [alone, by_name, argument, several])
def test_an_operator_that_writes_is_compiled(fn):
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    compiled = firebrick.compile(fn, fullgraph=True, options={"strict": True})
    for one in (x, y):
        here, there = one.clone(), one.clone()
        assert torch.equal(torch.stack([*compiled(here)]), torch.stack([*fn(there)]))
        assert torch.equal(here, there)


@pytest.mark.filterwarnings("ignore:.*writes memory")
def test_arguments_that_share_memory_are_left_to_eager():
    def fn(x):
        y = x + 1
        add_twice(y[:2], y[1:])
        return y * 2

    x = torch.arange(9.0).reshape(3, 3)
    assert torch.equal(firebrick.compile(fn, options={"strict": False})(x), fn(x))


PROGRAM = """
import torch, firebrick

@torch.library.custom_op("firebrick_repro_forms::own", mutates_args=("out",))
def own(x: torch.Tensor, out: torch.Tensor) -> None:
    out.add_(x * 2)

def fn(x):
    out = torch.zeros_like(x)
    own(x + 1, out)
    return out * 3

assert firebrick.compile(fn)(torch.ones(4)).tolist() == [12.0] * 4
print(firebrick.stats()["counts"].get("cache hits", 0))
"""


def test_another_process_finds_it_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FIREBRICK_CACHE_DIR", str(tmp_path))
    command = [sys.executable, "-c", PROGRAM]
    seen = [subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() for _ in range(2)]
    assert seen == ["0", "1"]
