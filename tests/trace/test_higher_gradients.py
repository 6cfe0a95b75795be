"""Gradients of gradients of compiled code, against eager mode and in float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import firebrick


class Gate(torch.autograd.Function):
    """A gradient that is not the derivative of its function."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


def norm_of_batch(x):
    return F.batch_norm(x, torch.zeros(4).double(), torch.ones(4).double(), training=True, momentum=0.1)


def with_running_statistics(x):
    mean, var = torch.zeros(4).double(), torch.ones(4).double()
    return F.batch_norm(x, mean, var, training=True) * 2 + mean


def written(x):
    y = x * 2
    y[1:] *= x[1:].sin()
    y.exp_()
    return y


FUNCTIONS = {
    "pointwise": lambda x: (x.sin() * x).exp(),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "tanh_twice": lambda x: x.tanh().tanh(),
    "softmax": lambda x: x.softmax(-1) * x,
    "log_softmax": lambda x: x.log_softmax(-1).square(),
    "layer_norm": lambda x: F.layer_norm(x, (4,)).tanh(),
    "group_norm": lambda x: F.group_norm(x, 2).tanh(),
    "batch_norm": norm_of_batch,
    "running_statistics": with_running_statistics,
    "matmul": lambda x: (x @ x.t()).tanh(),
    "norm": lambda x: x.norm(dim=1),
    "var": lambda x: x.var(0),
    "cumsum": lambda x: x.cumsum(0).square(),
    "prod": lambda x: x.prod(1),
    "sort": lambda x: x.sort(1).values.square(),
    "gather": lambda x: x.gather(1, torch.tensor([[0, 1], [2, 3], [1, 1]])).square(),
    "index": lambda x: x[:, [0, 0, 2]].square(),
    "view": lambda x: x.t().reshape(-1).square(),
    "detached": lambda x: x.detach() * x.square(),
    "custom": lambda x: Gate.apply(x * 3) * x.square(),
    "written": written,
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.view(3, 2, 2)).exp()).square(),
    "clamp": lambda x: x.clamp(-0.3, 0.4).square(),
    "max": lambda x: x.amax(1).square(),
    "logsumexp": lambda x: x.logsumexp(1).square(),
    "linear_function": lambda x: x.sum(1) * 2,
    "two_results": lambda x: (x.sin(), x.square() * x.sin().detach()),
    "results_that_share": lambda x: ((y := x.exp()), y.square()),
    "views_of_one_result": lambda x: ((y := x.exp()).t(), y[0]),
}


def derivatives(function, x, depth, loss=torch.Tensor.sin):
    """The result and `depth` gradients, each of a function of the one before."""
    results = function(x)
    results = results if isinstance(results, tuple) else (results,)
    value, rows = sum(loss(r).sum() for r in results), [*results]
    for _ in range(depth):
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        rows.append(gradient)
        if not gradient.requires_grad:
            break
        value = gradient.square().sum()
    return rows


@pytest.mark.parametrize("name", FUNCTIONS)
def test_three_levels(name):
    compiled = firebrick.compile(FUNCTIONS[name])
    for seed in range(2):
        torch.manual_seed(seed)
        x = (torch.rand(3, 4, dtype=torch.float64) - 0.5).requires_grad_()
        ours, wanted = (derivatives(f, x, 3) for f in (compiled, FUNCTIONS[name]))
        assert [t.requires_grad for t in ours] == [t.requires_grad for t in wanted]
        torch.testing.assert_close(ours, wanted)


