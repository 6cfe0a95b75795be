"""A result that was written to could not be differentiated, if what autograd saves for another result is its memory."""

import pytest
import torch
import torch.nn.functional as F

import firebrick

_PROGRAMS = {
    "elu": lambda x: ((y := x * 2), F.elu(y)),
    "var": lambda x: ((y := x.sin()), y.var()),
    "square": lambda x: ((y := x * x), y.abs()),
    "product": lambda x: ((y := x.sin()), y * x),
    "norm": lambda x: ((y := x * 2), y.norm()),
}


def _written(run, loss_of):
    x = torch.arange(1.0, 7.0).reshape(2, 3).requires_grad_()
    results = run(x)
    results[0].add_(1)
    try:
        loss_of(results).backward()
    except RuntimeError:
        return "refused"
    return x.grad


@pytest.mark.parametrize("name", _PROGRAMS)
def test_its_own_gradient_needs_nothing_of_the_other(name):
    program = _PROGRAMS[name]
    expected, ours = (_written(f, lambda r: r[0].sum()) for f in (program, firebrick.compile(program)))
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("name", _PROGRAMS)
def test_the_others_gradient_is_refused(name):
    program = _PROGRAMS[name]
    expected, ours = (_written(f, lambda r: r[1].sum()) for f in (program, firebrick.compile(program)))
    assert expected == "refused"
    assert ours == "refused"
