"""`frac` of -0.0 kept its sign under torch 2.11; eager's is 0.0."""

import torch

import firebrick


def test_no_sign_is_left() -> None:
    x = torch.tensor([-0.0, 0.0, -3.0, 2.5, -2.5])
    compiled = firebrick.compile(torch.frac, fullgraph=True)
    assert torch.equal(torch.signbit(compiled(x)), torch.signbit(torch.frac(x)))