def test_the_second_graph_is_compiled_once():
    compiled = firebrick.compile(lambda x, w: (x @ w).tanh())
    counts = []
    for _ in range(4):
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
        (gradient,) = torch.autograd.grad(compiled(x, w).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        counts.append(dict(firebrick.stats()["counts"]))
    names = "gradients compiled to be differentiated", "backward graphs compiled", "kernels built", "graphs compiled"
    assert all(counts[0][name] for name in names[:2])
    assert all(count.get(name) == counts[0].get(name) for count in counts for name in names)


def penalty(critic, x):
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return (gradient.norm(dim=1) - 1).square().mean()


def network(*sizes, act=nn.Tanh, dropout=0.0):
    torch.manual_seed(0)
    layers = [m for a, b in zip(sizes, sizes[1:], strict=False) for m in (nn.Linear(a, b), act(), nn.Dropout(dropout))]
    return nn.Sequential(*layers[:-2])


def gradients_of(loss, module):
    module.zero_grad()
    loss.backward()
    return [p.grad for p in module.parameters()]


@pytest.mark.parametrize("act", [nn.Tanh, nn.GELU, nn.SiLU, nn.LeakyReLU])
def test_gradient_penalty(act):
    critic, x = network(3, 8, 8, 1, act=act).double(), torch.randn(5, 3, dtype=torch.float64)
    compiled = firebrick.compile(critic)
    for _ in range(2):
        ours, wanted = (gradients_of(penalty(f, x) - f(x).mean(), critic) for f in (compiled, critic))
        torch.testing.assert_close(ours, wanted)


def test_gradient_inside_of_a_compiled_function():
    energy = network(3, 8, 1)

    def forces(x):
        e = energy(x).sum()
        return e, -torch.autograd.grad(e, x, create_graph=True)[0]

    def loss(function):
        x = torch.linspace(0, 1, 12).view(4, 3).requires_grad_()
        e, f = function(x)
        return e + f.square().sum()

    compiled = firebrick.compile(forces)
    for _ in range(2):
        torch.testing.assert_close(gradients_of(loss(compiled), energy), gradients_of(loss(forces), energy))


def test_dropout_draws_the_same_mask():
    model = network(3, 64, 64, 1, act=nn.GELU, dropout=0.5)
    compiled, x = firebrick.compile(model), torch.randn(16, 3)
    for _ in range(2):
        rows = []
        for function in (model, compiled):
            torch.manual_seed(3)
            rows.append((gradients_of(penalty(function, x), model), torch.rand(2)))
        torch.testing.assert_close(rows[1], rows[0])


def test_noise_that_nothing_saves_is_drawn_again():
    def noisy(x):
        return F.gelu(x + torch.randn_like(x))

    compiled, rows = firebrick.compile(noisy), []
    for function in (noisy, compiled, compiled):
        torch.manual_seed(1)
        x = torch.ones(64, requires_grad=True)
        rows.append((derivatives(function, x, 2), torch.rand(2)))
    torch.testing.assert_close(rows[1], rows[0])
    torch.testing.assert_close(rows[2], rows[0])


def test_running_statistics_are_updated_once():
    def train(model, function):
        x = torch.linspace(-1, 1, 24).view(8, 3).requires_grad_()
        (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return gradients_of(gradient.square().sum(), model), list(model.buffers())

    rows = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
        function = firebrick.compile(model) if compiled else model
        rows.append([train(model, function) for _ in range(2)])
    torch.testing.assert_close(rows[1], rows[0])


def test_maml():
    def adapted(model, weights, x, y):
        loss = F.mse_loss(torch.func.functional_call(model, weights, x), y)
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        return {n: w - 0.1 * g for (n, w), g in zip(weights.items(), gradients, strict=True)}

    model, x = network(1, 16, 16, 1).double(), torch.linspace(-3, 3, 10, dtype=torch.float64).view(10, 1)

    def meta_loss(function):
        weights = dict(model.named_parameters())
        for _ in range(2):
            loss = F.mse_loss(function(weights, x), x.sin())
            gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {n: w - 0.1 * g for (n, w), g in zip(weights.items(), gradients, strict=True)}
        return F.mse_loss(function(weights, x + 0.1), (x + 0.1).sin())

    def run(weights, x):
        return torch.func.functional_call(model, weights, (x,))

    compiled = firebrick.compile(run)
    for _ in range(2):
        ours, wanted = (gradients_of(meta_loss(f), model) for f in (compiled, run))
        torch.testing.assert_close(ours, wanted)


def test_second_derivatives_of_a_network_by_its_input():
    model = network(2, 16, 16, 1).double()

    def residual(function):
        points = torch.linspace(-1, 1, 20, dtype=torch.float64).view(10, 2).requires_grad_()
        u = function(points)
        (du,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        (ddx,) = torch.autograd.grad(du[:, 0].sum(), points, create_graph=True)
        return (du[:, 1] + u[:, 0] * du[:, 0] - 0.01 * ddx[:, 0]).square().mean()

    compiled = firebrick.compile(model)
    for _ in range(2):
        torch.testing.assert_close(gradients_of(residual(compiled), model), gradients_of(residual(model), model))


TRANSFORMS = {
    "grad_of_grad": lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x).sin().sum()),
    "hessian": torch.func.hessian,
    "jacrev_of_jacrev": lambda f: torch.func.jacrev(torch.func.jacrev(f)),
    "jvp_of_grad": lambda f: lambda x: torch.func.jvp(torch.func.grad(f), (x,), (x.cos(),)),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x.cos(),)),
    "vjp": lambda f: lambda x: torch.func.vjp(f, x)[1](torch.ones((), dtype=x.dtype)),
    "per_sample": lambda f: lambda x: torch.func.vmap(torch.func.grad(f))(torch.stack([x, 2 * x])),
    "autograd_hessian": lambda f: lambda x: torch.autograd.functional.hessian(f, x),
    "autograd_hvp": lambda f: lambda x: torch.autograd.functional.hvp(f, x, x.cos()),
    "autograd_vhp": lambda f: lambda x: torch.autograd.functional.vhp(f, x, x.cos()),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("inside", [False, True])
