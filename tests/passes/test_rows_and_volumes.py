"""Convolutions of rows and volumes run on the kernels of those of images."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from vectors import needs_vectors

import firebrick
from firebrick import fuse, pipeline
from firebrick.ir.loops.program import Extern

pytestmark = pytest.mark.compiler


@pytest.fixture
def called(monkeypatch):
    """Kinds of the calls and of the kernels written by hand that schedules have besides loops."""
    names = []
    made = fuse.schedule

    def watch(*args, **kwargs):
        schedule = made(*args, **kwargs)
        names.extend(s.op for s in schedule.steps if isinstance(s, Extern))
        names.extend(k.name.split("_")[1] for k in schedule.kernels if not k.loops)
        return schedule

    monkeypatch.setattr(pipeline.fuse, "schedule", watch)
    return names


def check(model, *inputs):
    """The results are eager's in layout, and as near to the exact ones."""
    with torch.no_grad():
        found = firebrick.compile(model, options={"cache": False})(*inputs)
        eager = model(*inputs)
        exact = model.double()(*[x.double() for x in inputs])
    assert found.stride() == eager.stride()
    assert found.dtype == eager.dtype
    assert (found - exact).abs().max() <= 1.1 * (eager - exact).abs().max() + 2e-6 * exact.abs().max()


def seeded(make):
    torch.manual_seed(0)
    return make().eval()


ROWS = {
    "one channel": (lambda: nn.Conv1d(1, 48, 10, 5, bias=False), (2, 1, 4000)),
    "padded": (lambda: nn.Conv1d(40, 50, 3, padding=1), (3, 40, 301)),
    "strided": (lambda: nn.Conv1d(64, 33, 4, 2, 3), (1, 64, 97)),
    "pixels a page apart": (lambda: nn.Conv1d(512, 40, 3, 2), (2, 512, 61)),
    "dilated": (lambda: nn.Conv1d(24, 40, 3, dilation=4, padding=8), (2, 24, 200)),
    "single": (lambda: nn.Conv1d(64, 96, 1), (2, 64, 100)),
    "one result": (lambda: nn.Conv1d(64, 96, 30), (1, 64, 30)),
    "depthwise": (lambda: nn.Conv1d(96, 96, 4, padding=3, groups=96), (8, 96, 200)),
    "no batch": (lambda: nn.Conv1d(40, 50, 3, padding="same"), (40, 301)),
    "mirrored": (lambda: nn.Conv1d(40, 50, 5, padding=2, padding_mode="reflect"), (2, 40, 100)),
}
VOLUMES = {
    "padded": (lambda: nn.Conv3d(8, 16, 3, padding=1), (2, 8, 6, 17, 15)),
    "strided": (lambda: nn.Conv3d(8, 33, 3, 2, 1, bias=False), (2, 8, 7, 16, 15)),
    "strided, one volume": (lambda: nn.Conv3d(8, 33, (3, 3, 2), (2, 2, 1)), (1, 8, 7, 16, 15)),
    "patches": (lambda: nn.Conv3d(3, 40, (2, 8, 8), (2, 8, 8)), (2, 3, 4, 32, 24)),
    "flat": (lambda: nn.Conv3d(24, 40, (1, 3, 3), padding=(0, 1, 1)), (2, 24, 5, 14, 14)),
    "deep": (lambda: nn.Conv3d(24, 40, (3, 1, 1), padding=(1, 0, 0)), (2, 24, 5, 14, 14)),
    "single": (lambda: nn.Conv3d(24, 40, 1), (2, 24, 5, 14, 14)),
    "dilated": (lambda: nn.Conv3d(16, 20, 3, dilation=(2, 1, 2), padding=2), (2, 16, 9, 10, 11)),
    "one place": (lambda: nn.Conv3d(16, 40, (5, 4, 4)), (4, 16, 5, 4, 4)),
    "no batch": (lambda: nn.Conv3d(16, 20, 3), (16, 9, 10, 11)),
}


@needs_vectors
@pytest.mark.parametrize("name", ROWS)
def test_rows(name, called):
    make, shape = ROWS[name]
    check(seeded(make), torch.randn(shape))
    assert called and set(called) <= {"convolution", "linear"}


