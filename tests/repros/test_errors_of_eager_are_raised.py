"""A call that eager PyTorch refuses raises the same error in compiled code, whatever the sizes of its tensors."""

import pytest
import torch
import torch.nn.functional as F

import firebrick

REFUSED = {
    "softmax beyond the rank": lambda x: x.softmax(5),
    "sum beyond the rank": lambda x: x.sum(5),
    "amax beyond the rank": lambda x: x.amax(7),
    "mean below the rank": lambda x: x.mean(-4),
    "cumsum beyond the rank": lambda x: x.cumsum(3),
    "flip beyond the rank": lambda x: x.flip(3),
    "argmax beyond the rank": lambda x: x.argmax(2),
    "sort beyond the rank": lambda x: x.sort(4),
    "cosine_similarity beyond the rank": lambda x: F.cosine_similarity(x, x, dim=5),
    "vector_norm beyond the rank": lambda x: torch.linalg.vector_norm(x, dim=5),
    "max of a dimension as a number": lambda x: torch.max(x, 2),
    "a dimension twice": lambda x: x.sum((0, 0)),
    "a dimension twice, once from the end": lambda x: x.amax((0, -2)),
    "flip of a dimension twice": lambda x: x.flip(0, 0),
    "no elements to reduce": lambda x: x[:0].max(),
    "zeros(0).max()": lambda x: torch.zeros(0).max() + x,
    "no rows to reduce": lambda x: x[:0].amax(0),
    "no rows to choose from": lambda x: x[:0].argmax(0),
    "add_ of a fraction to whole numbers": lambda x: torch.arange(3).add_(1.5) + x[0, 0],
    "+= of a fraction to whole numbers": lambda x: x.long().__iadd__(1.5),
    "div_ of whole numbers": lambda x: x.long().div_(2),
    "exp_ of whole numbers": lambda x: x.long().exp_(),
    "add_ of a number to truths": lambda x: (x > 0).add_(1),
    "difference of truths": lambda x: (x > 0) - (x > 0),
    "one minus truths": lambda x: 1 - (x > 0),
    "clamp without bounds": lambda x: x.clamp(),
    "a number beyond its dtype": lambda x: torch.full((2,), 300, dtype=torch.int8),
    "padding of more than half a window": lambda x: F.max_pool2d(x[None, None], 2, padding=2),
    "padding of an average": lambda x: F.avg_pool2d(x[None, None], 2, padding=2),
    "padding of rows": lambda x: F.avg_pool1d(x[None], 2, padding=2),
    "a divisor of zero": lambda x: F.avg_pool2d(x[None, None], 2, divisor_override=0),
    "layer_norm of another shape": lambda x: F.layer_norm(x, (x.shape[1] + 1,)),
    "layer_norm of the first dimension": lambda x: F.layer_norm(x, (x.shape[0],)),
    "scatter of another dtype": lambda x: x.scatter(0, torch.zeros_like(x).long(), x.double()),
    "index_add of another dtype": lambda x: x.index_add(0, torch.tensor([0]), x.double()[:1]),
    "index_copy of another dtype": lambda x: x.index_copy(0, torch.tensor([0]), x.double()[:1]),
    "index_put of another dtype": lambda x: x.index_put((torch.tensor([0]),), x.double()[0]),
    "gelu by another name": lambda x: F.gelu(x, approximate="tanhh"),
    "copy_ of more elements": lambda x: torch.zeros(3).copy_(x),
    "slice_scatter of more columns": lambda x: x.slice_scatter(torch.cat((x, x), 1), 0, 0, x.shape[0]),
    "masked_fill by a row": lambda x: x.masked_fill(x > 0, x[0]),
    "no mean of whole numbers": lambda x: x.long().mean(),
    "rows in steps of nothing": lambda x: F.max_pool1d(x[None], 2, stride=0),
    "rows of whole numbers have no maximum": lambda x: F.max_pool1d(x[None].long(), 2),
    "a mask of other rows than none": lambda x: x[:0].clone().index_put_((x[:, 0] > 0,), x[0]),
    "more columns by a mask than none": lambda x: x[:, :0].clone().index_put_((x[:, 0] > 0,), x[0]),
    "more values than an empty mask names": lambda x: x[:0].clone().index_put_((x[:0] > 0,), x[0]),
}


def outcome(function, *args):
    """The type and the text of the error that a call raises."""
    with pytest.raises(Exception) as raised:  # noqa: PT011  which one is what is compared
        function(*args)
    return raised.type, str(raised.value)


@pytest.mark.parametrize("rows", [3, 5000])
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, rows):
    x = torch.randn(rows, 4)
    function = REFUSED[name]
    assert outcome(firebrick.compile(lambda x: function(x * 2)), x) == outcome(lambda x: function(x * 2), x)


@pytest.mark.compiler
def test_error_is_caught_by_the_program():
    def mean(x, dim):
        try:
            return x.mean(dim)
        except IndexError:
            return x.mean()

    x = torch.randn(3, 4)
    compiled = firebrick.compile(mean)
    assert torch.allclose(compiled(x, 7), x.mean())
    assert torch.allclose(compiled(x, 1), x.mean(1))


@pytest.mark.compiler
def test_valid_calls_stay_in_one_graph():
    def loss(x, target):
        h = F.layer_norm(x, (4,)).softmax(-1).clamp(0.0, 1.0)
        return F.binary_cross_entropy(h, target) + torch.linalg.vector_norm(x, dim=1).amax()

    compiled = firebrick.compile(loss, fullgraph=True)
    x, target = torch.randn(6, 4), torch.rand(6, 4)
    torch.testing.assert_close(compiled(x, target), loss(x, target))
