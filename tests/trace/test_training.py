"""One compiled node in the engine's graph: what it saves, which gradients it gives, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import firebrick
from firebrick.config import Config
from firebrick.pipeline import compile_graph
from firebrick.report import recorder


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).requires_grad_()


def counts() -> dict[str, Any]:
    return firebrick.stats()["counts"]


def gradients(loss: torch.Tensor, *tensors: torch.Tensor, **options: Any) -> tuple[torch.Tensor | None, ...]:
    return torch.autograd.grad(loss, tensors, allow_unused=True, **options)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.a(x) * 0).log(), self.b(x) + x


def test_parameters_behind_unused_results_get_no_gradient() -> None:
    module = TwoHeads()
    firebrick.compile(module)(leaf(2, 4))[1].sum().backward()
    assert module.a.weight.grad is None
    assert module.b.weight.grad is not None


def test_infinite_derivative_of_an_unused_result_makes_no_nan() -> None:
    x = leaf(2, 4)
    firebrick.compile(TwoHeads())(x)[1].sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_each_set_of_used_results_has_its_gradients(used: tuple[int, ...]) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x * w
        return h.sum(), x.exp(), torch.cat([x, h])[1:4] * 2

    x, w = leaf(3, 4), leaf(4)
    sides = []
    for call in (firebrick.compile(f), f):
        results = call(x, w)
        sides.append(gradients(torch.stack([results[i].sum() for i in used]).sum(), x, w))
    for ours, eager in zip(*sides, strict=True):
        assert (ours is None) == (eager is None)
        if ours is not None:
            torch.testing.assert_close(ours, eager)


def test_backward_runs_again_with_retain_graph_and_not_without() -> None:
    x = leaf(3, 4)
    loss = firebrick.compile(lambda x: (x @ x.t()).exp())(x).sum()
    first = gradients(loss, x, retain_graph=True)[0]
    assert torch.equal(first, gradients(loss, x)[0])
    with pytest.raises(RuntimeError, match="a second time"):
        gradients(loss, x)


def test_saved_tensors_are_freed_by_the_backward() -> None:
    x = leaf(3, 4)
    result = firebrick.compile(lambda x: (x @ x.t()).exp())(x)
    node: Any = result.grad_fn
    assert node.saved_tensors
    result.sum().backward()
    with pytest.raises(RuntimeError, match="freed"):
        node.saved_tensors  # noqa: B018


def test_write_to_a_saved_argument_is_noticed() -> None:
    x, w = leaf(3, 4), torch.ones(4, 5)
    loss = firebrick.compile(lambda x, w: x @ w)(x, w).sum()
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_write_to_a_saved_result_is_noticed_or_harmless() -> None:
    x = leaf(3, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.t()).sigmoid().view(-1)

    result = firebrick.compile(f)(x)
    with torch.no_grad():
        result.mul_(2)
    try:
        found = gradients(result.sum(), x)[0]
    except RuntimeError as problem:
        assert "inplace" in str(problem)
    else:
        torch.testing.assert_close(found, gradients(f(x).sum(), x)[0])


def test_argument_with_a_history_is_written_with_its_gradient() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(w)
        return x.exp()

    sides = []
    for call in (firebrick.compile(f), f):
        x, w = leaf(3, 4), leaf(4)
        y = x * 3
        loss = call(y, w).sum() + y.sum()
        sides.append([*gradients(loss, x, w), y])
    for ours, eager in zip(*sides, strict=True):
        torch.testing.assert_close(ours, eager)


def test_buffer_that_gets_a_history() -> None:
    def f(state: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        state.add_(w)
        return state * 2

    sides = []
    for call in (firebrick.compile(f), f):
        state, w = torch.ones(4), leaf(4)
        loss = call(state, w).sum() + state.sum()
        assert state.requires_grad
        sides.append(gradients(loss, w)[0])
    torch.testing.assert_close(*sides)


def test_gradient_of_another_layout_and_type_is_taken() -> None:
    x = leaf(3, 4)
    result = firebrick.compile(lambda x: x.exp())(x)
    result.backward(torch.ones(4, 3).t() * 2)
    torch.testing.assert_close(x.grad, (x.exp() * 2).detach())


def test_dropout_drops_the_same_elements_in_forward_and_backward() -> None:
    x = torch.ones(64, 64, requires_grad=True)
    result = firebrick.compile(lambda x: F.dropout(x, 0.25) * 3)(x)
    result.sum().backward()
    assert torch.equal(result.detach(), x.grad)
    assert 0.6 < float((result != 0).float().mean()) < 0.9


def test_autocast_of_the_forward_holds_for_a_backward_outside_of_it() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.relu(x @ w)

    x, w = leaf(3, 4), leaf(4, 5)
    sides = []
    for call in (firebrick.compile(f), f):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = call(x, w)
        assert result.dtype == torch.bfloat16
        sides.append(gradients(result.float().sum(), x, w))
    for ours, eager in zip(*sides, strict=True):
        torch.testing.assert_close(ours, eager)


def test_training_steps_follow_eager_without_recompiling() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    sides: list[Any] = []
    before = dict(firebrick.stats()["reasons"].get("recompile", {}))
    for side in (module, copy.deepcopy(module)):
        call = firebrick.compile(side) if side is module else side
        optimizer = torch.optim.AdamW(side.parameters(), 1e-2)
        generator = torch.Generator().manual_seed(0)
        losses = []
        for _ in range(5):
            x, target = torch.randn(32, 8, generator=generator), torch.randint(0, 4, (32,), generator=generator)
            loss = F.cross_entropy(call(x), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        sides.append((losses, [p.detach() for p in side.parameters()]))
        if side is module:
            assert firebrick.stats()["reasons"].get("recompile", {}) == before
    torch.testing.assert_close(*sides)


def test_compiled_step_with_backward_inside_captures_nothing_of_the_compiler() -> None:
    module = nn.Linear(4, 4)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = module(x).square().sum()
        loss.backward()
        return loss.detach() * 2

    before = counts()["graphs"] if "graphs" in counts() else 0
    firebrick.compile(step)(torch.ones(2, 4))
    assert counts()["graphs"] - before == 2
    assert module.weight.grad is not None


def test_second_process_would_find_forward_and_backward_in_the_cache() -> None:
    def train() -> None:
        gm = fx.symbolic_trace(lambda x, w: (x @ w).tanh())
        x, w = leaf(3, 4), leaf(4, 7)
        compile_graph(gm, [x, w], Config.from_env())(x, w)[0].sum().backward()

    train()
    before = counts()
    train()
    after = counts()
    assert after["cache hits"] - before.get("cache hits", 0) == 2
    assert after.get("cache misses") == before.get("cache misses")


def test_failure_runs_eagerly_with_one_warning() -> None:
    recorder.reset()  # the warning may have been given
    gm = fx.symbolic_trace(lambda x: x.t_().exp())  # changes the caller's tensor object, which a graph can't
    x = leaf(3, 4)
    config = Config.from_env().with_options({"strict": False})
    with pytest.warns(UserWarning, match="runs on eager kernels"):
        call = compile_graph(gm, [x * 1], config)
    (gradient,) = gradients(call(x * 1).sum(), x)
    torch.testing.assert_close(gradient, x.exp().detach())


def test_aot_hands_both_halves_to_compilers() -> None:
    seen: dict[str, fx.GraphModule] = {}

    def note(name: str) -> Any:
        def compiler(gm: fx.GraphModule, inputs: list[Any]) -> Any:
            assert len(inputs) == sum(n.op == "placeholder" for n in gm.graph.nodes)
            seen[name] = gm
            return gm.forward

        return compiler

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).sin().exp()

    x = leaf(4, 4)
    result = firebrick.aot(f, note("forward"), note("backward"))(x)
    assert set(seen) == {"forward"}
    torch.testing.assert_close(gradients(result.sum(), x), gradients(f(x).sum(), x))
    assert set(seen) == {"forward", "backward"}


def test_aot_saves_what_the_partition_says() -> None:
    bytes_saved = []

    def everything(joint: firebrick.trace.JointGraph) -> list[fx.Node]:
        nodes = [n for n in joint.gm.graph.nodes if n.op == "call_function"]
        bytes_saved.append(firebrick.trace.divide(joint, nodes).plan.bytes_saved)
        return nodes

    x = leaf(4, 4)
    call = firebrick.aot(lambda x: (x @ x).sin().exp(), lambda gm, _: gm.forward, partition=everything)
    found = gradients(call(x).sum(), x)
    torch.testing.assert_close(found, gradients((x @ x).sin().exp().sum(), x))
    assert bytes_saved == [2 * 4 * 4 * 4]


def test_graph_whose_results_need_no_gradient_is_compiled_for_inference() -> None:
    def f(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.add_(x.detach())
        return x.argmax(1)

    gm = fx.symbolic_trace(f)
    x, state = leaf(3, 4), torch.zeros(3, 4)
    (found,) = compile_graph(gm, [x, state], Config.from_env())(x, state)
    assert torch.equal(found, x.argmax(1))
    assert torch.equal(state, x)


def test_one_compiled_block_called_twice_keeps_two_sets_of_saved_tensors() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    call = firebrick.compile(module)
    x = leaf(3, 4)
    ours = gradients(call(call(x)).sum(), x, *module.parameters())
    eager = gradients(module(module(x)).sum(), x, *module.parameters())
    torch.testing.assert_close(ours, eager)


def test_checkpoint_of_a_compiled_block_computes_it_again() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    call = firebrick.compile(module)
    x = leaf(3, 4)
    result = torch.utils.checkpoint.checkpoint(call, x, use_reentrant=False)
    torch.testing.assert_close(gradients(result.sum(), x), gradients(module(x).sum(), x))


def test_hooks_of_parameters_and_results_run() -> None:
    module = nn.Linear(4, 4)
    seen = []
    module.weight.register_hook(lambda g: seen.append(tuple(g.shape)))
    result = firebrick.compile(module)(leaf(3, 4))
    result.register_hook(lambda g: g * 2)
    result.sum().backward()
    assert seen == [(4, 4)]
    assert torch.equal(module.bias.grad, torch.full((4,), 6.0))


def test_frozen_parameters_get_no_gradient_and_thawing_is_noticed() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[0].requires_grad_(False)
    call = firebrick.compile(module)
    call(torch.ones(2, 4)).sum().backward()
    assert module[0].weight.grad is None
    assert module[1].weight.grad is not None
    module[0].requires_grad_(True)
    call(torch.ones(2, 4)).sum().backward()
    assert module[0].weight.grad is not None


def test_evaluation_between_steps_sees_the_new_weights() -> None:
    module = nn.Linear(8, 8)
    call = firebrick.compile(module)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    x = torch.ones(4, 8)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(call(x), module(x))
        call(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_random_ops_draw_eagers_numbers_when_asked() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.dropout(x, 0.5) + F.dropout(x.sin(), 0.3), 0.5)

    x = leaf(8, 8)
    sides = []
    for call in (firebrick.compile(f), f):
        torch.manual_seed(0)
        result = call(x)
        sides.append((result.detach(), *gradients(result.sum(), x)))
    torch.testing.assert_close(*sides)


def test_weight_of_another_layout_is_noticed() -> None:
    module = nn.Linear(8, 4)
    call, x = firebrick.compile(module), leaf(3, 8)
    for _ in range(2):
        found = gradients(call(x).sum(), x, *module.parameters())
        torch.testing.assert_close(found, gradients(module(x).sum(), x, *module.parameters()))
        module.weight.data = module.weight.data.t().contiguous().t()