@needs_vectors
@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(name, called):
    make, shape = VOLUMES[name]
    check(seeded(make), torch.randn(shape))
    assert called and set(called) <= {"convolution", "linear"}


@pytest.mark.parametrize("layout", ["permuted", "sliced", "channels last"])
def test_volumes_and_rows_in_other_layouts(layout):
    volume, row = seeded(lambda: nn.Conv3d(16, 20, 3, padding=1)), seeded(lambda: nn.Conv1d(40, 50, 3))
    x, y = torch.randn(2, 16, 6, 7, 8), torch.randn(2, 40, 90)
    if layout == "permuted":
        x, y = torch.randn(7, 16, 2, 8, 6).permute(2, 1, 4, 0, 3), torch.randn(90, 2, 40).permute(1, 2, 0)
    elif layout == "sliced":
        x, y = torch.randn(2, 20, 6, 14, 8)[:, 4:, :, ::2], torch.randn(2, 44, 180)[:, 4:, ::2]
    else:
        x, y = x.to(memory_format=torch.channels_last_3d), y.transpose(1, 2).contiguous().transpose(1, 2)
    with torch.no_grad():
        found = firebrick.compile(lambda x, y: (volume(x), row(y)))(x, y)
        for a, b in zip(found, (volume(x), row(y)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)


class Block(nn.Module):
    def __init__(self, rank, window):
        super().__init__()
        conv, norm = (nn.Conv1d, nn.BatchNorm1d) if rank == 1 else (nn.Conv3d, nn.BatchNorm3d)
        self.conv, self.norm = conv(32, 32, window, padding="same"), norm(32)
        self.norm.running_var.uniform_(0.5, 2)
        self.norm.running_mean.normal_()

    def forward(self, x):
        return F.relu(self.norm(self.conv(F.gelu(self.norm(self.conv(x))))) + x)


@needs_vectors
@pytest.mark.parametrize(("rank", "window"), [(1, 3), (1, 1), (3, 3), (3, (3, 1, 1)), (3, 1)])
def test_norm_residual_and_activation_are_fused(rank, window, called):
    made = seeded(lambda: Block(rank, window))
    check(made, torch.randn(2, 32, 100) if rank == 1 else torch.randn(2, 32, 6, 9, 10))
    assert called and set(called) <= {"convolution", "linear"}


@pytest.mark.parametrize("rank", [1, 3])
def test_what_is_no_number_stays_where_it_is(rank):
    made = seeded(lambda: nn.Sequential((nn.Conv1d if rank == 1 else nn.Conv3d)(32, 32, 3, padding=1), nn.ReLU()))
    x = torch.randn(1, 32, 100) if rank == 1 else torch.randn(1, 32, 6, 9, 10)
    x.flatten()[[5, 700, -1]] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    with torch.no_grad():
        torch.testing.assert_close(firebrick.compile(made)(x), made(x), equal_nan=True)


def test_weights_that_change_are_packed_again():
    net = seeded(lambda: nn.Sequential(nn.Conv3d(16, 32, 3), nn.Conv3d(32, 32, (3, 1, 1))))
    x, run = torch.randn(1, 16, 8, 9, 9), firebrick.compile(net)
    with torch.no_grad():
        torch.testing.assert_close(run(x), net(x))
        for layer in net:
            layer.weight.mul_(-2)
            layer.bias.add_(1)
        torch.testing.assert_close(run(x), net(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16])
def test_other_types_give_what_eager_does(dtype):
    row, volume = seeded(lambda: nn.Conv1d(40, 50, 3, padding=1)), seeded(lambda: nn.Conv3d(8, 16, 3))
    x, y = torch.randn(2, 40, 90, dtype=dtype), torch.randn(2, 8, 6, 7, 8, dtype=dtype)
    row, volume = row.to(dtype), volume.to(dtype)
    with torch.no_grad():
        found = firebrick.compile(lambda x, y: (row(x), volume(y)))(x, y)
        for a, b in zip(found, (row(x), volume(y)), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", [(0, 40, 30), (2, 40, 3)])
def test_nothing_and_little(shape):
    row = seeded(lambda: nn.Conv1d(40, 50, 3))
    with torch.no_grad():
        torch.testing.assert_close(firebrick.compile(row)(torch.ones(shape)), row(torch.ones(shape)))
