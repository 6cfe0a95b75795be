"""What a backward needs waits on the CPU: copies in the divided graph, and gradients that are eager's.

Where programs run, the CPU stands in for the GPU too: it is copied from, and back to.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import fx, nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import firebrick
from firebrick import trace
from firebrick.config import Config
from firebrick.errors import ConfigError
from firebrick.trace import joint_split

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.compiler

FORWARD = """\
aten graph
  in    x: f32[8, 8]
  in    w: f32[8, 8]
  mm: f32[8, 8] = mm(x, w)
  _to_copy_default: f32[8, 8] = _to_copy(mm, device=cpu, non_blocking=True)
  sin: f32[8, 8] = sin(mm)
  mm_1: f32[8, 8] = mm(sin, w)
  sum_1: f32[] = sum(mm_1)
  return (sum_1, _to_copy_default)"""

BACKWARD = """\
aten graph
  in    x: f32[8, 8]
  in    w: f32[8, 8]
  in    mm: f32[8, 8]
  in    tangent_0: f32[]
  expand: f32[8, 8] = expand(tangent_0, [8, 8])
  _to_copy_default: f32[8, 8] = _to_copy(mm, device=meta, non_blocking=True)
  sin: f32[8, 8] = sin(_to_copy_default)
"""


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x @ w).sin() @ w).sum()


def divided(device: str, least: int) -> trace.Division:
    with FakeTensorMode():
        tensors = [torch.empty(8, 8, device=device, requires_grad=True) for _ in range(2)]
    joint = trace.trace_joint(fx.symbolic_trace(chain), tensors)
    return trace.divide(joint, trace.min_cut(joint), (), least)


def test_divided_graphs_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_split, "NEAR", ("cpu",))
    division = divided("meta", 256)
    assert trace.show(division.forward) == FORWARD
    assert trace.show(division.backward).startswith(BACKWARD)
    assert division.plan.offloaded == (("meta", 256),)
    saved = [n.meta["val"].device.type for n in division.backward.gm.graph.nodes if n.op == "placeholder"]
    assert saved == ["meta", "meta", "cpu", "meta"]


@pytest.mark.parametrize(("device", "least"), [("meta", 257), ("meta", 0), ("cpu", 1)])
def test_what_is_small_or_on_the_cpu_stays(device: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_split, "NEAR", ("cpu",))
    division = divided(device, least)
    assert not division.plan.offloaded
    assert "_to_copy" not in trace.show(division.forward) + trace.show(division.backward)


@pytest.mark.parametrize(("given", "least"), [(True, 2**20), (False, 0), ("true", 2**20), (4096, 4096), ("4096", 4096)])
def test_the_option_is_a_number_of_bytes(given: Any, least: int) -> None:
    assert Config().with_options({"offload": given}).offload == least


@pytest.mark.parametrize("given", ["much", -1])
def test_other_values_are_errors(given: Any) -> None:
    with pytest.raises(ConfigError, match="offload"):
        Config().with_options({"offload": given})


# ---------------------------------------------------------------- programs

ROWS, WIDTH = 24, 16


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is offloaded from."""
    monkeypatch.setattr(joint_split, "NEAR", ())
    firebrick.reset()


def compiled(function: Any, **options: Any) -> Any:
    """With copies back that are not dropped for having the same device, and nothing of another test's."""
    options = {"offload": 1, "cache": False, "disable_passes": "remove_noops", **options}
    return firebrick.compile(function, options=options)


def offloaded(run: Callable[[], Any]) -> int:
    before = firebrick.stats()["counts"].get("tensors offloaded", 0)
    run()
    return int(firebrick.stats()["counts"].get("tensors offloaded", 0) - before)


