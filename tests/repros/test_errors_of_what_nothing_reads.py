"""Calls that refuse their numbers were dropped, error and all, if nothing read their results."""

import pytest
import torch
import torch.nn.functional as F

import firebrick

_PROGRAMS = {
    "embedding": lambda x, i: F.embedding(i + 9, x),
    "inv": lambda x, i: torch.linalg.inv(torch.zeros(2, 2) * x.sum()),
    "getitem": lambda x, i: x[i + 9],
    "gather": lambda x, i: torch.gather(x, 0, i.expand(1, 4) + 9),
    "cholesky": lambda x, i: torch.linalg.cholesky(-torch.eye(3) * x.sum().exp()),
    "nll_loss": lambda x, i: F.nll_loss(x, i.expand(3) + 7),
    "index_select": lambda x, i: x.index_select(0, i.reshape(1) + 9) * 2,
    "binary_cross_entropy": lambda x, i: F.binary_cross_entropy(x + 10, x),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_raises_as_eager(name):
    def program(x, i):
        _PROGRAMS[name](x, i)
        return x + 1

    arguments = torch.rand(3, 4), torch.tensor(0)
    with pytest.raises(Exception) as eager:  # noqa: PT011
        program(*arguments)
    with pytest.raises(eager.type):
        firebrick.compile(program)(*arguments)


def test_a_handler_meets_the_error_before_a_write():
    def program(x, m, i):
        caught = False
        try:
            F.embedding(i + 9, m)
        except IndexError:
            caught = True
        x.data.add_(1)
        return x + 1, caught

    results = [f(torch.zeros(2), torch.rand(3, 4), torch.tensor(0)) for f in (program, firebrick.compile(program))]
    assert results[1][1]
    torch.testing.assert_close(results[1], results[0])


def test_what_a_write_reads_is_no_result_more():
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm

    def program(x, m, i):
        x[0] = F.embedding(i, m)
        return x + 1

    firebrick.compile(program, backend=backend)(torch.zeros(2, 4), torch.rand(3, 4), torch.tensor(0))
    assert len(graphs[0].graph.output_node().args[0]) == 1