def test_transforms(name, inside):
    weights = torch.randn(4, 4, dtype=torch.float64)

    def function(x):
        return F.gelu(x @ weights).square().sum()

    transform = TRANSFORMS[name]
    compiled = firebrick.compile(transform(function)) if inside else transform(firebrick.compile(function))
    for _ in range(2):
        x = torch.randn(4, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), transform(function)(x))


def test_a_weight_changed_since_the_forward_is_an_error():
    w = torch.ones(3, requires_grad=True)
    compiled = firebrick.compile(lambda x: F.gelu(x * w))
    x = torch.ones(3, requires_grad=True)
    y = compiled(x)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_freed_and_retained_graphs():
    compiled, x = firebrick.compile(lambda x: x.exp() * x), torch.ones(3, requires_grad=True)
    y = compiled(x).sum()
    torch.autograd.grad(y, x)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x, create_graph=True)
    y = compiled(x).sum()
    torch.autograd.grad(y, x, retain_graph=True)
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    rows = [torch.autograd.grad(gradient.sum(), x, retain_graph=True)[0] for _ in range(2)]
    torch.testing.assert_close(rows, [torch.full((3,), 3 * torch.e)] * 2)
    gradient.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        gradient.sum().backward()


def test_through_a_checkpoint():
    model = network(3, 8, 8, 3)

    def twice(function):
        x = torch.linspace(-1, 1, 12).view(4, 3).requires_grad_()
        y = torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)
        (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return gradients_of(gradient.square().sum(), model)

    compiled = firebrick.compile(model)
    for _ in range(2):
        torch.testing.assert_close(twice(compiled), twice(model))


def test_over_a_graph_break():
    def broken(x):
        y = x.sin() * x
        firebrick.graph_break()
        return y.exp() * x

    x = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_()
    torch.testing.assert_close(derivatives(firebrick.compile(broken), x, 3), derivatives(broken, x, 3))


def test_batched_gradients_with_gradients():
    def rows(function):
        x = torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_()
        (jacobian,) = torch.autograd.grad(
            function(x), x, torch.eye(4, dtype=torch.float64), is_grads_batched=True, create_graph=True
        )
        return jacobian, torch.autograd.grad(jacobian.square().sum(), x)

    def function(x):
        return x.sin() * x.flip(0)

    torch.testing.assert_close(rows(firebrick.compile(function)), rows(function))


def test_gradients_of_weights_that_only_some_results_need():
    def losses(a, b):
        return a.square().sum(), (a * b).sin().sum()

    def rows(function):
        a, b = (torch.linspace(0, 1, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
        one, other = function(a, b)
        first = torch.autograd.grad(one, (a, b), create_graph=True, allow_unused=True)
        assert first[1] is None
        second = torch.autograd.grad(other, (a, b), create_graph=True)
        third = torch.autograd.grad((first[0] * second[1]).sum(), (a, b))
        return first[0], second, third

    torch.testing.assert_close(rows(firebrick.compile(losses)), rows(losses))


def test_nothing_stays_alive():
    compiled, inputs = firebrick.compile(lambda x: x.exp() * x), []
    for _ in range(2):
        x = torch.ones(3, requires_grad=True)
        inputs.append(torch._C._WeakTensorRef(x))
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        gradient.sum().backward()
        x.grad = None
        del x, gradient
    assert all(ref.expired() for ref in inputs)
