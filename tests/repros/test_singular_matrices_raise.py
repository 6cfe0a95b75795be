"""A factorization that fails raises LinAlgError in compiled code, as in eager PyTorch; programs retry on it."""

import pytest
import torch

import firebrick

pytestmark = pytest.mark.compiler

FACTORIZATIONS = {
    "cholesky": torch.linalg.cholesky,
    "inv": torch.linalg.inv,
    "inverse": torch.inverse,
    "solve": lambda a: torch.linalg.solve(a, a[:, :1]),
    "lu_factor": lambda a: torch.linalg.lu_factor(a).LU,
    "matrix_power": lambda a: torch.linalg.matrix_power(a, -2),
    "tensorinv": lambda a: torch.linalg.tensorinv(a[None], ind=2),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_singular(name, grad):
    def function(a):
        return FACTORIZATIONS[name](a * 2) + 1

    compiled = firebrick.compile(function)
    good = (torch.eye(3) + 0.1).requires_grad_(grad)
    torch.testing.assert_close(compiled(good), function(good))
    bad = torch.zeros(3, 3, requires_grad=grad)
    with pytest.raises(RuntimeError) as wanted:
        function(bad)
    with pytest.raises(wanted.type) as raised:
        compiled(bad)
    assert str(raised.value) == str(wanted.value)
    assert raised.type is (RuntimeError if name == "lu_factor" else torch.linalg.LinAlgError)


def test_retry_with_jitter_takes_the_right_factor():
    def factor(a):
        jitter = 0.0
        while True:
            try:
                return torch.linalg.cholesky(a + jitter * torch.eye(3)), jitter
            except torch.linalg.LinAlgError:
                jitter = max(10 * jitter, 1e-6)

    a = torch.ones(3, 3) - 1e-4 * torch.eye(3)
    compiled = firebrick.compile(factor)
    for given in (a, torch.eye(3), a):
        found, wanted = compiled(given), factor(given)
        assert found[1] == wanted[1]
        assert torch.equal(found[0], wanted[0])


def test_status_instead_of_an_error():
    compiled = firebrick.compile(lambda a: torch.linalg.cholesky_ex(a).info)
    assert compiled(torch.zeros(3, 3)).item() == 1
