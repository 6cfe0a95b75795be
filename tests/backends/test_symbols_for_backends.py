"""Graphs whose sizes vary go to the backends that are right for all sizes."""

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


def kept(x):
    return x[x > 0].sum() * torch.nonzero(x).shape[0]


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


def test_sizes_that_data_decide_are_one_graph_of_the_module_itself():
    backend = Noting(lambda gm, example_inputs: gm.forward)
    run(kept, backend, (4, 4), fullgraph=True)
    assert backend.varying == [True]


def test_other_code_is_given_no_sizes_that_data_decide():
    backend = Noting(lambda gm, example_inputs: lambda *inputs: gm(*inputs))
    run(kept, backend, (4, 4))
    assert backend.varying[0] and not any(backend.varying[1:])


def test_a_backend_that_fails_on_symbols_is_given_numbers():
    def fails(gm, example_inputs):
        if sizes_of(gm):
            raise ValueError("a size is no number")
        return gm.forward

    run(kept, Noting(fails), (4, 4))


def test_eager_takes_symbols():
    before = firebrick.stats()["counts"].get("graphs", 0)
    run(flat, "eager", range(2, 9), fullgraph=True)
    assert firebrick.stats()["counts"]["graphs"] == before + 2
