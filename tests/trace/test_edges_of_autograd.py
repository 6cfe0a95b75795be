"""What training programs do at the edges of autograd, each beside eager mode: one row a program."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import firebrick

D = torch.float64


def leaf(*shape, seed=0, dtype=D):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=dtype, generator=generator).requires_grad_()


def layers(*sizes, norm=False, dropout=0.0):
    torch.manual_seed(0)
    rows = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        rows += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), nn.Tanh(), nn.Dropout(dropout)]
    return nn.Sequential(*rows).double()


def grads(module):
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def error_of(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except RuntimeError as error:
        return "in-place" if "inplace" in str(error) else "second time" if "second time" in str(error) else str(error)
    return None


PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


@program
def retained_graph(compiled):
    x = leaf(3, 4)
    y = compiled(lambda x: x.exp().sum(1))(x)
    rows = [torch.autograd.grad(y[i], x, retain_graph=True)[0] for i in range(3)]
    return rows, torch.autograd.grad(y.sum(), x), error_of(torch.autograd.grad, y.sum(), x)


@program
def accumulated_over_calls(compiled):
    model = layers(3, 4)
    run = compiled(model)
    for i in range(3):
        run(leaf(5, 3, seed=i)).square().sum().backward()
    return grads(model)


@program
def backward_after_several_forwards(compiled):
    model = layers(3, 4, norm=True)
    run = compiled(model)
    results = [run(leaf(5, 3, seed=i)) for i in range(3)]
    for result in reversed(results):
        result.square().sum().backward()
    return grads(model), list(model.buffers())


@program
def some_inputs_only(compiled):
    a, b, c = (leaf(3, seed=i) for i in range(3))
    y = compiled(lambda a, b, c: a * b + c.sin())(a, b, c)
    one = torch.autograd.grad(y.sum(), b, retain_graph=True)
    y.sum().backward(inputs=[a])
    return one, a.grad, b.grad, c.grad


@program
def results_without_gradients(compiled):
    x = leaf(3, 4)
    values, places, below = compiled(lambda x: (*x.max(1), x < 0))(x)
    values.sum().backward()
    return x.grad, values.requires_grad, places.requires_grad, below.requires_grad, places, below


@program
def unused_argument(compiled):
    a, b = leaf(3), leaf(3, seed=1)
    y = compiled(lambda a, b: a * 2)(a, b)
    return torch.autograd.grad(y.sum(), (a, b), allow_unused=True)


@program
def complex_numbers(compiled):
    x = leaf(3, 4, dtype=torch.complex128)
    y = compiled(lambda x: (x * x.conj() + x.exp()).abs())(x)
    y.sum().backward()
    return y, x.grad


@program
def hook_of_an_argument(compiled):
    x = leaf(3)
    y = x * 2
    y.register_hook(lambda g: g * 3)
    compiled(lambda y: y.exp())(y).sum().backward()
    return x.grad


@program
def hook_of_a_result(compiled):
    x = leaf(3)
    y = compiled(lambda x: x.exp())(x)
    y.register_hook(lambda g: g.clamp(max=0.5))
    y.square().sum().backward()
    return x.grad


@program
def hook_set_inside(compiled):
    def function(x):
        y = x.sin()
        y.register_hook(lambda g: g * 10)
        return y * x

    x = leaf(3)
    compiled(function)(x).sum().backward()
    return x.grad


@program
def hook_of_a_weight(compiled):
    model = layers(3, 4)
    model[0].weight.register_hook(lambda g: g * 2)
    seen = []
    model[0].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    run = compiled(model)
    for _ in range(2):
        run(leaf(5, 3)).sum().backward()
    return grads(model), seen


@program
def backward_hooks_of_modules(compiled):
    model, seen = layers(3, 4, 2), []
    model[0].register_full_backward_hook(lambda m, i, o: seen.append(o[0].clone()))
    model[3].register_full_backward_hook(lambda m, i, o: (i[0] * 2,))
    model[1].register_full_backward_pre_hook(lambda m, o: (o[0] + 1,))
    compiled(model)(leaf(5, 3)).square().sum().backward()
    return grads(model), seen


@program
def retained_gradient(compiled):
    x = leaf(3)
    y = compiled(lambda x: x.exp())(x)
    y.retain_grad()
    y.square().sum().backward()
    return y.grad, x.grad


@program
def tied_weights(compiled):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Tanh(), nn.Linear(4, 7, bias=False)).double()
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters())
    run = compiled(model)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(run(torch.tensor([1, 2, 1])), torch.tensor([0, 3, 6])).backward()
        optimizer.step()
    return list(model.parameters()), grads(model)


@program
def weights_frozen_and_thawed(compiled):
    model = layers(3, 4, 2)
    run, rows = compiled(model), []
    for frozen in (True, False, True):
        model.zero_grad()
        model[0].requires_grad_(not frozen)
        run(leaf(5, 3)).square().sum().backward()
        rows.append(grads(model))
    return rows


@program
def weight_norm(compiled):
    model = layers(3, 4)
    parametrizations.weight_norm(model[0])
    run = compiled(model)
    for _ in range(2):
        run(leaf(5, 3)).square().sum().backward()
    return grads(model)


@program
def spectral_norm(compiled):
    model = layers(3, 4)
    parametrizations.spectral_norm(model[0])
    run = compiled(model)
    for _ in range(2):
        run(leaf(5, 3)).square().sum().backward()
    return grads(model), list(model.buffers())


@program
def orthogonal(compiled):
    model = layers(4, 4)
    parametrizations.orthogonal(model[0])
    compiled(model)(leaf(5, 4)).square().sum().backward()
    return grads(model)


@program
def batch_norm_in_both_modes(compiled):
    model, rows = layers(3, 4, norm=True), []
    run = compiled(model)
    for training in (True, True, False, True):
        model.train(training)
        rows.append(run(leaf(5, 3)))
        rows[-1].square().sum().backward()
    return rows, grads(model), list(model.buffers())


@program
def dropout_draws_as_eager(compiled):
    model = layers(3, 64, 4, dropout=0.5)
    run = compiled(model)
    torch.manual_seed(7)
    rows = [run(leaf(5, 3)) for _ in range(2)]
    sum(r.square().sum() for r in rows).backward()
    return rows, grads(model), torch.rand(2)


@program
def dropout_in_a_checkpoint(compiled):
    model = layers(3, 64, 4, dropout=0.5)

    def function(x):
        return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False) * 2

    run = compiled(function)
    torch.manual_seed(7)
    run(leaf(5, 3)).square().sum().backward()
    return grads(model), torch.rand(2)


@program
def autocast_outside(compiled):
    model = layers(3, 8, 4).float()
    run, rows = compiled(model), []
    for enabled in (True, False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            rows.append(run(leaf(5, 3, dtype=torch.float32)))
        rows[-1].float().square().sum().backward()
    return rows, grads(model)


@program
def autocast_inside(compiled):
    model = layers(3, 8, 4).float()

    def function(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
        return y.float().square().sum()

    loss = compiled(function)(leaf(5, 3, dtype=torch.float32))
    loss.backward()
    return loss, grads(model)


@program
def scaled_gradients(compiled):
    model = layers(3, 4).float()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    run = compiled(model)
    for i in range(4):
        optimizer.zero_grad()
        loss = run(leaf(5, 3, dtype=torch.float32)).square().mean() * (torch.inf if i == 2 else 1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return list(model.parameters()), scaler.get_scale()


@program
def anomaly_mode(compiled):
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("ignore")
        x = leaf(3)
        good = torch.autograd.grad(compiled(lambda x: x.exp())(x).sum(), x)
        y = compiled(lambda x: (x - x.detach()).sqrt())(x)
        message = error_of(torch.autograd.grad, (y * 0).sum(), x)
        return good, message is not None and "nan" in message


@program
def inference_between_training_steps(compiled):
    model, rows = layers(3, 4, norm=True, dropout=0.1), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    run = compiled(model)
    torch.manual_seed(0)
    for i in range(3):
        model.train()
        optimizer.zero_grad()
        run(leaf(5, 3, seed=i)).square().sum().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            rows.append(run(leaf(2, 3)))
        with torch.inference_mode():
            rows.append(run(leaf(2, 3)))
        rows.append(run(leaf(2, 3)))
    return rows, grads(model)


@program
def functional_call(compiled):
    model = layers(3, 4)
    weights = {n: (p * 2).detach().requires_grad_() for n, p in model.named_parameters()}
    loss = compiled(lambda w, x: torch.func.functional_call(model, w, (x,)).square().sum())(weights, leaf(5, 3))
    return torch.autograd.grad(loss, list(weights.values())), grads(model)


@program
def ensemble(compiled):
    models = [layers(3, 4) for _ in range(3)]
    weights, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def loss(weights, x):
        run = lambda w, b, x: torch.func.functional_call(base, (w, b), (x,))  # noqa: E731
        return torch.vmap(run, (0, 0, None))(weights, buffers, x).square().sum()

    value = compiled(loss)(weights, leaf(5, 3))
    return value, torch.autograd.grad(value, list(weights.values()))


@program
def per_sample_gradients(compiled):
    model = layers(3, 4)
    weights = {n: p.detach() for n, p in model.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x[None],)).square().sum()

    return compiled(torch.vmap(torch.func.grad(loss), (None, 0)))(weights, leaf(5, 3).detach())


@program
def result_written_before_its_backward(compiled):
    x = leaf(3)
    y = compiled(lambda x: x.exp())(x)
    with torch.no_grad():
        y.mul_(2)
    return error_of(y.sum().backward)


@program
def weight_written_before_its_backward(compiled):
    model = layers(3, 4, 2)
    y = compiled(model)(leaf(5, 3))
    with torch.no_grad():
        model[3].weight.mul_(2)
    return error_of(y.sum().backward)


@program
def argument_written_behind_the_graph(compiled):
    x = leaf(3)
    y = x * 1
    z = compiled(lambda y: y + 1)(y)
    y.mul_(3)
    (z.square() * y).sum().backward()
    return x.grad


@program
def argument_written_inside(compiled):
    def function(x, w):
        x.mul_(w)
        return x.sin()

    x, w = leaf(3), leaf(3, seed=1)
    y = x * 2
    (compiled(function)(y, w).sum() + y.square().sum()).backward()
    return x.grad, w.grad


@program
def several_losses(compiled):
    model = layers(3, 4)

    def function(x):
        y = model(x)
        return y.square().sum(), y.abs().sum(), x.sum()

    run, x = compiled(function), leaf(5, 3)
    one, two, three = run(x)
    one.backward(retain_graph=True)
    before = grads(model)
    (two + three).backward()
    return before, grads(model), x.grad


@program
def detached_and_reattached(compiled):
    def function(x):
        with torch.no_grad():
            target = x.exp()
        return (x - target).square().sum() + target.sum()

    x = leaf(3)
    compiled(function)(x).backward()
    return x.grad


@program
def straight_through(compiled):
    x = leaf(5)
    compiled(lambda x: (x + (x.round() - x).detach()).square().sum())(x).backward()
    return x.grad


@program
def gradient_accumulated_in_place(compiled):
    model = layers(3, 4)
    run = compiled(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    places = [p.grad.data_ptr() for p in model.parameters()]
    run(leaf(5, 3)).sum().backward()
    return grads(model), places == [p.grad.data_ptr() for p in model.parameters()]


@program
def low_rank_adapters(compiled):
    class Adapter(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.a = nn.Parameter(torch.ones(2, base.in_features, dtype=D))
            self.b = nn.Parameter(torch.zeros(base.out_features, 2, dtype=D))

        def forward(self, x):
            return self.base(x) + F.dropout(x, 0.1, self.training) @ self.a.t() @ self.b.t()

    model = layers(3, 4, 2)
    model[0], model[3] = Adapter(model[0]), Adapter(model[3])
    optimizer, run = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.1), compiled(model)
    torch.manual_seed(0)
    for i in range(3):
        optimizer.zero_grad()
        run(leaf(5, 3, seed=i)).square().sum().backward()
        optimizer.step()
    return list(model.parameters()), grads(model)


@program
def whole_step_in_one_function(compiled):
    model = layers(3, 8, 2).float()
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        return loss.detach(), norm

    run = compiled(step)
    rows = [run(leaf(5, 3, dtype=torch.float32).detach()) for _ in range(5)]
    return rows, list(model.parameters()), optimizer.param_groups[0]["lr"]


def plain(value):
    """Tensors without histories, and the rest as it is."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:Please use")
def test_as_eager(name):
    torch.manual_seed(0)
    want = plain(PROGRAMS[name](lambda f: f))
    torch.manual_seed(0)
    compare(plain(PROGRAMS[name](firebrick.compile)), want, name)


def compare(ours, want, name):
    if isinstance(want, torch.Tensor):
        loose = {"rtol": 2e-2, "atol": 2e-2} if name.startswith("autocast") else {}
        torch.testing.assert_close(ours, want, **loose)
    elif isinstance(want, dict):
        assert list(ours) == list(want)
        compare(list(ours.values()), list(want.values()), name)
    elif isinstance(want, list):
        assert len(ours) == len(want)
        for one, other in zip(ours, want, strict=True):
            compare(one, other, name)
    else:
        assert ours == want
