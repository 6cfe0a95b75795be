"""One backward over all graph breaks, beside eager mode: gradients, hooks, errors, and how many graphs."""

import copy
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import firebrick
from firebrick.report import FirebrickWarning


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Broken(nn.Module):
    """Two linear layers with a graph break between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x).tanh()
        firebrick.graph_break()
        return self.second(x)


@pytest.fixture(autouse=True)
def fresh():
    firebrick.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FirebrickWarning)
        yield


def counted(name):
    return firebrick.stats()["counts"].get(name, 0)


def grads(module):
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def both(module, step, times=3):
    """Run `step(module, call)` in eager mode and with one backward; returns the gradients of each."""
    twin = copy.deepcopy(module)
    for _ in range(times):
        step(module, module)
    compiled, one = firebrick.compile(twin), firebrick.compiled_backward(step)
    for _ in range(times):
        one(twin, compiled)
    return grads(module), grads(twin)


def check(module, step, times=3):
    expected, actual = both(module, step, times)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def test_a_backward_over_breaks_is_one_graph():
    before = counted("graphs of compiled backwards"), counted("backward graphs compiled")
    check(Broken(), lambda m, f: (m.zero_grad(), f(X).square().mean().backward()))
    assert counted("graphs of compiled backwards") - before[0] == 1
    assert counted("backward graphs compiled") == before[1]  # no graph has one of its own


def test_gradients_that_are_there_are_added_to():
    check(Broken(), lambda m, f: (f(X).sum().backward(), f(X * 2).square().mean().backward()))


def test_a_custom_function_and_eager_operators_take_part():
    check(Broken(), lambda m, f: Square.apply(f(X)).exp().mean().backward())


def test_hooks_change_gradients_and_see_them():
    seen = []

    def step(m, f):
        y = f(X)
        y.register_hook(lambda g: g * 3)
        handles = [
            m.first.weight.register_hook(lambda g: g.clamp(-0.01, 0.01)),
            m.second.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item())),
        ]
        y.square().mean().backward()
        for handle in handles:
            handle.remove()

    check(Broken(), step)
    assert seen[:3] == pytest.approx(seen[3:], rel=1e-4)


def test_gradients_for_some_tensors():
    m = Broken()
    f = firebrick.compile(m)
    expected = torch.autograd.grad(m(X).sum(), [m.first.weight, m.second.weight])
    with firebrick.compiled_backward():
        actual = torch.autograd.grad(f(X).sum(), [m.first.weight, m.second.weight])
    torch.testing.assert_close(actual, expected)
    assert grads(m) == [None] * 4


def test_no_gradient_shares_memory_with_another():
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    with firebrick.compiled_backward():
        (a + b).sum().backward()
    a.grad.mul_(5)
    assert b.grad.tolist() == [1, 1, 1]


def test_a_graph_is_kept_only_where_that_is_asked_for():
    m = Broken()
    loss = firebrick.compile(m)(X).square().mean()
    with firebrick.compiled_backward():
        loss.backward(retain_graph=True)
        once = grads(m)
        loss.backward()
        torch.testing.assert_close(grads(m), [2 * g for g in once])
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_what_was_written_to_is_an_error():
    w = nn.Parameter(torch.ones(3))
    y = w.exp()
    y.add_(1)
    with firebrick.compiled_backward(), pytest.raises(RuntimeError, match="inplace operation"):
        y.sum().backward()


def test_another_shape_and_another_structure_are_other_graphs():
    m = Broken()
    twin = copy.deepcopy(m)
    f = firebrick.compile(twin, dynamic=False)
    for rows, power in ((5, 1), (4, 1), (5, 2), (4, 2), (5, 1)):
        x = torch.randn(rows, 6)
        m(x).pow(power).mean().backward()
        with firebrick.compiled_backward():
            f(x).pow(power).mean().backward()
    torch.testing.assert_close(grads(twin), grads(m), rtol=1e-5, atol=1e-6)


def test_a_parameter_that_moved_is_read_where_it_is():
    m = Broken()
    twin = copy.deepcopy(m)
    f, pairs = firebrick.compile(twin), []
    for _ in range(3):
        for module, call in ((m, m), (twin, f)):
            opt = torch.optim.SGD(module.parameters(), 0.1)
            opt.zero_grad()
            with firebrick.compiled_backward():
                call(X).square().mean().backward()
            opt.step()
        pairs.append((grads(twin), grads(m)))
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("cause", "loss"),
    [
        ("packed by hooks", lambda m: checkpoint(m, X, use_reentrant=False).sum()),
        ("through a view", lambda m: written_in_part(m)),
    ],
    ids=["checkpoint", "view"],
)
def test_what_is_not_compiled_is_left_to_the_engine_with_its_cause(cause, loss):
    m = Broken()
    loss(m).backward()
    expected = grads(m)
    m.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with firebrick.compiled_backward():
            loss(m).backward()
    torch.testing.assert_close(grads(m), expected)
    assert cause in "".join(firebrick.stats()["reasons"]["backward by torch's engine"])


def written_in_part(m):
    base = torch.zeros(5, 3)
    base[1:] = m(X)[1:]
    return base.square().sum()


def test_gradients_of_gradients_are_left_to_the_engine():
    w = nn.Parameter(torch.tensor([1.0, 2.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with firebrick.compiled_backward():
            (first,) = torch.autograd.grad(w.pow(3).sum(), w, create_graph=True)
            first.sum().backward()
    assert w.grad.tolist() == [6, 12]


def test_as_an_option_of_compile():
    m, before = Broken(), counted("graphs of compiled backwards")
    opt = torch.optim.AdamW(m.parameters())

    @firebrick.compile(options={"compiled_backward": True})
    def step(x):
        loss = m(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        return loss

    losses = [step(X).item() for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert counted("graphs of compiled backwards") - before == 1


def test_the_option_of_a_module_is_an_error_that_says_what_to_do():
    with pytest.raises(firebrick.errors.ConfigError, match="around loss.backward"):
        firebrick.compile(torch.nn.Linear(2, 2), options={"compiled_backward": True})


def test_what_a_graph_was_called_with_goes_with_what_is_saved():
    noted = []
    note = firebrick.disable(lambda t: noted.append(weakref.ref(t)))

    class Noting(Broken):
        def forward(self, x):
            x = self.first(x).tanh()
            note(x)
            return self.second(x)

    m = Noting()
    f = firebrick.compile(m)
    for _ in range(2):  # a new graph, and one that the engine keeps
        loss = f(X).square().mean()
        with firebrick.compiled_backward():
            loss.backward(retain_graph=True)
            assert noted[-1]() is not None
            loss.backward()
        assert noted[-1]() is None


def test_gradients_of_gradients_of_compiled_graphs_are_right_under_it():
    m = Broken()
    f, x = firebrick.compile(m), X.clone().requires_grad_()

    def penalty(function):
        (grad,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
        grad.norm().backward()

    penalty(m)
    expected = grads(m)
    m.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with firebrick.compiled_backward():
            penalty(f)
    torch.testing.assert_close(grads(m), expected)
