"""A TorchDispatchMode around `backward()` alone saw none of a compiled backward's operators, and what it made of them was
lost: it sees them as in eager mode."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import firebrick

MODEL = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))


class Doubled(TorchDispatchMode):
    """Products of matrices are twice what they were."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.mm.default else result


@pytest.fixture
def calls():
    return MODEL, firebrick.compile(MODEL)


def test_operators_that_a_mode_changes(calls):
    x = torch.randn(5, 4, requires_grad=True)
    rows = []
    for call in (*calls, calls[1]):
        result = call(x).square().sum()
        with Doubled():
            rows.append(torch.autograd.grad(result, [x, *MODEL.parameters()]))
    torch.testing.assert_close(rows[1:], [rows[0]] * 2)


def test_operators_that_a_mode_counts(calls):
    counts = []
    for call in calls:
        result = call(torch.randn(5, 4)).sum()
        with FlopCounterMode(display=False) as counter:
            result.backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_gradients_of_gradients_are_refused(calls):
    x = torch.randn(5, 4, requires_grad=True)
    result = calls[1](x).sum()
    with Doubled(), pytest.raises(RuntimeError, match="under a TorchDispatchMode"):
        torch.autograd.grad(result, x, create_graph=True)
