"""LayerNorm to BatchNorm, and batch norms folded into the matmul or convolution before or after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from firebrick.errors import PassError
from firebrick.passes.flow import Flow, watch
from firebrick.passes.modules import Sample, Swap, SwapReport, call_with, output_error, set_module, tensors_of


class FeatureBatchNorm(nn.Module):
    """Batch norm over the last dimension: at inference one multiplication and one addition a feature.

    In training it normalises by the batch's statistics and updates the running ones, as nn.BatchNorm1d does.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, features: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.features, self.eps, self.momentum = features, eps, momentum
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise each feature."""
        if self.training:
            flat = x.reshape(-1, self.features)
            var, mean = torch.var_mean(flat, 0, correction=0)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var, self.momentum)
            return (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias
        scale, shift = self.affine()
        return x * scale + shift

    def affine(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The scale and the shift that inference applies."""
        scale = self.weight * torch.rsqrt(self.running_var + self.eps)
        return scale, self.bias - self.running_mean * scale

    def extra_repr(self) -> str:
        """What print shows."""
        return f"{self.features}, eps={self.eps}"


class _Calibrating(nn.Module):
    """Runs a layer norm and sums up what its best replacement needs."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.norm, self.count = norm, 0
        self.sums: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(x)
        a, b = (t.detach().double().reshape(-1, t.shape[-1]) for t in (x, y))
        new = [a.sum(0), b.sum(0), (a * a).sum(0), (a * b).sum(0)]
        self.sums = [s + n for s, n in zip(self.sums, new, strict=True)] if self.sums else new
        self.count += a.shape[0]
        return y

    def result(self) -> FeatureBatchNorm:
        """The affine map of each feature that is nearest to the layer norm in the mean square."""
        features = self.norm.normalized_shape[0]
        replacement = FeatureBatchNorm(features, eps=self.norm.eps)
        mean_x, mean_y, square, product = (s / self.count for s in self.sums)
        var = (square - mean_x * mean_x).clamp_min(1e-12)
        slope = (product - mean_x * mean_y) / var
        like = next(iter(self.norm.parameters()), torch.empty(0))
        with torch.no_grad():
            replacement.running_mean.copy_(mean_x)
            replacement.running_var.copy_(var)
            replacement.weight.copy_(slope * torch.sqrt(var + replacement.eps))
            replacement.bias.copy_(mean_y)
        return replacement.to(dtype=like.dtype, device=like.device)


def layernorm_to_batchnorm(model: nn.Module, samples: Sequence[Sample]) -> SwapReport:
    """Swap layer norms for batch norms that are calibrated on `samples`, one after the other in call order.

    Changes the mathematics: a layer norm takes its statistics from each row, a batch norm from the samples. The report
    holds the output error on the samples; fine-tuning wins accuracy back. Then `fold_batchnorm` can remove most.

    Raises:
        PassError: no samples.
    """
    if not samples:
        raise PassError("layernorm_to_batchnorm needs samples to calibrate on")
    report = SwapReport(model, exact=False)
    before = [tensors_of(call_with(model, s)) for s in samples]
    names = [n for n, m in model.named_modules() if isinstance(m, nn.LayerNorm)]
    for name in names:
        norm = model.get_submodule(name)
        assert isinstance(norm, nn.LayerNorm)
        if len(norm.normalized_shape) != 1:
            report.left[name] = "normalises over several dimensions"
            continue
        probe = _Calibrating(norm)
        set_module(model, name, probe)
        for sample in samples:
            call_with(model, sample)
        if probe.count == 0:
            set_module(model, name, norm)
            report.left[name] = "did not run on the samples"
            continue
        batch_norm = probe.result().train(norm.training)
        set_module(model, name, batch_norm)
        report.swaps.append(Swap(name, norm, batch_norm))
    report.error = output_error(before, [tensors_of(call_with(model, s)) for s in samples])
    return report


_NORMS = (FeatureBatchNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def fold_batchnorm(model: nn.Module, sample: Sample, *, tolerance: float = 1e-4) -> SwapReport:
    """Fold batch norms into the linear layer or convolution before them, or into the linear layers after them.

    conv -> batch norm              becomes   conv with scaled weight and new bias
    linear -> batch norm            becomes   linear, likewise
    batch norm -> linear, linear    becomes   linear, linear, each with scaled columns and new bias

    One run on `sample` shows which module's output goes where; only outputs that nothing else reads are folded. Exact
    up to rounding: the outputs on the sample are compared, and above `tolerance` everything is undone.

    Raises:
        PassError: the model is in training mode, or the outputs differ after folding.
    """
    if model.training:
        raise PassError("batch norms fold at inference only", fix="call model.eval() first")
    report = SwapReport(model)
    before = [tensors_of(call_with(model, sample))]
    flow = watch(model, sample, lambda m: isinstance(m, (nn.Linear, *_CONVS, *_NORMS)))
    modules = dict(model.named_modules())
    for name, module in list(modules.items()):
        if isinstance(module, _NORMS):
            reason = _fold_one(model, report, flow, modules, name)
            if reason:
                report.left[name] = reason
    report.error = output_error(before, [tensors_of(call_with(model, sample))])
    if report.error > tolerance:
        error = report.error
        report.undo()
        raise PassError(f"folding changed the outputs by {error:.1e}, more than {tolerance:.0e}; it was undone")
    return report


def _fold_one(model: nn.Module, report: SwapReport, flow: Flow, modules: dict[str, nn.Module], name: str) -> str:
    norm = modules[name]
    if not flow.once(name):
        return "does not run exactly once"
    scale, shift = _affine(norm)
    if scale is None or shift is None:
        return "has no running statistics"
    source = next((n for n, ids in flow.outputs.items() if ids == flow.inputs[name] and n != name), "")
    if source and flow.only_users(source) == [name] and isinstance(modules[source], (nn.Linear, *_CONVS)):
        _rewrite(report, modules[source], scale, shift, after=False)
        _drop(model, report, name, f"folded into {source}")
        return ""
    users = flow.only_users(name)
    linears = [modules[u] for u in users or () if isinstance(modules[u], nn.Linear) and flow.once(u)]
    if not users or len(linears) != len(users) or not isinstance(norm, (FeatureBatchNorm, nn.BatchNorm1d)):
        return "its output is read by more than linear layers"
    for linear in linears:
        _rewrite(report, linear, scale, shift, after=True)
    _drop(model, report, name, f"folded into {', '.join(users)}")
    return ""


def _drop(model: nn.Module, report: SwapReport, name: str, note: str) -> None:
    old, new = model.get_submodule(name), nn.Identity().eval()
    set_module(model, name, new)
    report.swaps.append(Swap(name, old, new, note))


def _affine(norm: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if isinstance(norm, FeatureBatchNorm):
        scale, shift = norm.affine()
        return scale.detach(), shift.detach()
    if norm.running_mean is None or norm.running_var is None:
        return None, None
    weight, bias = (norm.weight.detach(), norm.bias.detach()) if norm.affine else (1.0, 0.0)
    scale = torch.rsqrt(norm.running_var + norm.eps) * weight
    return scale, bias - norm.running_mean * scale


def _rewrite(report: SwapReport, layer: Any, scale: torch.Tensor, shift: torch.Tensor, *, after: bool) -> None:
    """Give `layer` the weights that include an affine map of its input (`after` a norm) or of its output."""
    old_weight, old_bias = layer.weight, layer.bias
    weight = old_weight.detach()
    bias = old_bias.detach() if old_bias is not None else torch.zeros(weight.shape[0], dtype=weight.dtype)
    if after:
        new_bias = bias + weight @ shift
        new_weight = weight * scale
    else:
        new_bias = bias * scale + shift
        new_weight = weight * scale.reshape(-1, *[1] * (weight.dim() - 1))

    def restore() -> None:
        layer.weight, layer.bias = old_weight, old_bias

    layer.weight = nn.Parameter(new_weight, requires_grad=old_weight.requires_grad)
    layer.bias = nn.Parameter(new_bias, requires_grad=old_weight.requires_grad)
    report.on_undo(restore)
