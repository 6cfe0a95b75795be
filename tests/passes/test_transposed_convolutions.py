"""Transposed convolutions by constant weights are oneDNN's, whose weights are packed once, with what follows."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick
from firebrick.report import recorder

pytestmark = pytest.mark.compiler
CASES = {
    "doubled": (lambda: nn.ConvTranspose2d(24, 40, 2, 2), (2, 24, 9, 11)),
    "overlapping": (lambda: nn.ConvTranspose2d(24, 13, 4, 2, 1, bias=False), (3, 24, 9, 8)),
    "wider": (lambda: nn.ConvTranspose2d(3, 8, 3, (2, 3), 1, output_padding=(1, 2)), (1, 3, 7, 5)),
    "dilated": (lambda: nn.ConvTranspose2d(8, 6, 3, 1, 2, dilation=(2, 1)), (2, 8, 10, 6)),
    "long sums": (lambda: nn.ConvTranspose2d(600, 16, 3), (1, 600, 5, 4)),
    "rows": (lambda: nn.ConvTranspose1d(24, 16, 8, 4, 2), (2, 24, 50)),
    "odd rows": (lambda: nn.ConvTranspose1d(24, 16, 3, 2, 1, 1, dilation=2, bias=False), (1, 24, 31)),
    "volumes": (lambda: nn.ConvTranspose3d(8, 12, 3, 2, 1, 1), (2, 8, 4, 5, 6)),
    "groups": (lambda: nn.ConvTranspose2d(24, 48, 3, 2, groups=4), (2, 24, 9, 11)),
    "no batch": (lambda: nn.ConvTranspose2d(24, 40, 2, 2), (24, 9, 11)),
}
NORMS = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class Up(nn.Module):
    """Followed by nothing, by an activation, and by a batch norm and one."""

    def __init__(self, make, rank):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.other, self.last = make(), make(), make()
        self.norm = NORMS[rank](self.up.out_channels) if rank in NORMS else nn.Identity()
        for name, t in self.norm.named_buffers():
            t.uniform_(0.5, 2) if name.startswith("running") else None
        for t in self.norm.parameters():
            nn.init.normal_(t)

    def forward(self, x):
        return self.up(x), F.silu(self.other(x)), F.relu(self.norm(self.last(x))), F.gelu(self.up(x + 1) * 2)


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("case", CASES)
def test_results_are_eagers(case, last):
    make, shape = CASES[case]
    if last and len(shape) not in LAST:
        pytest.skip("no other layout")
    model, x = Up(make, len(shape) if case != "no batch" else 0).eval(), torch.randn(shape)
    x = x.contiguous(memory_format=LAST[len(shape)]) if last else x
    recorder.reset()
    with torch.no_grad():
        found, eager = firebrick.compile(model, options={"cache": False, "check": "ir"})(x), model(x)
        exact = model.double()(x.double())
    for ours, theirs, right in zip(found, eager, exact, strict=True):
        assert ours.stride() == theirs.stride()
        assert (ours - right).abs().max() <= 1.1 * (theirs - right).abs().max() + 2e-6 * right.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["doubled", "rows", "volumes"])
def test_weights_are_packed(case, dtype, caplog):
    make, shape = CASES[case]
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bfloat16 here")
    layer, x = make().eval().to(dtype), torch.randn(shape, dtype=dtype)
    with torch.no_grad():
        found = firebrick.compile(layer, options={"cache": False, "debug": "aten"})(x)
        torch.testing.assert_close(found, layer(x))
    assert "mkldnn._convolution_transpose_pointwise" in caplog.text


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_layouts_pass_through(rank):
    """Between convolutions values stay channels last, and shapes are computed anew."""
    torch.manual_seed(0)
    down, up = (getattr(nn, f"{name}{rank}d") for name in ("Conv", "ConvTranspose"))
    layers = down(16, 24, 3, padding=1), nn.LeakyReLU(0.1), up(24, 20, 4, 2, 1), nn.LeakyReLU(0.1), up(20, 8, 2, 2)
    model, x = nn.Sequential(*layers, nn.ReLU(), down(8, 3, 3)).eval(), torch.randn(2, 16, *(7, 6, 5)[:rank])
    recorder.reset()
    with torch.no_grad():
        found, exact = firebrick.compile(model, options={"cache": False, "check": "ir"})(x), model.double()(x.double())
    torch.testing.assert_close(found, exact.float(), atol=1e-5, rtol=1e-4)
    assert firebrick.stats()["counts"]["graphs compiled"] == 1


def test_a_weight_that_changes_is_packed_again():
    layer, x = nn.ConvTranspose2d(16, 24, 2, 2).eval(), torch.randn(1, 16, 6, 6)
    run = firebrick.compile(layer, options={"cache": False})
    with torch.no_grad():
        torch.testing.assert_close(run(x), layer(x))
        layer.weight.mul_(-2)
        torch.testing.assert_close(run(x), layer(x))
