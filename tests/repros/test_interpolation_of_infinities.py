"""Between infinities linear interpolation gave NaN with symbols for sizes, and of rows whose number stays."""

import pytest
import torch
import torch.nn.functional as F

import firebrick

MODES = {"linear": (6,), "bilinear": (6, 5), "trilinear": (3, 6, 5)}


def image(mode):
    x = torch.linspace(-1, 1, 2 * torch.Size(MODES[mode]).numel()).reshape(1, 2, *MODES[mode])
    x[0, 0, ..., 2] = -torch.inf
    x[0, 1, ..., 0] = torch.inf
    x[0, 1, ..., 3] = torch.nan
    return x


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("how", ["twice", "to a size", "as it is", "along one"])
@pytest.mark.parametrize("mode", MODES)
def test_infinities_stay_where_eager_has_them(mode, how, dynamic):
    size = {"to a size": 9, "as it is": [*MODES[mode]], "along one": [*MODES[mode][:-1], 9]}.get(how)

    def f(x):
        return F.interpolate(x, size, 2 if size is None else None, mode)

    x = image(mode)
    torch.testing.assert_close(firebrick.compile(f, dynamic=dynamic)(x), f(x), equal_nan=True)


def test_gradients_over_sizes():
    def f(x):
        return F.interpolate(x, scale_factor=2, mode="bilinear").square().sum() + F.glu(x, 0).sum()

    compiled = firebrick.compile(f)
    before = firebrick.graphs_compiled()
    for n in (4, 5, 6, 8):
        x = torch.randn(2, 3, n, n, requires_grad=True)
        (wanted,), (got,) = (torch.autograd.grad(g(x), x) for g in (f, compiled))
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert firebrick.graphs_compiled() - before == 2
