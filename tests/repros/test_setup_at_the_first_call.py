"""A first call that sets a module up under a lock ended the graph in all later calls too."""

import threading

import torch
from torch import nn

import firebrick

LOCK = threading.Lock()


def set_up(net):
    if getattr(net, "ready", False):
        return
    with LOCK:
        net.ready = True


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        set_up(self)
        return self.layer(x).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x * 2) + 1


def test_later_calls_are_one_graph():
    net, x, graphs = Net().eval(), torch.randn(2, 4), []

    def noting(gm, inputs):
        graphs.append(sum(node.op.startswith("call") for node in gm.graph.nodes))
        return gm.forward

    compiled = firebrick.compile(net, backend=noting)
    with torch.no_grad():
        results = [compiled(x) for _ in range(4)]
        want = net.inner.layer(x * 2).relu() + 1
    for result in results:
        torch.testing.assert_close(result, want)
    assert graphs[-1] == 4
    assert "'ready' was not in self.inner.__dict__, now it is" in firebrick.stats()["reasons"]["recompile"]
