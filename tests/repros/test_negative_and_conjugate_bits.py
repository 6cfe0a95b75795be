"""Tensors whose memory holds the negatives or conjugates of their numbers were read as if it held the numbers.

Sums of complex numbers were whole numbers on the way: `torch.dot` of complex vectors lost all but that.
"""

import copy

import pytest
import torch
from torch import nn

import firebrick

COMPLEX = torch.view_as_complex(torch.linspace(-2, 2, 32).reshape(4, 4, 2).sin())
CONJUGATED, NEGATED = COMPLEX.conj(), COMPLEX.conj().imag


def _written(x):
    x[1].mul_(3)
    x.t().add_(1)
    return x[0], x + 1


def _written_inside(z):
    y = z * 2
    part = y.conj().imag
    part[1].mul_(3)
    return y, part + 1


def _views_of(z):
    return z, z.conj(), z.conj().t()


def _by_memory(x):
    seen = x.as_strided((2, 2), (2, 4), 2)
    return seen, seen + 1


PROGRAMS = [
    (lambda z: z.conj().imag + 1, COMPLEX),
    (lambda z: (z.conj(), z.conj().t(), z.mH), COMPLEX),
    (lambda z: (z.mH + 1, z.conj().conj(), z @ z.mH, z.abs()), CONJUGATED),
    (lambda z: (z.resolve_conj(), z.imag.resolve_neg(), z.real * z.imag), CONJUGATED),
    (lambda z: ((z * 2).conj(), (z * 2).conj().t(), torch.fft.fft(z).conj()), COMPLEX),
    (lambda z: _views_of(z * 2), COMPLEX),
    (lambda x: (x + 1, x.t(), x.sum(0), x.resolve_neg(), torch._neg_view(x), x.reshape(2, 8), x.clone()), NEGATED),
    (lambda x: x + (1 if x.is_neg() else 2), NEGATED),
    (lambda x: (x + 1, x.t()), torch._neg_view(torch.arange(12.0).view(3, 4)[:, ::2])),
    (lambda x: (x + 1, x.float()), torch._neg_view(torch.arange(5).expand(3, 5))),
    (_by_memory, NEGATED),
    (_written, torch._neg_view(torch.arange(16.0).view(4, 4))),
    (_written_inside, COMPLEX),
    (lambda z: (z * 2).conj().imag, COMPLEX),
    (lambda z: (torch.vdot(z[0], z[1].conj()), torch.dot(z[0], z[1]), z.sum(), z.cumsum(0)), COMPLEX),
]


def _describe(results):
    results = results if isinstance(results, (tuple, list)) else (results,)
    return [(r.resolve_conj().resolve_neg(), r.dtype, r.is_conj(), r.is_neg()) for r in results]


@pytest.mark.parametrize(("program", "argument"), PROGRAMS)
def test_programs_are_as_in_eager(program, argument):
    plain, ours = copy.copy(argument), copy.copy(argument)
    if program is _written:
        plain, ours = (torch._neg_view(argument.resolve_neg().neg()) for _ in range(2))
    with torch.no_grad():
        wanted = _describe(program(plain))
        got = _describe(firebrick.compile(program)(ours))
    assert [row[1:] for row in got] == [row[1:] for row in wanted]
    torch.testing.assert_close([row[0] for row in got], [row[0] for row in wanted])
    torch.testing.assert_close(ours, plain)


def test_results_share_the_argument_s_memory():
    x = torch._neg_view(torch.arange(16.0).view(4, 4))
    with torch.no_grad():
        seen = firebrick.compile(lambda x: x.t())(x)
        seen.add_(5)
    torch.testing.assert_close(x, 5 - torch.arange(16.0).view(4, 4))


class _Holder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.shift = NEGATED
        self.register_buffer("turned", CONJUGATED)
        self.scale = nn.Parameter(NEGATED[1])

    def forward(self, x):
        return self.linear(x) * self.scale + self.shift, self.turned.mH, self.turned @ self.turned


def test_constants_have_them_too():
    model = _Holder()
    with torch.no_grad():
        for x in (torch.ones(4, 4), NEGATED):
            wanted, got = _describe(model(x)), _describe(firebrick.compile(model)(x))
            torch.testing.assert_close([r[0] for r in got], [r[0] for r in wanted])
            assert [r[1:] for r in got] == [r[1:] for r in wanted]


@pytest.mark.parametrize("function", [lambda x, w: (x * w).sum() + (w @ x.t()).sum(), lambda x, w: (x.t() * w).sin()])
@pytest.mark.parametrize("trained", [False, True])
def test_gradients_of_and_beside_them(function, trained):
    weight = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
    given = torch._neg_view(torch.arange(16.0).view(4, 4).cos()).requires_grad_(trained)
    leaves = [weight, given] if trained else [weight]
    wanted = torch.autograd.grad(function(given, weight).sum(), leaves)
    got = torch.autograd.grad(firebrick.compile(function)(given, weight).sum(), leaves)
    torch.testing.assert_close(got, wanted)


def _both_signs(x):
    return x.t(), torch._neg_view(x)


def test_inference_tensors_seen_negated():
    with torch.inference_mode():
        x = torch._neg_view(torch.arange(6.0).view(2, 3))
    with torch.no_grad():
        wanted, got = _describe(_both_signs(x)), _describe(firebrick.compile(_both_signs)(x))
    assert [r[1:] for r in got] == [r[1:] for r in wanted]
    torch.testing.assert_close([r[0] for r in got], [r[0] for r in wanted])


def test_minus_of_a_bool_raises_as_in_eager():
    with pytest.raises(RuntimeError, match="Negation"):
        firebrick.compile(lambda x: -x)(torch.tensor([True]))
