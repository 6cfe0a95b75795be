"""The node of a compiled graph led to inputs that no result has a gradient for, so hooks behind them were called."""

import torch

import firebrick


def test_a_hook_is_not_called_for_a_result_that_the_loss_does_not_reach():
    layer, calls = torch.nn.Linear(8, 4), []
    layer.register_full_backward_hook(lambda *args: calls.append(args))

    def unread(x, y):
        hidden = layer(x)
        hidden.movedim(0, 1)
        return (y * 2)[0]

    y = torch.randn(4, 6, requires_grad=True)
    firebrick.compile(unread)(torch.randn(3, 8), y)[2].backward()
    assert not calls
    assert y.grad is not None


def test_an_input_without_a_gradient_keeps_its_history():
    source, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    hidden = source * source
    result = firebrick.compile(lambda x, y: (x > 0).float() * y)(hidden, y)
    result.sum().backward()
    assert source.grad is None
    hidden.sum().backward()
    assert torch.equal(source.grad, 2 * source)
