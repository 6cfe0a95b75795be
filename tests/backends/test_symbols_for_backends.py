"""Graphs whose sizes vary go to the backends that are right for all sizes."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

import firebrick


def sizes_of(gm):
    """Sizes that are expressions, in what the graph's nodes give."""
    values = [value for node in gm.graph.nodes for value in tree_leaves(node.meta.get("val"))]
    return [n for value in values if isinstance(value, torch.Tensor) for n in value.shape if type(n) is not int]


class Noting:
    """Notes which graphs have symbols."""

    def __init__(self, wrap):
        self.wrap, self.varying = wrap, []

    def __call__(self, gm, example_inputs):
        self.varying.append(bool(sizes_of(gm)))
        return self.wrap(gm, example_inputs)


def flat(x):
    return x.view(x.shape[0] * x.shape[1], -1).sum(1), x.shape[0] + 1


def run(function, backend, sizes, **options):
    compiled = firebrick.compile(function, backend=backend, **options)
    for size in sizes:
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x), function(x))


def test_the_module_itself_takes_symbols():
    backend = Noting(lambda gm, example_inputs: gm.forward)
    run(flat, backend, range(2, 9), fullgraph=True)
    assert backend.varying == [False, True]


def test_other_code_is_given_numbers():
    def for_the_examples(gm, example_inputs):
        return torch.jit.trace(gm, example_inputs, check_trace=False)

    backend = Noting(for_the_examples)
    run(flat, backend, range(2, 6))
    assert backend.varying == [False] * 4


def test_other_code_that_says_so_takes_symbols():
    backend = Noting(lambda gm, example_inputs: lambda *inputs: gm(*inputs))
    backend.takes_symbols = True
    run(flat, backend, range(2, 9), fullgraph=True)
    assert backend.varying == [False, True]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", lambda gm, example_inputs: gm.forward])
def test_what_data_decide_stays_out_of_their_graphs(backend):
    def positive(x):
        kept = x[x > 0]
        if kept.numel() == 0:
            return x - 100
        return kept.sum()

    def asserting(x):
        if not (x > 0).all():
            raise AssertionError("negative")
        return x + 1

    for function in (positive, asserting):
        compiled = firebrick.compile(function, backend=backend)
        for x in (torch.ones(3), -torch.ones(3), torch.ones(2), -torch.ones(4)):
            try:
                expected = function(x)
            except AssertionError as error:
                with pytest.raises(AssertionError, match=str(error)):
                    compiled(x)
            else:
                assert torch.equal(compiled(x), expected)


def test_a_backend_that_fails_on_symbols_is_given_numbers():
    def fails(gm, example_inputs):
        if sizes_of(gm):
            raise ValueError("a size is no number")
        return gm.forward

    run(flat, Noting(fails), (4, 5, 6))


def test_eager_takes_symbols():
    before = firebrick.stats()["counts"].get("graphs", 0)
    run(flat, "eager", range(2, 9), fullgraph=True)
    assert firebrick.stats()["counts"]["graphs"] == before + 2
