"""An optimizer's step is one graph, and does what the plain step does."""

import pytest
import torch
from torch import nn

import firebrick

ROWS = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (torch.optim.SGD, {"lr": 0.1, "foreach": True}),
    (torch.optim.Adam, {"lr": 0.01}),
    (torch.optim.Adam, {"lr": 0.01, "foreach": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"lr": 0.01, "fused": True, "amsgrad": True}),
    (torch.optim.Adam, {"lr": torch.tensor(0.01), "fused": True, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "fused": True, "maximize": True}),
    (torch.optim.Adagrad, {"lr": 0.01, "lr_decay": 0.1}),
    (torch.optim.NAdam, {"lr": 0.01}),
    (torch.optim.Adamax, {"lr": 0.01}),
    (torch.optim.Adadelta, {"lr": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "eps": 1e-3}),
    (torch.optim.Rprop, {"lr": 0.01}),
]


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def _train(optimizer_class, settings, wrap, rounds=5, dtype=torch.float32):
    model = _model().to(dtype)
    optimizer = optimizer_class(model.parameters(), **settings)
    step = wrap(optimizer.step)
    for seed in range(rounds):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)).to(dtype)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        step()
    return model, optimizer


def _tensors(model, optimizer):
    state = [value for entry in optimizer.state.values() for value in entry.values() if torch.is_tensor(value)]
    return [*(p.detach() for p in model.parameters()), *state]


@pytest.mark.parametrize(("optimizer_class", "settings"), ROWS, ids=lambda v: getattr(v, "__name__", None))
def test_step_is_one_graph_and_trains_as_the_plain_one(optimizer_class, settings):
    graphs, breaks = firebrick.stats()["counts"].get("graphs", 0), firebrick.stats()["counts"].get("breaks", 0)
    compiled = _tensors(*_train(optimizer_class, settings, firebrick.compile))
    counts = firebrick.stats()["counts"]
    assert counts.get("breaks", 0) == breaks
    assert 1 <= counts["graphs"] - graphs <= 2  # one makes the state, one goes on with it
    for got, want in zip(compiled, _tensors(*_train(optimizer_class, settings, lambda step: step)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_powers_of_betas_are_as_exact_as_eager():
    # 1 - 0.999 in float32 is off by 6e-5 of itself
    got = _tensors(*_train(torch.optim.Adam, {"lr": 0.01}, firebrick.compile, rounds=1))
    want = _tensors(*_train(torch.optim.Adam, {"lr": 0.01}, lambda step: step, rounds=1))
    exact = _tensors(*_train(torch.optim.Adam, {"lr": 0.01}, lambda step: step, rounds=1, dtype=torch.float64))
    for a, b, reference in zip(got, want, exact, strict=True):
        assert (a - reference).abs().max() <= 1.1 * (b - reference).abs().max() + 1e-7


def test_a_scaled_fused_step_runs_plainly():
    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(1.0)
    model(torch.ones(1, 6)).sum().backward()
    before = [p.detach().clone() for p in model.parameters()]
    firebrick.compile(optimizer.step)()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))  # an infinity was found


def test_a_model_under_no_grad_is_compiled_as_inference():
    model = _model()

    @firebrick.compile
    def predict(x):
        with torch.no_grad():
            return model(x)

    x = torch.randn(4, 6)
    saved = firebrick.stats()["counts"].get("bytes saved for backward", 0)
    got = predict(x)
    assert not got.requires_grad
    assert torch.is_grad_enabled()
    assert firebrick.stats()["counts"].get("bytes saved for backward", 0) == saved
    assert firebrick.compile(model)(x).requires_grad
    assert firebrick.stats()["counts"]["bytes saved for backward"] > saved
    torch.testing.assert_close(got, model(x).detach())


def test_a_graph_that_leaves_gradients_off_leaves_them_off():
    w = torch.ones(3, requires_grad=True)

    @firebrick.compile
    def f(x):
        torch.set_grad_enabled(False)
        return x * w

    try:
        assert not f(torch.ones(3)).requires_grad
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_an_error_under_no_grad_leaves_gradients_on():
    table = torch.ones(3, requires_grad=True)

    @firebrick.compile
    def look_up(i):
        with torch.no_grad():
            return table[i] * 2

    assert torch.equal(look_up(torch.tensor([2])), torch.tensor([2.0]))
    with pytest.raises(IndexError):
        look_up(torch.tensor([7]))
    assert torch.is_grad_enabled()


def test_a_function_of_a_library_is_compiled_by_name():
    before = firebrick.stats()["counts"].get("graphs", 0)
    normalize = firebrick.compile(torch.nn.functional.normalize)
    x = torch.randn(4, 5)
    torch.testing.assert_close(normalize(x, dim=0), torch.nn.functional.normalize(x, dim=0))
    assert normalize.__name__ == "normalize"
    assert firebrick.stats()["counts"]["graphs"] == before + 1
