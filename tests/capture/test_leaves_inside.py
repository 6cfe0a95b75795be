"""`requires_grad_()` of what captured code makes: leaves inside of the graph, and leaves that leave it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import grad

import firebrick

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def forces(x):
    x = x.detach().requires_grad_()
    return -grad(NET(x).sum(), x)[0]


def of_a_result(x):
    y = (x * 2).detach().requires_grad_(True)
    (slope,) = grad(y.sin().sum(), y, create_graph=True)
    return slope.detach(), grad(slope.square().sum(), y)[0], y.requires_grad, y.is_leaf


def guidance(x):
    with torch.no_grad():
        h = x.cos()
        with torch.enable_grad():
            inner = h.detach().requires_grad_(True)
            (slope,) = grad(NET(inner).square().sum(), inner)
        return h + 0.1 * slope


def steps(x):
    for _ in range(3):
        x = x.detach().requires_grad_()
        x = x - 0.1 * grad(NET(x).square().sum(), x)[0]
    return x.detach()


def several(x):
    weights = [(x[0] * i).detach().clone().requires_grad_() for i in range(3)]
    loss = sum(w.sin().sum() * (i + 1) for i, w in enumerate(weights))
    return [w - g for w, g in zip(weights, grad(loss, weights), strict=True)][0].detach(), loss.detach()


def beside_other_gradients(x):
    inner = x.detach().requires_grad_()
    (slope,) = grad(NET(inner).square().sum(), inner)
    return NET(x * slope)


def leaf_alone(x):
    y = (x * 3).detach().requires_grad_()
    (slope,) = grad(y.square().sum(), y)
    return y, slope


def without_recording(x):
    with torch.no_grad():
        y = (x * 3).requires_grad_()
        view, off = y[0], (x * 2).requires_grad_().requires_grad_(False)
    return y, view.requires_grad, off


def leaf_and_loss(x):
    y = (x * 3).clone().detach().requires_grad_()
    return y, NET(y).sum()


def leaf_and_what_it_was_made_of(x):
    h = x * 3
    y = h.detach().requires_grad_()
    return y, (y * h).sum() + h.sin().sum()


def on_memory_of_an_argument(x):
    y = x.detach().requires_grad_()
    return y, (y * x).sin().sum(), y.detach()


def loss_alone(x):
    y = x.detach().requires_grad_()
    return (NET(y) * grad(NET(y).sum(), y, create_graph=True)[0]).sum()


def new(x):
    weight = torch.ones(3, dtype=x.dtype).requires_grad_()
    return weight, (weight * x).sum()


WHOLE = [forces, of_a_result, guidance, steps, several, beside_other_gradients, leaf_alone, without_recording]
LEAVING = [leaf_and_loss, leaf_and_what_it_was_made_of, on_memory_of_an_argument, loss_alone, new]


def run(function, x):
    """Results, whether they want gradients, whether they are leaves, and gradients."""
    NET.zero_grad()
    results = function(x)
    results = results if isinstance(results, tuple) else (results,)
    tensors = [r for r in results if isinstance(r, torch.Tensor)]
    wanting = [t.sin().sum() for t in tensors if t.requires_grad]
    for _ in range(2 if wanting else 0):
        torch.autograd.backward(sum(wanting), retain_graph=True)
    shared = [t.untyped_storage().data_ptr() == u.untyped_storage().data_ptr() for t in (x, *tensors) for u in tensors]
    gradients = [t.grad for t in (x, *tensors, *NET.parameters()) if t.is_leaf]
    rows = [t.detach() for t in tensors], [(t.requires_grad, t.is_leaf) for t in tensors]
    words = [hash(r) for r in results if not isinstance(r, torch.Tensor)]
    return *rows, gradients, shared, words


@pytest.mark.parametrize("backend", ["firebrick", "eager", "aot_eager"])
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("function", [*WHOLE, *LEAVING])
def test_one_graph(function, wanted, backend):
    compiled = firebrick.compile(function, fullgraph=True, backend=backend)
    for n in (4, 6, 7):
        x = torch.randn(n, 3).double().requires_grad_(wanted)
        twin = x.detach().clone().requires_grad_(wanted)
        torch.testing.assert_close(run(compiled, twin), run(function, x))


def changed_in_steps(x):
    y = x.clone().detach().requires_grad_()
    for _ in range(3):
        (slope,) = grad(NET(y).square().sum(), y)
        with torch.no_grad():
            y -= 0.1 * slope
    return y


def of_no_number(x):
    try:
        (x > 0).requires_grad_()
    except RuntimeError as error:
        return x * 2, str(error)


def of_a_history(x):
    try:
        return (NET(x) * 2).requires_grad_(False)
    except RuntimeError as error:
        return x * 2, str(error)


def across_a_break(x):
    y = (x * 2).detach().requires_grad_()
    loss = NET(y).square().sum()
    firebrick.graph_break()
    return grad(loss, y)[0], y


def written_behind_it(x):
    h = x * 3
    y = h.detach().requires_grad_()
    h.add_(1)
    return y, y.sin().sum(), h


def in_a_layer(x):
    class Layer(nn.Module):
        def forward(self, x):
            inner = x.detach().requires_grad_()
            return x - 0.1 * grad(inner.sin().square().sum(), inner)[0]

    return nn.Sequential(*[Layer() for _ in range(3)])(x)


def caught(x):
    y = (x * 2).detach()
    y.requires_grad = True
    (slope,) = grad(y.sin().sum(), y)
    y.requires_grad = False
    return y, slope, (y + 1).requires_grad


@pytest.mark.parametrize("function", [of_no_number, of_a_history, across_a_break, written_behind_it, in_a_layer])
@pytest.mark.parametrize("wanted", [False, True])
def test_same_with_breaks(function, wanted):
    compiled = firebrick.compile(function)
    for n in (4, 6):
        x = torch.randn(n, 3).double().requires_grad_(wanted)
        twin = x.detach().clone().requires_grad_(wanted)
        torch.testing.assert_close(run(compiled, twin), run(function, x))


@pytest.mark.parametrize("function", [changed_in_steps, caught])
def test_one_graph_that_writes(function):
    test_one_graph(function, False, "firebrick")


def test_leaves_are_made_in_the_graph_where_no_history_goes_on():
    graphs = []
    firebrick.compile(forces, backend=lambda gm, inputs: graphs.append(gm) or gm.forward, fullgraph=True)(
        torch.randn(4, 3).double()
    )
    (gm,) = graphs
    assert [node.target for node in gm.graph.nodes if node.op == "call_method"][:2] == ["detach", "requires_grad_"]
    assert len([node for node in gm.graph.nodes if node.op == "placeholder"]) == 1
