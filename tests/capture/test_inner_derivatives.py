"""Pullbacks in other transforms, forward-mode gradients and `istft` in captured code, in inference and training."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward
from torch.func import grad, jvp, vjp, vmap
from torch.utils import _pytree as pytree

import firebrick
from firebrick.errors import Unsupported

M = torch.linspace(-1, 1, 12).reshape(4, 3)
T = torch.arange(12.0).reshape(4, 3) / 7
EYE = torch.eye(12).reshape(12, 4, 3)
LINEAR = torch.nn.Linear(3, 3)


def pullback_of_a_batch(x, t):
    out, pullback = vjp(torch.sin, x)
    return out, vmap(lambda v: pullback(v)[0])(EYE)


def pullback_itself(x, t):
    _, pullback = vjp(lambda a: (a.sin(), (a * a).sum()), x)
    return vmap(pullback)((EYE, torch.ones(12)))


def pullback_of_two(x, t):
    _, pullback = vjp(lambda a, b: a @ b, x, x.t())
    return vmap(pullback)(torch.ones(5, 4, 4) * torch.arange(5.0).view(5, 1, 1)), pullback(torch.ones(4, 4))


def gradient_of_a_pullback(x, t):
    _, pullback = vjp(torch.exp, x)
    return grad(lambda v: pullback(v)[0].sum())(t)


def pullback_in_two_batches(x, t):
    def rows(row):
        _, pullback = vjp(torch.sin, row)
        return vmap(lambda v: pullback(v)[0] * row)(torch.eye(3))

    return vmap(rows)(x)


def derivative_of_a_pullback(x, t):
    _, pullback = vjp(torch.sin, x)
    return jvp(lambda v: pullback(v)[0], (x,), (t,))


def dual(x, t):
    with forward.dual_level():
        return forward.unpack_dual(forward.make_dual(x, t).sin()).tangent


def dual_through_a_module(x, t):
    with forward.dual_level():
        a = forward.make_dual(x, t)
        out = LINEAR(a).relu() * a
        primal, tangent = forward.unpack_dual(out)
        plain = forward.unpack_dual(x).tangent is None
    return primal * 2 if plain else primal, tangent, out, forward.unpack_dual(out).tangent is None


def duals_in_a_row(x, t):
    found = []
    for step in range(2):
        with forward.dual_level():
            a = forward.make_dual(x, t * step)
            found.append(forward.unpack_dual((a**3).sum()).tangent)
    return found


def dual_written_to(x, t):
    with forward.dual_level():
        a = x.clone()
        a.mul_(forward.make_dual(x, t))
        return tuple(forward.unpack_dual(a))


def dual_of_another_shape(x, t):
    with forward.dual_level():
        return forward.make_dual(x, t[0])


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(3, 5), torch.nn.Linear(5, 3)

    def forward(self, x):
        return x + self.two(torch.nn.functional.gelu(self.one(x))).tanh()


LAYERS = torch.nn.Sequential(*[Layer() for _ in range(7)])
IMAGES = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)).eval()


def dual_through_equal_layers(x, t):
    with forward.dual_level():
        return tuple(forward.unpack_dual(LAYERS(forward.make_dual(x, t))))


def dual_through_images(x, t):
    with forward.dual_level():
        image = forward.make_dual(x, t).repeat(1, 2).view(1, 1, 4, 6)
        found = torch.nn.functional.interpolate(IMAGES(image), scale_factor=2.0)
        return forward.unpack_dual(torch.cat([found.flatten(1), found.amax((2, 3))], 1)).tangent


def run(function, *, gradients):
    x = M.clone().requires_grad_(gradients)
    try:
        leaves = pytree.tree_leaves(function(x, T))
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001
        return [torch.tensor(0.0), type(error)]
    if gradients:
        sum((leaf * leaf.detach().cos()).sum() for leaf in leaves if isinstance(leaf, torch.Tensor)).backward()
        leaves.append(x.grad)
    return leaves


@pytest.mark.parametrize(
    "function",
    [
        pullback_of_a_batch, pullback_itself, pullback_of_two, gradient_of_a_pullback, pullback_in_two_batches,
        derivative_of_a_pullback, dual, dual_through_a_module, duals_in_a_row, dual_written_to, dual_of_another_shape,
        dual_through_equal_layers, dual_through_images,
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["eager", "firebrick"])
@pytest.mark.parametrize("gradients", [False, True])
def test_like_plain(function, backend, gradients):
    compiled = firebrick.compile(function, fullgraph=True, backend=backend)
    for _ in range(2):
        got, want = run(compiled, gradients=gradients), run(function, gradients=gradients)
        assert list(map(type, got)) == list(map(type, want))
        for one, other in zip(got, want, strict=True):
            if isinstance(other, torch.Tensor):
                torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-4, atol=1e-5)
            else:
                assert one == other


def test_no_graph_ends_within_a_level(capsys):
    def f(x, t):
        with forward.dual_level():
            y = forward.make_dual(x, t) * 2
            print(y.shape, y)
            return forward.unpack_dual(y).tangent

    torch.testing.assert_close(firebrick.compile(f)(M, T), T * 2)


# -- istft ------------------------------------------------------------------------------------------

WAVE = torch.sin(torch.arange(800.0) ** 1.3).reshape(2, 400)
HANN = torch.hann_window(64)
SPECTRUM = torch.stft(WAVE, 64, window=HANN, return_complex=True)
CALLS = {
    "window": lambda s: torch.istft(s, 64, window=HANN),
    "places": lambda s: torch.istft(s, 64, 16, 64, HANN, length=390),
    "no_window": lambda s: torch.istft(s, 64),
    "method": lambda s: s.istft(64, window=HANN, normalized=True),
    "short_window": lambda s: torch.istft(s, 64, 32, 48, window=torch.ones(48)),
    "both_sides": lambda s: torch.istft(torch.cat([s, s[:, 1:-1].flip(1).conj()], 1), 64, window=HANN, onesided=False),
    "no_overlap": lambda s: torch.istft(s, 64, window=HANN, center=False),
    "other_size": lambda s: torch.istft(s, 60, window=HANN),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("gradients", [False, True])
def test_istft(name, gradients):
    compiled, results = firebrick.compile(CALLS[name], fullgraph=True), []
    for function in (CALLS[name], compiled, compiled):
        spectrum = SPECTRUM.clone().requires_grad_(gradients)
        try:
            wave = function(spectrum)
        except Unsupported:
            raise
        except RuntimeError as error:
            results.append(str(error))
            continue
        if gradients:
            (wave * wave.detach().cos()).sum().backward()
        results.append((wave.detach(), spectrum.grad))
    for got in results[1:]:
        assert got == results[0] if isinstance(got, str) else torch.testing.assert_close(got, results[0]) is None
