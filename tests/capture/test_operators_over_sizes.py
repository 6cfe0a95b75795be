"""Operators whose kernels or decompositions compute with sizes are compiled once for all of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick


def images(*shapes):
    return [torch.randn(*shape) for shape in shapes]


SQUARES = [(2, 3, 8, 8), (2, 3, 10, 12), (2, 3, 9, 7), (2, 3, 16, 5)]
ROWS = [(3, 8), (5, 8), (7, 8), (12, 8)]

FUNCTIONS = {
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), SQUARES),
    "nearest to a size": (lambda x: F.interpolate(x, size=(6, 9)), SQUARES),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), SQUARES),
    "bilinear aligned": (lambda x: F.interpolate(x, size=(6, 9), mode="bilinear", align_corners=True), SQUARES),
    "bicubic": (lambda x: F.interpolate(x, size=(6, 9), mode="bicubic"), SQUARES),
    "batch norm in training": (lambda x: F.batch_norm(x, None, None, training=True), SQUARES),
    "variance": (lambda x: x.var(0) + x.std((0, 1)), ROWS),
    "fft": (lambda x: torch.fft.fft(x, dim=0).abs() + torch.fft.ifft(x).real, ROWS),
    "fft of real numbers": (lambda x: torch.fft.rfft(x, dim=0).abs(), ROWS),
    "polynomial": (lambda x: torch.special.chebyshev_polynomial_t(x, torch.full_like(x, 3.0)), ROWS),
    "zeta": (lambda x: torch.special.zeta(x.abs() + 2, x.abs() + 1), ROWS),
    "gamma": (lambda x: torch.igamma(x.abs() + 1, x.abs()), ROWS),
    "divided by a size": (lambda x: x / x.shape[0] + x.shape[0], ROWS),
    "scaled by the root of a mean": (lambda x: x * (x.sum(0) / x.numel()), ROWS),
    "largest of windows": (lambda x: F.max_pool2d(x, 2, padding=1), SQUARES),
    "means of windows": (lambda x: F.avg_pool2d(x, 3, 2) + 1, SQUARES),
    "means of parts": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), SQUARES),
    "largest of parts": (lambda x: F.adaptive_max_pool2d(x, 2), SQUARES),
    "reflected edges": (lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect").sin(), SQUARES),
    "sampled": (lambda x: F.grid_sample(x, x[:, :2].movedim(1, -1), align_corners=False), SQUARES),
    "groups": (lambda x: F.group_norm(x.repeat(1, 2, 1, 1), 3), SQUARES),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), SQUARES),
    "addbmm": (lambda x: torch.addbmm(x.new_zeros(8, 8), x[:, :, None], x[:, None, :]), ROWS),
    "fft cut or filled": (lambda x: torch.fft.fft2(x, (6, 9), norm="ortho").abs(), SQUARES),
    "fft of a half cut or filled": (lambda x: torch.fft.irfftn(torch.fft.rfft(x, 9), (6, 12)), SQUARES),
    "fft of rows to a length": (lambda x: torch.fft.rfft(x, n=6, dim=0).abs(), ROWS),
    "kron": (lambda x: torch.kron(x, x + 1), ROWS),
    "take_along_dim": (lambda x: torch.take_along_dim(x, x.argsort(1)[:1], 1), ROWS),
    "cov": (lambda x: torch.cov(x.T, correction=0) + torch.corrcoef(x.T), ROWS),
    "few to be in": (lambda x: torch.isin(x, x.flatten()[::3][:7]), ROWS),
    "many to be in": (lambda x: torch.isin(x, torch.cat([x[0] + 1, x[1], x[2]]), invert=True), ROWS),
    "glu": (lambda x: F.glu(torch.cat([x, x]), 0), ROWS),
    "pinv": (lambda x: torch.linalg.pinv(x), [(n, n) for n in (3, 5, 7, 9)]),
    "bilinear form": (lambda x: F.bilinear(x, x, x[:2].new_ones(4, 8, 8)), ROWS),
    "quantile": (lambda x: torch.quantile(x.flatten(), 0.3), ROWS),
    "group norm of channels": (lambda x: F.group_norm(torch.cat([x, x])[None], 2), ROWS),
    "all close": (lambda x: x + torch.allclose(x, x + 1e-9), ROWS),
    "equal": (lambda x: x + x.equal(x * 1), ROWS),
    "batch norm by its op": (lambda x: torch._native_batch_norm_legit(x, None, None, True, 0.1, 1e-5)[0], SQUARES),
    "batch norm that counts": (
        lambda x: torch._native_batch_norm_legit(x, x[0, 0], x[0, 1], x[0, 1] * 0, x[0, 1] * 0, True, 0.1, 1e-5)[0],
        [(2, 3, 3), (5, 4, 4), (6, 7, 7), (3, 9, 9)],
    ),
    "eigenvalues": (lambda x: torch.linalg.eigvals(x.T @ x).abs().sort().values, ROWS),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operator_over_sizes(name):
    function, shapes = FUNCTIONS[name]
    torch.manual_seed(0)
    compiled, before = firebrick.compile(function), firebrick.graphs_compiled()
    with torch.no_grad():
        for x in images(*shapes):
            torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4)
    decided = name.endswith("of windows")  # once more where a last window is cut
    assert firebrick.graphs_compiled() - before <= 2 + decided


def test_statistics_that_batch_norm_keeps():
    ours, theirs = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    compiled, before = firebrick.compile(ours), firebrick.graphs_compiled()
    for x in images(*[(n, 3, 4, 4) for n in (2, 3, 5, 7)]):
        compiled(x).square().sum().backward()
        theirs(x).square().sum().backward()
    for one, other in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-3)
    assert firebrick.graphs_compiled() - before == 2
