"""An argument written to by an operator (`t += x`) had no history of gradients, if no other result needed one."""

import pytest
import torch
import torch.nn.functional as F

import firebrick


def _iadd(x, t):
    t += x
    return t.detach()


def _setitem(x, t):
    t[0] = x[1] * 2
    return x.detach()


def _method(x, t):
    t.add_(x)
    return x.detach()


def _out_of_a_module(x, t):
    t *= F.relu(x)
    return t


def _with_gradients_off(x, t):
    with torch.no_grad():
        t += x
    return x.detach()


_PROGRAMS = [_iadd, _setitem, _method, _out_of_a_module, _with_gradients_off]


@pytest.mark.parametrize("program", _PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("backend", ["firebrick", "aot_eager"])
def test_the_argument_has_eagers_gradients(program, backend):
    seen = []
    for run in (program, firebrick.compile(program, backend=backend)):
        x, t = torch.tensor([1.0, 2.0, -3.0], requires_grad=True), torch.ones(3)
        run(x, t)
        if t.requires_grad:
            (t * torch.arange(3.0)).sum().backward()
        seen.append((t.requires_grad, t.detach(), x.grad))
    torch.testing.assert_close(seen[1], seen[0])
