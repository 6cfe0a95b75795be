"""`x.t_()` of an argument left the caller's tensor as it was."""

import pytest
import torch

import firebrick
from firebrick.errors import LoweringError
from firebrick.report import FirebrickWarning


@pytest.mark.filterwarnings(f"ignore::{FirebrickWarning.__module__}.{FirebrickWarning.__name__}")
def test_argument_is_transposed():
    x = torch.arange(6.0).reshape(2, 3)

    def turn(x):
        return x.t_() + 1

    made = firebrick.compile(turn, options={"strict": False})(x)
    assert x.shape == (3, 2)
    assert torch.equal(made, x + 1)


def test_argument_is_read_before_it_is_squeezed():
    """Traces took the sizes that the argument has behind the call for those before: `narrow` failed on them."""

    def squeeze(x):
        x.narrow(0, 0, 1).zero_()
        y = x - 1
        x.squeeze_()
        return y

    with pytest.raises(LoweringError, match="another view of its memory"):
        firebrick.compile(squeeze, options={"strict": True})(torch.ones(1))
