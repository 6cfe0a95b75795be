"""`copy_` of a Python number: the trace took it for a tensor, and the graph fell back to eager mode."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.bool])
@pytest.mark.parametrize("number", [0.7, 2, True])
def test_a_number_is_copied_into_all_elements(dtype, number):
    def call(x):
        x[1:].copy_(number)
        return x + x

    given = torch.zeros(3, 4).to(dtype)
    plain, ours = given.clone(), given.clone()
    wanted, found = call(plain), firebrick.compile(call, options={"cache": False, "strict": True})(ours)
    assert found.dtype == wanted.dtype
    assert torch.equal(found, wanted)
    assert torch.equal(ours, plain)


def test_gradients_stop_at_what_a_number_replaced():
    def call(x):
        y = x * 2
        y[1:].copy_(3.0)
        return (y * y).sum()

    grads = []
    for fn in (call, firebrick.compile(call, options={"cache": False, "strict": True})):
        x = torch.arange(4.0, requires_grad=True)
        fn(x).backward()
        grads.append(x.grad)
    assert torch.equal(*grads)
