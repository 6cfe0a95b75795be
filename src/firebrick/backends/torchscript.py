"""TorchScript as a backend: each graph traced, frozen and given to PyTorch's `optimize_for_inference`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

from firebrick import trace
from firebrick.report import recorder


class _Flat(nn.Module):
    """Returns the tensors of the graph's output; `positions` tells which outputs they are."""

    def __init__(self, gm: fx.GraphModule, positions: list[int]) -> None:
        super().__init__()
        self.gm, self.positions = gm, positions

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = self.gm(*inputs)
        return tuple(outputs[i] for i in self.positions)


def torchscript(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Trace the graph and run `torch.jit.optimize_for_inference` on it.

    Graphs that need gradients are traced only. A graph that writes to its inputs runs as it was captured, since a
    trace would keep what it saw.
    """
    if any(str(n.target).endswith("_") for n in gm.graph.nodes if n.op == "call_method"):
        recorder.warn_once("torchscript backend", "the graph writes in place and runs eagerly, not in TorchScript")
        return gm.forward
    train = trace.needs_grad(gm, example_inputs)
    gm = gm if train else gm.eval()
    with torch.set_grad_enabled(train):
        sample = gm(*[x.clone() if isinstance(x, torch.Tensor) else x for x in example_inputs])
    positions = [i for i, value in enumerate(sample) if isinstance(value, torch.Tensor)]
    fixed = {i: value for i, value in enumerate(sample) if i not in positions}
    with warnings.catch_warnings(), torch.set_grad_enabled(train):
        warnings.simplefilter("ignore")  # tracer warnings: the graph holds no Python control flow
        script = torch.jit.trace(_Flat(gm, positions).train(train), tuple(example_inputs), check_trace=False)
        if not train:
            script = torch.jit.optimize_for_inference(torch.jit.freeze(script))

    def run(*inputs: Any) -> tuple[Any, ...]:
        results = iter(script(*inputs))
        return tuple(fixed[i] if i in fixed else next(results) for i in range(len(sample)))

    return run
