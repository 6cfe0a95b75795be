"""Questions whether what data decide is empty are answered with no, and each call looks."""

import pytest
import torch

import firebrick


def summed(x):
    kept = x[x > 0]
    if kept.numel() == 0:
        return x * 2
    return kept.sum() + x


def looped(x):
    for k in range(3):
        (rows,) = (x > k).nonzero(as_tuple=True)
        if not len(rows):
            continue
        x = x.index_add(0, rows, x[rows])
    return x


def changed(x):
    rows = x.nonzero()
    if rows.shape[0] > 0:
        x.add_(rows.sum())
    return x + 1


@pytest.mark.parametrize("function", [summed, looped, changed])
def test_full_and_empty_calls_give_what_eager_does(function):
    compiled = firebrick.compile(function, fullgraph=True)
    for number in (5.0, 0.0, 7.0):
        plain, ours = torch.tensor([number, 0.0, number, 0.0]), torch.tensor([number, 0.0, number, 0.0])
        torch.testing.assert_close((compiled(ours), ours), (function(plain), plain))


def test_what_is_often_empty_ends_the_graph_instead():
    compiled = firebrick.compile(summed)
    for number in (5, -1, -2, -3, -4, 6):
        x = torch.tensor([number, -9.0])
        assert torch.equal(compiled(x), summed(x))
    assert "what data decide was taken not to be empty, and often is" in firebrick.stats()["reasons"]["recompile"]
    before = firebrick.stats()["counts"]["frames"]
    for number in (5, -1, -2):
        compiled(torch.tensor([number, -9.0]))
    assert firebrick.stats()["counts"]["frames"] == before


def test_nothing_is_guessed_behind_a_write_to_an_argument():
    def written(x):
        x.mul_(2)
        return x[x > 0] + 1 if x[x > 0].numel() else x

    compiled = firebrick.compile(written)
    for number in (5, -1, 6, -2, -3, -4):
        plain, ours = torch.tensor([number, -9.0]), torch.tensor([number, -9.0])
        torch.testing.assert_close((compiled(ours), ours), (written(plain), plain))
    with pytest.raises(firebrick.errors.Unsupported):
        firebrick.compile(written, fullgraph=True)(torch.ones(3))
