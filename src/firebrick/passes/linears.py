"""Linear layers: several of one input made one matmul; int8 weights of them and of convolutions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from firebrick.extend.verify import relative_error
from firebrick.passes.flow import watch
from firebrick.passes.modules import Sample, Swap, SwapReport, call_with, output_error, set_module, swap, tensors_of
from firebrick.runtime.quantized import Int8Conv2d


class _Joined(nn.Module):
    """The weights of several linear layers, one below the other, and the result for the input seen last."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.sizes = [layer.out_features for layer in layers]
        with torch.no_grad():
            self.weight = nn.Parameter(torch.cat([layer.weight for layer in layers]))
            biases: list[torch.Tensor] = [layer.bias for layer in layers if layer.bias is not None]
            self.bias = nn.Parameter(torch.cat(biases)) if biases else None
        self.last: tuple[torch.Tensor, int, tuple[torch.Tensor, ...]] | None = None

    def part(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """The result of one layer; the first that is asked for an input computes all."""
        version = 0 if x.is_inference() else x._version
        last = self.last  # one read, so that a second thread can't mix its parts into ours
        if last is None or last[0] is not x or last[1] != version:
            parts = nn.functional.linear(x, self.weight, self.bias).split(self.sizes, -1)
            last = self.last = (x, version, parts)
        if index == len(self.sizes) - 1:
            self.last = None
        return last[2][index]


class FusedLinear(nn.Module):
    """One of several linear layers of the same input; together they run one matmul.

    Under a compiler each is its own matmul of a slice of the joined weight, which graph rules join again.
    """

    def __init__(self, joined: _Joined, index: int) -> None:
        super().__init__()
        self.joined, self.index = joined, index
        self.first = sum(joined.sizes[:index])
        self.out_features = joined.sizes[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x @ weight.T + bias of this part."""
        if torch.compiler.is_compiling() or torch.is_grad_enabled():
            rows = slice(self.first, self.first + self.out_features)
            bias = self.joined.bias[rows] if self.joined.bias is not None else None
            return nn.functional.linear(x, self.joined.weight[rows], bias)
        return self.joined.part(x, self.index)

    def extra_repr(self) -> str:
        """What print shows."""
        return f"part {self.index}, out_features={self.out_features}"


def fuse_qkv(model: nn.Module, sample: Sample, *, tolerance: float = 1e-4) -> SwapReport:
    """Join linear layers of one module that read the same tensor (query, key, value) into one matmul. Exact.

    One run on `sample` shows which layers share their input.
    """
    report = SwapReport(model)
    before = [tensors_of(call_with(model, sample))]
    flow = watch(model, sample, lambda m: type(m) is nn.Linear)
    groups: dict[tuple[str, int, bool], dict[str, nn.Linear]] = defaultdict(dict)
    for name, module in model.named_modules():
        if type(module) is nn.Linear and flow.once(name):
            key = (name.rpartition(".")[0], flow.inputs[name][0], module.bias is not None)
            groups[key][name] = module
    for members in groups.values():
        if len(members) < 2:
            continue
        joined = _Joined(list(members.values()))
        for i, (name, layer) in enumerate(members.items()):
            fused = FusedLinear(joined, i).train(layer.training)
            set_module(model, name, fused)
            report.swaps.append(Swap(name, layer, fused, f"one matmul of {len(members)}"))
    report.error = output_error(before, [tensors_of(call_with(model, sample))])
    if report.error > tolerance:
        report.left["all"] = f"undone: outputs changed by {report.error:.1e}"
        report.undo()
    return report


class Int8Linear(nn.Module):
    """A linear layer with int8 weights (a scale an output) and inputs quantized a row at a time."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(1).clamp_min(1e-12) / 127
        self.weight, self.scale = nn.Buffer(torch.round(weight / scale[:, None]).to(torch.int8).t()), nn.Buffer(scale)
        self.bias = None if layer.bias is None else nn.Buffer(layer.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x @ weight.T + bias, with the product in integers."""
        rows = x.reshape(-1, self.in_features).float()
        step = rows.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
        product = torch._int_mm(torch.round(rows / step).to(torch.int8), self.weight)
        result = product.float() * step * self.scale
        if self.bias is not None:
            result = result + self.bias
        return result.to(x.dtype).reshape(*x.shape[:-1], self.out_features)


def quantize_linear(
    model: nn.Module, *, samples: Sequence[Sample] = (), smallest: int = 64, skip: Sequence[str] = ()
) -> SwapReport:
    """Swap linear layers for int8 ones, with a quarter of the weights' memory and dynamic activations.

    Changes the mathematics by rounding to 8 bits: the report holds the output error on `samples`.

    Args:
        smallest: layers with fewer inputs or outputs stay.
        skip: names of layers that stay.
    """
    names = {name for name, layer in _layers(model, smallest, skip).items() if type(layer) is nn.Linear}
    return swap(model, lambda name, _: name in names, lambda layer: Int8Linear(layer), samples=samples, exact=False)


def quantize(
    model: nn.Module,
    samples: Sequence[Sample],
    *,
    tolerance: float = 0.05,
    smallest: int = 64,
    skip: Sequence[str] = (),
) -> SwapReport:
    """Swap linear layers and convolutions of images on a CPU for ones with int8 weights and products.

    Inputs of linear layers are quantized as they come, those of convolutions by their range on `samples`. The report
    has the output error on `samples`, and undo. Where the error is above `tolerance`, the layers whose own error is the
    largest are put back.

    Args:
        smallest: layers with fewer inputs, of a convolution those under its window, or fewer outputs stay.
        skip: names of layers that stay.
    """
    layers = {
        name: layer for name, layer in _layers(model, smallest, skip).items() if layer.weight.device.type == "cpu"
    }
    ranges: dict[str, tuple[float, float]] = {}
    packed: dict[str, nn.Module] = {}
    errors: dict[str, float] = {}

    def look(name: str, layer: Any, args: Any, result: torch.Tensor) -> None:
        least, most = ranges.get(name, (0.0, 0.0))
        least, most = ranges[name] = min(least, args[0].amin().item()), max(most, args[0].amax().item())
        packed[name] = Int8Conv2d(layer, least, most) if isinstance(layer, nn.Conv2d) else Int8Linear(layer)
        errors[name] = max(errors.get(name, 0.0), relative_error(result, packed[name](args[0])))

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(partial(look, name)))
        before = [tensors_of(call_with(model, sample)) for sample in samples]
    report = swap(model, lambda name, _: name in packed, lambda name, _: packed[name], exact=False)
    report.left.update(dict.fromkeys(layers.keys() - packed, "no sample reaches it"))
    order = sorted(packed, key=errors.__getitem__)
    while True:
        report.error = output_error(before, [tensors_of(call_with(model, sample)) for sample in samples])
        if report.error <= tolerance or not order:
            return report
        name = order.pop()
        set_module(model, name, layers[name])
        report.swaps = [swapped for swapped in report.swaps if swapped.name != name]
        report.left[name] = f"put back: its own error is {errors[name]:.1e}"


def _layers(model: nn.Module, smallest: int, skip: Sequence[str]) -> dict[str, nn.Linear | nn.Conv2d]:
    """Layers that have an int8 form, by name."""
    layers = {}
    for name, layer in model.named_modules():
        plain = type(layer) is nn.Linear and layer.in_features % 8 == 0
        if type(layer) is nn.Conv2d and not isinstance(layer.padding, str):
            plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        if plain and name and name not in skip and min(layer.weight[0].numel(), len(layer.weight)) >= smallest:
            layers[name] = layer
    return layers
