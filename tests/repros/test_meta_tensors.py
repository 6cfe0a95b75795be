"""Code that goes to the meta device gave tensors of the CPU, and a default device could outlive its block."""

import pytest
import torch

import firebrick


def moves(x):
    return x.to("meta") + 1, x + 1


def makes(x):
    with torch.device("meta"):
        made = torch.zeros(3), torch.arange(4), torch.full((2,), 3.0), torch.eye(2), torch.randn(2), torch.empty(2)
    return *made, torch.ones(2) * x[0]


def makes_literal(x):
    with torch.device("meta"):
        made = torch.tensor([1.0, 2.0])
    return made, x + 1, torch.ones(2)


def names(x):
    like = torch.ones_like(x, device="meta"), torch.full_like(x, 2.0, device="meta"), torch.empty_like(x, device="meta")
    new = x.new_zeros(3, device="meta"), x.new_empty(2, device="meta"), torch.randn(2, device="meta")
    return *like, *new, x.to(torch.device("meta")), torch.as_tensor(x, device="meta")


def breaks(x):
    with torch.device("meta"):
        made = torch.ones(3)
        firebrick.graph_break()
        other = torch.ones(3)
    return made, other, torch.ones(3)


@pytest.mark.parametrize("function", [moves, makes, makes_literal, names, breaks])
def test_devices(function):
    for got, want in zip(firebrick.compile(function)(torch.ones(3)), function(torch.ones(3)), strict=True):
        assert (got.device, got.shape, got.dtype, got.stride()) == (want.device, want.shape, want.dtype, want.stride())
        assert want.is_meta or torch.equal(got, want)
    assert torch.ones(1).device.type == "cpu"


def test_a_device_around_the_call():
    call = firebrick.compile(lambda: torch.ones(3) * 2)
    with torch.device("meta"):
        assert call().is_meta
    with torch.device("cpu"):
        assert call().device.type == "cpu"
    assert call().device.type == "cpu"


def test_the_innermost_device():
    def function():
        with torch.device("cpu"):
            return torch.ones(3) * 2

    with torch.device("meta"):
        assert torch.equal(firebrick.compile(function)(), torch.full((3,), 2.0, device="cpu"))


def test_mixing_devices_raises():
    with pytest.raises(RuntimeError, match="device"):
        firebrick.compile(lambda x: x + torch.ones(3, device="meta"))(torch.ones(3))
