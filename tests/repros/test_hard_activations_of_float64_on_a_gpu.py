"""A GPU's kernels of hardsigmoid and hardswish multiply by float32's sixth, in float64 too; ours had the exact one.

So does a CPU's kernel of hardsigmoid's gradient: that of 1.0 is 0.16666667163372, ours was 0.16666666666667.
"""

import pytest
import torch
import torch.nn.functional as F

import firebrick
from firebrick.trace.decompositions import decompositions

aten = torch.ops.aten
SIXTH = torch.tensor(1 / 6, dtype=torch.float32).double()


class OnGpu(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    device = torch.device("cuda:0")


X = torch.linspace(-5, 5, 101, dtype=torch.float64)
WANTED = {
    aten.hardsigmoid.default: ((X,), (X + 3).clamp(0, 6) * SIXTH),
    aten.hardswish.default: ((X,), X * (X + 3).clamp(0, 6) * SIXTH),
    aten.hardsigmoid_backward.default: ((X + 1, X), torch.where((X > -3) & (X < 3), (X + 1) * SIXTH, 0.0)),
}


@pytest.mark.parametrize("op", WANTED, ids=str)
def test_float64_is_as_eagers_kernels_have_it(op):
    args, want = WANTED[op]
    made = decompositions()[op](*[a.as_subclass(OnGpu) for a in args]).as_subclass(torch.Tensor)
    assert torch.equal(made, want)
    assert torch.equal(made, op(*args)) == (op is aten.hardsigmoid_backward.default), "as on a CPU"


@pytest.mark.compiler
def test_the_gradient_on_a_cpu():
    def grad(fn):
        x = X.clone().requires_grad_()
        fn(x).sum().backward()
        return x.grad

    assert torch.equal(grad(firebrick.compile(lambda x: F.hardsigmoid(x) * 3)), grad(lambda x: F.hardsigmoid(x) * 3))


@pytest.mark.parametrize("op", WANTED, ids=str)
def test_other_dtypes_and_cpus_are_as_before(op):
    args, _ = WANTED[op]
    for each in (args, [a.float().as_subclass(OnGpu) for a in args]):
        made = decompositions()[op](*each)
        if op is aten.hardswish.default:
            assert made is NotImplemented, "it stays whole"
        else:
            torch.testing.assert_close(made.as_subclass(torch.Tensor), op(*[a.as_subclass(torch.Tensor) for a in each]))
