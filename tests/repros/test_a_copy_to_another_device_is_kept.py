"""A conversion that changes nothing but the device was dropped as if it changed nothing."""

import torch
from torch import fx

from firebrick.fakes.mode import new_fake_mode
from firebrick.passes.rules import _drop_noops


def test_a_copy_to_another_device_is_kept():
    for device, kept in (("cpu", True), ("cuda:0", False)):
        graph = fx.Graph()
        x = graph.placeholder("x")
        copy = graph.call_function(torch.ops.aten._to_copy.default, (x,), {"device": torch.device(device)})
        made = graph.call_function(torch.ops.aten.add.Tensor, (copy, 1))
        graph.output(made)
        with new_fake_mode():
            x.meta["val"] = torch.empty(3, device="cuda:0")
            copy.meta["val"] = made.meta["val"] = torch.empty(3, device=device)
        gm = fx.GraphModule(torch.nn.Module(), graph)
        _drop_noops(gm)
        assert any(n.target is torch.ops.aten._to_copy.default for n in gm.graph.nodes) == kept
