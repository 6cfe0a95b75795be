"""Zero points far outside of a byte's range: corrections of an int8 product overflowed 32 bits, silently."""

import pytest
import torch
from torch import nn

import firebrick

pytestmark = [pytest.mark.compiler, pytest.mark.filterwarnings("ignore")]


class Product(nn.Module):
    def __init__(self, x_point, w_point, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Buffer(torch.randint(-128, 128, (48, 512)).to(torch.int8))
        self.weight[:, :256] = 100
        self.x_point, self.dtype = x_point, dtype
        self.w_point = nn.Buffer(w_point) if isinstance(w_point, torch.Tensor) else w_point

    def forward(self, x, *point):
        rows = x.to(self.dtype) - (point[0].to(self.dtype) if point else self.x_point)
        columns = self.weight.to(self.dtype) - self.w_point
        return torch.mm(rows.float() * 0.5, (columns.float() * 0.25).t())


def check(model, *args, rtol=1e-6):
    with torch.no_grad():
        out = firebrick.compile(model, fullgraph=True, options={"cache": False})(*args)
        wanted = model(*args)
    rows = args[0].to(model.dtype) - (args[1].to(model.dtype) if len(args) > 1 else model.x_point)
    columns = model.weight.to(model.dtype) - model.w_point
    exact = (rows.double() * 0.5) @ (columns.double() * 0.25).t()
    assert (out - exact).abs().max() <= 1.1 * (wanted - exact).abs().max() + rtol * exact.abs().max()


X = torch.randint(-128, 128, (20, 512), generator=torch.Generator().manual_seed(1)).to(torch.int8)


@pytest.mark.parametrize("x_point", [0, 3, 1_000_000, -3_000_000_000])
@pytest.mark.parametrize("w_point", [0, 100_000, torch.full((48, 1), 70_000), torch.full((48, 1), 3)])
def test_numbers_and_constants(x_point, w_point):
    check(Product(x_point, w_point), X)


@pytest.mark.parametrize("point", [torch.tensor(2_000_000), torch.tensor(40), torch.full((20, 1), -5_000_000_000)])
def test_points_of_a_call(point):
    check(Product(0, 0), X, point)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_differences_of_whole_numbers(dtype):
    check(Product(32_700, -32_700, dtype), X)


def test_what_is_no_number():
    model = Product(float("inf"), 0)
    with torch.no_grad():
        run = firebrick.compile(model, fullgraph=True, options={"cache": False})
        torch.testing.assert_close(run(X), model(X), equal_nan=True)
