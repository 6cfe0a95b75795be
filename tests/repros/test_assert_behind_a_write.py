"""A failing `assert` on data behind a write to a tensor from outside raised an error of the compiler's own."""

import pytest
import torch

import firebrick

TOTAL = torch.ones(3)


def checked(x, y):
    TOTAL.mul_(1.5)
    if not torch.equal(x, y):  # an assert, which pytest would write anew
        raise AssertionError("differ")
    x.add_(1)
    return x * TOTAL


def counted(x, n):
    TOTAL.mul_(1.5)
    torch._check(n.item() > 1, lambda: "too few")
    return x * TOTAL


CALLS = {
    "assert": (checked, AssertionError, "differ", [torch.ones(3), torch.zeros(3), torch.ones(3)]),
    "torch._check": (counted, RuntimeError, "too few", [torch.tensor(3), torch.tensor(1), torch.tensor(3)]),
}


@pytest.mark.parametrize("function, error, text, others", CALLS.values(), ids=CALLS)
def test_the_error_and_the_effects_are_those_of_eager_mode(function, error, text, others):
    compiled = firebrick.compile(function)
    for other in others:
        outcomes = []
        for call in (function, compiled):
            TOTAL.fill_(1.0)
            x = torch.ones(3)
            try:
                outcomes.append(("returned", call(x, other), x, TOTAL.clone()))
            except error as raised:
                assert text in str(raised)
                outcomes.append(("raised", torch.zeros(()), x, TOTAL.clone()))
        (kind, *expected), (compiled_kind, *results) = outcomes
        assert compiled_kind == kind
        torch.testing.assert_close(results, expected)
