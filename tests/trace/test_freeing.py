"""A backward frees each tensor that its forward saved behind the last use, unless somebody else wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import firebrick

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.compiler
WIDTH = 384
BYTES = 8 * WIDTH * WIDTH


def peak(run: Callable[[], Any]) -> int:
    """Bytes of tensors at their most, above what there was before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    held = most = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        held += event.nbytes() if event.name() == "[memory]" else 0
        most = max(most, held)
    return most


def chain(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = ((x @ w).sin() @ v).cos()
    return x.sum()


def leaves(count: int = 3) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64) / WIDTH**0.5).requires_grad_()
        for _ in range(count)
    ]


def test_peak_of_a_step_is_not_above_that_of_eager_mode() -> None:
    tensors = leaves()
    compiled = firebrick.compile(chain, fullgraph=True)
    expected = torch.autograd.grad(chain(*tensors), tensors)
    torch.testing.assert_close(torch.autograd.grad(compiled(*tensors), tensors), expected)
    del expected
    ours = peak(lambda: torch.autograd.grad(compiled(*tensors), tensors))
    assert ours <= peak(lambda: torch.autograd.grad(chain(*tensors), tensors))
    loss = compiled(*tensors)
    saved = len({t.data_ptr() for t in loss.grad_fn.saved_tensors} - {t.data_ptr() for t in tensors})
    backward = peak(lambda: torch.autograd.grad(loss, tensors, retain_graph=True))
    freeing = peak(lambda: torch.autograd.grad(compiled(*tensors), tensors))
    assert saved >= 4
    assert freeing <= backward + (saved - 2) * BYTES  # not all that is saved lies beside all that is made


def test_saved_tensors_stay_for_a_second_backward() -> None:
    tensors = leaves()
    loss = firebrick.compile(chain)(*tensors)
    first = torch.autograd.grad(loss, tensors, retain_graph=True)
    second = torch.autograd.grad(loss, tensors[:1], retain_graph=True)
    torch.testing.assert_close(second, first[:1], rtol=0, atol=0)
    torch.testing.assert_close(torch.autograd.grad(loss, tensors), first, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="freed"):
        torch.autograd.grad(loss, tensors)


def test_saved_tensors_stay_for_gradients_of_gradients() -> None:
    sides = []
    for run in (chain, firebrick.compile(chain)):
        tensors = leaves()
        first = torch.autograd.grad(run(*tensors), tensors, create_graph=True)
        sides.append((*first, *torch.autograd.grad(sum(g.square().sum() for g in first), tensors)))
    torch.testing.assert_close(*sides)


def test_gradients_in_batches_read_what_is_saved_again_and_again() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).sin().exp().sum(0)

    sides = []
    for run in (f, firebrick.compile(f)):
        x = torch.randn(5, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
        sides.append(torch.autograd.grad(run(x), x, torch.eye(5), is_grads_batched=True))
    torch.testing.assert_close(*sides)


def test_what_the_caller_holds_stays_as_it_is() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x @ w).exp()
        return y, y.t()[1:], (y @ w).sin()

    sides = []
    for run in (f, firebrick.compile(f)):
        x, w = leaves(2)
        y, view, z = run(x, w)
        saved = z.grad_fn
        (y.sum() + view.sum() + z.sum()).backward()
        junk = [torch.full((WIDTH, WIDTH), 7.0) for _ in range(8)]  # takes memory that was freed
        sides.append([y.detach(), view.detach(), z.detach(), x.grad, w.grad])
        del saved, junk
    torch.testing.assert_close(*sides)


@pytest.mark.parametrize("way", ["hooks", "twice the same", "compiled_backward", "accumulated"])
def test_gradients_are_those_of_eager_mode(way: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))
    x, sides = torch.randn(512, 64), []
    for run in (model, firebrick.compile(model)):
        model.zero_grad()
        handle = model[0].weight.register_hook(lambda g: g * 2) if way == "hooks" else None
        for _ in range(2 if way == "accumulated" else 1):
            out = run(x) + run(x) if way == "twice the same" else run(x)
            loss = out.square().mean()
            if way == "compiled_backward":
                with firebrick.compiled_backward():
                    loss.backward()
            else:
                loss.backward()
        if handle is not None:
            handle.remove()
        sides.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*sides, rtol=1e-4, atol=1e-5)
