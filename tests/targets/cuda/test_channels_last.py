"""Convolutions for a GPU: weights are laid out channels last once, and what follows lies so too."""

import pytest
import torch
from torch import fx, nn

from firebrick import fuse, host, runtime
from firebrick.config import Config
from firebrick.lower import lower
from firebrick.passes import run_passes
from firebrick.targets.by_device import find_targets
from firebrick.targets.cuda.cuda_target import CudaTarget
from firebrick.targets.cuda.facts import CARDS
from firebrick.trace import trace_inference

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("cudnn")]
aten = torch.ops.aten


class Net(nn.Module):
    def __init__(self, groups=1, window=3):
        super().__init__()
        self.first = nn.Conv2d(4, 8, window, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 1, groups=groups)

    def forward(self, x):
        y = torch.relu(self.norm(self.first(x)))
        return self.second(y) + y, y.mean((2, 3)), y.flatten(1)


def made_for_a_card(net, x):
    """The ATen graph as passes write it for a card, and the same run by this machine's target."""
    gm, config = fx.symbolic_trace(net), Config()
    with torch.no_grad():
        aten_graph = trace_inference(gm, [x], config)
        aten_graph = run_passes(aten_graph, {"cpu": CudaTarget(CARDS[90])}, config)
    targets = find_targets((), config)
    program = fuse.schedule(lower(aten_graph, targets, config), targets, config)
    return aten_graph, runtime.load(
        runtime.build(host.generate(program, targets, config), config), aten_graph.constants
    )


def strides_of_calls(graph):
    return [n.meta["val"].stride() for n in graph.gm.graph.nodes if n.target is aten.convolution.default]


def is_last(strides):
    return strides[1] == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_short_types_lie_channels_last(dtype):
    net, x = Net().to(dtype).eval(), torch.randn(2, 4, 6, 5).to(dtype)
    with torch.no_grad():
        net.norm.running_mean.normal_()
    graph, run = made_for_a_card(net, x)
    assert all(map(is_last, strides_of_calls(graph)))
    (copy,) = (n for n in graph.recipe.nodes if "memory_format" in n.kwargs)
    assert copy.kwargs == {"dtype": dtype, "memory_format": torch.channels_last}
    for _ in range(2):
        with torch.no_grad():
            want = net(x)
        for a, b in zip(run(x), want, strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
        with torch.no_grad():
            net.first.weight.mul_(1.5)


@pytest.mark.parametrize(
    ("net", "dtype"), [(Net(), torch.float32), (Net(window=1), torch.float16)], ids=["float32", "single pixels"]
)
def test_others_stay_as_they_are(net, dtype):
    net, x = net.to(dtype).eval(), torch.randn(2, 4, 6, 5).to(dtype)
    graph, _ = made_for_a_card(net, x)
    assert graph.recipe is None or not any(n.target is aten.clone.default for n in graph.recipe.nodes)
