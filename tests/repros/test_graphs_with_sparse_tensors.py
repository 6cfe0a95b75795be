"""A sparse tensor made or used in a graph sent all of it to eager kernels; functions of torch.sparse ended it."""

import pytest
import torch

import firebrick
from firebrick.errors import Unsupported

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
INDICES, VALUES = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([0.5, -2.0, 3.0])


def dense(x: torch.Tensor) -> torch.Tensor:
    return x if x.layout is torch.strided else x.to_dense()


def eager_graphs() -> int:
    return sum(n for key, n in firebrick.stats()["counts"].items() if key.startswith("graphs run eagerly"))


def squared(x, values):
    y = torch.relu(x @ x) + 1
    a = torch.sparse_coo_tensor(INDICES, values, (4, 4)).to_sparse_csr()
    return y * 2, (a @ a).to_dense() + 1


def test_sparse_tensors_of_the_graph_stand_between_its_compiled_parts():
    x, before = torch.rand(4, 4), eager_graphs()
    for got, want in zip(firebrick.compile(squared, fullgraph=True)(x, VALUES), squared(x, VALUES), strict=True):
        torch.testing.assert_close(got, want)
    assert eager_graphs() == before


@pytest.mark.parametrize("csr", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        lambda s, x: torch.sparse.mm(s, torch.sin(x)) + 1,
        lambda s, x: torch.sparse.addmm(x, s, x * 2),
        lambda s, x: (s.transpose(0, 1) @ x).sin(),
        lambda s, x: s * 2,
        lambda s, x: (x + 1).to_sparse(),
    ],
)
def test_functions_of_sparse_inputs_and_results_are_in_the_graph(fn, csr):
    s, x = torch.sparse_coo_tensor(INDICES, VALUES, (4, 4)).coalesce(), torch.rand(4, 4)
    s = s.to_sparse_csr() if csr else s
    got, want = firebrick.compile(fn, fullgraph=True)(s, x), fn(s, x)
    assert got.layout is want.layout
    torch.testing.assert_close(dense(got), dense(want))


def test_gradients_go_through_a_sparse_matrix():
    def loss(values, x):
        return (torch.sparse.mm(torch.sparse_coo_tensor(INDICES, values, (4, 4)), torch.sin(x)) * 2).sum()

    grads = []
    for run in (firebrick.compile(loss, fullgraph=True), loss):
        values, x = VALUES.clone().requires_grad_(), torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
        grads.append(torch.autograd.grad(run(values, x), (values, x)))
    torch.testing.assert_close(*grads)


def test_what_no_fake_tensor_can_do_breaks_without_torchs_own_log(caplog):
    """torch logged a traceback of its fake tensors for what is a break with a reason here."""

    def pooled(x):
        rows = torch.tensor([0, 1, 2], device=x.device)
        return torch.sparse_csr_tensor(rows, rows[:2].cumsum(0), x[:2], (2, 2)).to_dense() * 2

    x = torch.rand(4)
    torch.testing.assert_close(firebrick.compile(pooled)(x), pooled(x))
    assert not caplog.records


@pytest.mark.parametrize("csr", [False, True])
def test_elements_of_a_sparse_tensor_end_the_graph(csr):
    """They were taken for none: `values()` had no rows, and `if grad._values().numel() == 0` was true."""

    def counted(s, x):
        y = torch.sin(x)
        n = s.values().shape[0]
        return y * n, s.values() * 2, s._nnz(), (s.crow_indices() if csr else s.indices()) + 1

    s, x = torch.sparse_coo_tensor(INDICES, VALUES, (4, 4)).coalesce(), torch.rand(4, 4)
    s = s.to_sparse_csr() if csr else s
    for got, want in zip(firebrick.compile(counted)(s, x), counted(s, x), strict=True):
        torch.testing.assert_close(got, want)
    with pytest.raises(Unsupported, match="values\\(\\) of a sparse tensor"):
        firebrick.compile(counted, fullgraph=True)(s, x)