class Net(nn.Module):
    """Blocks with dropout, some of them under a checkpoint, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.block() for _ in range(3)])
        self.norm = nn.BatchNorm1d(WIDTH)

    def block(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.blocks[0](x)
        x = x + checkpoint(self.blocks[1], x, use_reentrant=False)
        return self.norm(x + self.blocks[2](x)).exp()


def gradients(model: nn.Module, run: Any, *shapes: int) -> list[torch.Tensor]:
    found = []
    for rows in shapes:
        model.zero_grad()
        torch.manual_seed(rows)
        x = torch.randn(rows, WIDTH, requires_grad=True)
        run(x).square().mean().backward()
        found += [x.grad, *(p.grad.clone() for p in model.parameters()), *(b.clone() for b in model.buffers())]
    return found


@pytest.mark.parametrize("options", [{}, {"memory_budget": 0.3}, {"graphs": True}, {"numerics": "eager"}], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_are_those_of_eager_mode(near: None, options: dict[str, Any], dynamic: bool) -> None:
    model = Net()
    state = {name: t.clone() for name, t in model.state_dict().items()}
    want = gradients(model, model, ROWS, ROWS + 8, ROWS)
    model.load_state_dict(state)
    run = compiled(model, dynamic=dynamic, **options)
    got: list[torch.Tensor] = []
    assert offloaded(lambda: got.extend(gradients(model, run, ROWS, ROWS + 8, ROWS))) > 3
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_explain_and_stats_tell_what_it_is(near: None) -> None:
    x = torch.randn(8, 8, requires_grad=True)
    run = compiled(lambda x: (x @ x).sin().sum())
    before = firebrick.stats()["counts"].get("bytes offloaded", 0)
    run(x).backward()
    assert firebrick.stats()["counts"]["bytes offloaded"] - before == 256
    told = firebrick.explain(run)(x)
    assert "256 bytes saved for the backward, 256 of them on the CPU in 1 tensor" in str(told)
    assert told.to_dict()["graphs"][0]["offloaded"] == 1


def leaves() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [(torch.randn(8, 8, generator=draw, dtype=torch.float64) / 3).requires_grad_() for _ in range(2)]


def test_saved_tensors_stay_for_a_second_backward(near: None) -> None:
    tensors, run = leaves(), compiled(chain)
    loss = run(*tensors)
    first = torch.autograd.grad(loss, tensors, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, tensors), first, rtol=0, atol=0)
    torch.testing.assert_close(first, torch.autograd.grad(chain(*tensors), tensors))
    with pytest.raises(RuntimeError, match="freed"):
        torch.autograd.grad(loss, tensors)


def test_gradients_of_gradients(near: None) -> None:
    sides = []
    for run in (chain, compiled(chain)):
        tensors = leaves()
        first = torch.autograd.grad(run(*tensors), tensors, create_graph=True)
        sides.append((*first, *torch.autograd.grad(sum(g.square().sum() for g in first), tensors)))
    torch.testing.assert_close(*sides)


def test_gradients_in_batches(near: None) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).sin().exp().sum(0)

    sides = []
    for run in (f, compiled(f)):
        x = leaves()[0]
        sides.append(torch.autograd.grad(run(x), x, torch.eye(8, dtype=torch.float64), is_grads_batched=True))
    torch.testing.assert_close(*sides)


@pytest.mark.parametrize("way", ["compiled_backward", "hooks", "mode"])
def test_backwards_in_other_ways(near: None, way: str) -> None:
    sides = []
    for run in (chain, compiled(chain)):
        tensors = leaves()
        hooks = torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t)
        with hooks if way == "hooks" else nullcontext():
            loss = run(*tensors)
        modes = {"compiled_backward": firebrick.compiled_backward(), "mode": FlopCounterMode(display=False)}
        with modes.get(way, nullcontext()):
            loss.backward()
        sides.append([t.grad for t in tensors])
    torch.testing.assert_close(*sides)


def test_results_arguments_and_what_is_written_stay(near: None) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x @ w).exp()  # a result that the backward reads: a write to it is an error, as in eager mode
        state.mul_(2)
        h = (y @ w).tanh()
        return y, h.t()[1:], (h.clone().mul_(state) @ w).sin()

    sides = []
    for run in (f, compiled(f)):
        x, w = leaves()
        state = torch.full((8, 8), 0.5, dtype=torch.float64)
        y, view, z = run(x, w, state)
        (y.sum() + view.sum() + z.sum()).backward()
        y, _, z = run(x, w, state)
        with torch.no_grad():
            y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()
        sides.append([view.detach(), z.detach(), x.grad, w.grad, state])
    torch.testing.assert_close(*sides)


def test_results_with_gradients_of_their_own(near: None) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x @ w).sin() @ w
        return y, (y @ w).cos().square().sum()

    sides = []
    for run in (f, compiled(f)):
        tensors = leaves()
        y, loss = run(*tensors)
        (inner,) = torch.autograd.grad(loss, [y], retain_graph=True)
        sides.append(
            (inner, *torch.autograd.grad(loss, tensors, retain_graph=True), *torch.autograd.grad(y.sum(), tensors))
        )
    torch.testing.assert_close(*sides)


def test_a_second_process_reads_it_from_the_cache(near: None, tmp_path: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).sin() @ w).sum(1)

    w = leaves()[1]
    for rows in (4, 40, 4):
        x = torch.randn(rows, 8, dtype=torch.float64, requires_grad=True)
        want = torch.autograd.grad(f(x, w).sum(), [x, w])
        for least in (0, 1000):
            run = compiled(f, offload=least, cache=True, cache_dir=str(tmp_path), dynamic=True)
            made = list[Any]()
            count = offloaded(lambda x=x, run=run, made=made: made.extend(torch.autograd.grad(run(x, w).sum(), [x, w])))
            torch.testing.assert_close(made, list(want))
            assert count == (least > 0 and rows * 64 >= least)
        firebrick.reset()
