"""A gradient that eager mode can't differentiate again (through attention, `cdist`) made one beside it raise too."""

import pytest
import torch
import torch.nn.functional as F

import firebrick


def leaves():
    generator = torch.Generator().manual_seed(0)
    shapes = (4, 6), (6, 6), (18, 6)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def attention(x, w, projection):
    q, k, v = F.linear(x, projection).view(1, 4, 3, 2, 3).permute(2, 0, 3, 1, 4).unbind(0)
    h = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(4, 6)
    return ((h @ w).tanh(),)


def distances(x, w, projection):
    return (torch.cdist(F.linear(x, projection)[:, :6].sin(), x.detach()).sum() * w.sum(), (x @ w).cos())


def outcome(function, which):
    found, tensors = [], leaves()
    results = function(*tensors)
    try:
        found += torch.autograd.grad(sum(r.square().sum() for r in results), tensors, create_graph=True)
        found += torch.autograd.grad(found[which].square().sum(), tensors, allow_unused=True)
    except RuntimeError as error:
        return [*found, f"{type(error).__name__}: {error}"]
    return found


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("function", [attention, distances])
def test_others_have_second_gradients(function, which):
    mine, plain = (outcome(f, which) for f in (firebrick.compile(function), function))
    assert len(mine) == len(plain)
    for one, other in zip(mine, plain, strict=True):
        if isinstance(other, str):
            assert one == other
        else:
            torch.testing.assert_close(one, other)


def test_both_are_met():
    found = {f: [isinstance(outcome(f, which)[-1], str) for which in range(3)] for f in (attention, distances)}
    assert found == {attention: [True, False, True], distances: [True, False, True]}
