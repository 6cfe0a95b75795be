"""Convolutions in training: channels last inside of the graph, and everything that the caller sees as in eager mode."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick
from firebrick.passes.training_images import images_last
from firebrick.trace import trace_joint

aten = torch.ops.aten


class Up(nn.Module):
    """A U-Net of two levels: pooling, interpolation, a join of what lies in two layouts, a head of single pixels."""

    def __init__(self, norm: bool = True, mode: str = "bilinear") -> None:
        super().__init__()
        self.mode = mode
        self.down, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.head = nn.Conv2d(24, 8, 3, padding=1), nn.Conv2d(8, 2, 1)
        self.norm = nn.BatchNorm2d(8) if norm else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = F.relu(self.norm(self.down(x)))
        deep = F.relu(self.deep(F.max_pool2d(skip, 2)))
        deep = F.interpolate(deep, scale_factor=2, mode=self.mode)
        return self.head(F.relu(self.up(torch.cat([skip, deep], 1))))


class Grown(nn.Module):
    """A join that begins with a tensor of one dimension and no elements, as eager mode allows."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.cat([torch.zeros(0), self.one(x)], 1))


MODELS: dict[str, Any] = {
    "up": lambda: (Up(), (2, 3, 12, 12)),
    "nearest": lambda: (Up(mode="nearest"), (2, 3, 12, 12)),
    "pixels": lambda: (nn.Conv2d(5, 7, 1), (3, 5, 4, 6)),
    "pixels without bias": lambda: (nn.Conv2d(5, 7, 1, bias=False), (3, 5, 4, 6)),
    "one pixel": lambda: (nn.Sequential(nn.Conv2d(5, 7, 1), nn.ReLU(), nn.Conv2d(7, 4, 1)), (3, 5, 1, 1)),
    "one channel": lambda: (nn.Sequential(nn.Conv2d(1, 1, 1), nn.Conv2d(1, 6, 3)), (2, 1, 5, 5)),
    "steps of pixels": lambda: (nn.Conv2d(5, 7, 1, stride=2), (3, 5, 6, 6)),
    "padded pixels": lambda: (nn.Conv2d(5, 7, 1, padding=1), (3, 5, 6, 6)),
    "groups": lambda: (nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 1, groups=2)), (2, 8, 6, 6)),
    "transposed": lambda: (nn.Sequential(nn.ConvTranspose2d(6, 4, 2, 2), nn.ConvTranspose2d(4, 3, 1)), (2, 6, 5, 5)),
    "grown": lambda: (Grown(), (2, 3, 6, 6)),
    "flat": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 3)), (2, 3, 6, 6)),
    "dropped": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.5), nn.Conv2d(4, 4, 3)), (2, 3, 8, 8)),
}


def run(model: nn.Module, call: Any, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(7)
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    result = call(x)
    (result * torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape)).sum().backward()
    return [result, x.grad, *(p.grad for p in model.parameters()), *(b for b in model.buffers() if b.dim())]  # type: ignore[list-item]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_results_and_gradients_are_eagers(name: str, last: bool) -> None:
    torch.manual_seed(0)
    model, shape = MODELS[name]()
    x = torch.randn(shape)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    ours, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    expected = run(model, model, x)
    got = run(ours, firebrick.compile(ours, fullgraph=True), x)
    true = run(exact, exact, x.double())
    for a, b, t in zip(got, expected, true, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        if name != "dropped":  # whose numbers are others in float64
            assert (a - t).abs().max() <= 4 * (b - t).abs().max() + 1e-5 * t.abs().max()


def test_a_whole_network_copies_what_comes_in_and_weights_alone() -> None:
    torch.manual_seed(0)
    module = torch.fx.symbolic_trace(Up())
    x = torch.randn(2, 3, 12, 12)
    joint = trace_joint(module, [x]).gm
    assert images_last.apply(joint, None)  # type: ignore[arg-type]
    convolutions = [*joint.graph.find_nodes(op="call_function", target=aten.convolution.default)]
    backward = [*joint.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)]
    assert (len(convolutions), len(backward)) == (3, 3)
    for node in (*convolutions, *backward):
        for image in node.args[: 1 + (node in backward)]:
            assert image.meta["val"].is_contiguous(memory_format=torch.channels_last)
    copies = joint.graph.find_nodes(op="call_function", target=aten.clone.default)
    read = [node.args[0] for node in copies if node.kwargs.get("memory_format") is torch.channels_last]
    assert [node.name for node in read if node.op == "placeholder"] == ["x", "tangent_0"]
    assert len(read) == 4  # the others are what was interpolated, and of its gradient the part of the channels
    (back,) = joint.graph.find_nodes(op="call_function", target=aten.upsample_bilinear2d_backward.default)
    assert back.args[0].target is aten.clone.default
    check = firebrick.compile(Up(), options={"disable_passes": {"images_last"}, "verify_passes": True})
    assert torch.isfinite(check(x)).all()


def test_eager_numerics_leave_them() -> None:
    model = nn.Conv2d(3, 4, 1)
    ours, x = copy.deepcopy(model), torch.randn(2, 3, 5, 5)
    got = run(ours, firebrick.compile(ours, fullgraph=True, options={"numerics": "eager"}), x)
    assert all(torch.equal(a, b) for a, b in zip(got, run(model, model, x), strict=True))
