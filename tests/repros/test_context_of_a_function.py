"""A `torch.autograd.Function` that plain Python applied lost what its `forward`, captured alone, saved for backward."""

import torch

import firebrick


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * y, gradient * x


def applied(x, y):
    eval("0")  # so that this frame is not captured
    return Product.apply(x, y)


def test_what_is_saved_is_there():
    x, y = torch.tensor([2.0]), torch.tensor([3.0], requires_grad=True)
    for backend in ("eager", "firebrick"):
        y.grad = None
        firebrick.compile(applied, backend=backend)(x, y).backward()
        assert y.grad.item() == 2
