"""A backward whose forward came from the disk cache was traced where gradients were asked for: within `torch.vmap`, which
refuses leaves and random numbers, or under a mode of the program's, which saw the compiler's own calls."""

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import firebrick

LINEAR = nn.Linear(4, 64)


def softmax(x):
    return x.softmax(-1)


def linear(x):
    return LINEAR(x).relu() @ LINEAR.weight.sin()


class Doubled(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if isinstance(result, torch.Tensor) and result.is_floating_point() else result


class Forbidding(TorchDispatchMode):
    """Sees what eager's backward does, and raises for what only a compiler does."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.__name__.split(".")[0] in ("normal_", "empty_strided", "_reorder_linear_weight", "zeros"):
            raise RuntimeError(f"{func} is called")
        return func(*args, **(kwargs or {}))


def by_vmap(y, x, rows):
    return torch.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(rows)


def by_two_vmaps(y, x, rows):
    return torch.vmap(torch.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0]))(rows[None])


def in_a_batch(y, x, rows):
    return torch.autograd.grad(y, x, rows, is_grads_batched=True)[0]


def within(mode):
    def gradient(y, x, rows):
        with mode():
            return torch.autograd.grad(y, x, rows[0])[0]

    return gradient


WAYS = {
    "vmap": by_vmap,
    "two vmaps": by_two_vmaps,
    "is_grads_batched": in_a_batch,
    "a function mode": within(Doubled),
    "a dispatch mode": within(Forbidding),
    "a default device": within(lambda: torch.device("meta")),
    "autocast": within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "anomalies": within(torch.autograd.detect_anomaly),
    "saved tensors' hooks": within(lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t + 1, lambda t: t)),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("autotune", [False, True])
@pytest.mark.parametrize("function", [softmax, linear])
@pytest.mark.parametrize("way", WAYS)
def test_only_the_backward_is_compiled(tmp_path, function, way, autotune):
    options = {"cache_dir": tmp_path, "autotune": autotune}
    x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
    firebrick.compile(function, options=options)(x)
    firebrick.reset()
    hits = firebrick.stats()["counts"].get("cache hits", 0)
    found = []
    for call in (function, firebrick.compile(function, options=options)):
        y = call(x)
        rows = torch.linspace(-2, 1, 2 * y.numel()).reshape(2, *y.shape)
        found.append(WAYS[way](y, x, rows))
    assert firebrick.stats()["counts"]["cache hits"] > hits
    rounding = 2e-2 if way == "autocast" else 1e-5  # which eager's backward runs under as well
    torch.testing.assert_close(found[1], found[0], rtol=rounding, atol=rounding)
