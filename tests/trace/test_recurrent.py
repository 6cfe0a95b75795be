"""Gradients of LSTM layers on oneDNN: eager's own kernels, in compiled graphs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import fx, nn

import firebrick
from firebrick.fakes.mode import new_fake_mode
from firebrick.ir.operators.recurrent_op import recorded_lstm
from firebrick.trace import trace_joint

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten


class Layer(nn.Module):
    """Lists the results of an LSTM, some of which a loss reads."""

    def __init__(self, *read: int, **options: Any) -> None:
        super().__init__()
        self.layer, self.read = nn.LSTM(4, 5, **options), read or (0, 1, 2)

    def forward(self, x: torch.Tensor, *given: torch.Tensor) -> list[torch.Tensor]:
        out, last = self.layer(x, given or None)
        return [out, *last]


def states(layers: int, directions: int = 1, batch: int = 2, size: int = 5) -> list[torch.Tensor]:
    return [torch.randn(layers * directions, batch, size) for _ in range(2)]


def run(module: nn.Module, fn: Callable[..., Any], read: tuple[int, ...], *given: torch.Tensor) -> list[Any]:
    """Results, their metadata and all gradients."""
    inputs = [t.detach().clone().requires_grad_() for t in given]
    results = fn(*inputs)
    generator = torch.Generator().manual_seed(3)
    weighed = [(results[i] * torch.randn(results[i].shape, generator=generator)).sum() for i in read]
    torch.stack(weighed).sum().backward()
    metas = [(t.dtype, t.shape, t.stride(), t.requires_grad) for t in results]
    return [*metas, *(t.detach() for t in results), *(t.grad for t in (*inputs, *module.parameters()))]


def check(module: nn.Module, *given: torch.Tensor, read: tuple[int, ...] = (0, 1, 2), **options: Any) -> None:
    """Compare with eager in one graph."""
    ours = copy.deepcopy(module)
    call = firebrick.compile(ours, fullgraph=True, options={"strict": True, **options})
    for a, b in zip(run(ours, call, read, *given), run(module, module, read, *given), strict=True):
        assert (a is None) == (b is None)
        if isinstance(b, torch.Tensor):
            assert (a.dtype, a.stride()) == (b.dtype, b.stride())
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        else:
            assert a == b


OPTIONS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "two layers": {"num_layers": 2},
    "two layers, a dropout of nothing": {"num_layers": 2, "dropout": 0.0},
    "both directions": {"bidirectional": True},
    "both directions of two layers, batch first": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "no bias": {"bias": False},
    "no bias, both directions": {"bias": False, "bidirectional": True},
    "projected states, which is not for oneDNN": {"num_layers": 2, "proj_size": 3},
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("given", [False, True], ids=["", "states"])
@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_are_eager_s(name: str, given: bool) -> None:
    options = OPTIONS[name]
    torch.manual_seed(0)
    h, c = states(options.get("num_layers", 1), 1 + options.get("bidirectional", False), 2)
    h = h[..., : options.get("proj_size") or 5]
    shape = (2, 3, 4) if options.get("batch_first") else (3, 2, 4)
    check(Layer(**options), torch.randn(shape), *([h, c] if given else []))


@pytest.mark.parametrize("read", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_a_loss_of_some_results(read: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    check(Layer(num_layers=2, bidirectional=True), torch.randn(3, 2, 4), *states(2, 2), read=read)


def test_weights_that_no_result_of_the_loss_needs_get_no_gradient() -> None:
    class Beside(Layer):
        def forward(self, x: torch.Tensor, *given: torch.Tensor) -> list[torch.Tensor]:
            return [super().forward(x, *given)[0], x.sin()]

    module = Beside()
    check(module, torch.randn(3, 2, 4), read=(1,))
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize("numerics", ["default", "eager"])
def test_other_modes_and_arguments(numerics: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 2, 4)
    check(Layer().eval(), x, numerics=numerics)
    check(Layer(), x[:, 0], numerics=numerics)
    check(Layer(batch_first=True), x[:, :1].expand(7, 3, 4).transpose(0, 1), numerics=numerics)
    some = Layer(num_layers=2)
    some.layer.weight_hh_l0.requires_grad_(False)
    check(some, x, numerics=numerics)


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="eager mode has no LSTM in bfloat16 on this CPU"
)
def test_sixteen_bits_of_autocast() -> None:
    class Autocast(Layer):
        def forward(self, x: torch.Tensor, *given: torch.Tensor) -> list[torch.Tensor]:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x, *given)

    torch.manual_seed(0)
    check(Autocast(), torch.randn(3, 2, 4))


def test_a_layer_without_autocast_where_the_caller_has_it() -> None:
    class Without(Layer):
        def forward(self, x: torch.Tensor, *given: torch.Tensor) -> list[torch.Tensor]:
            with torch.autocast("cpu", enabled=False):
                return super().forward(x, *given)

    torch.manual_seed(0)
    module, x = Without(), torch.randn(3, 2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        check(module, x)


def test_a_second_backward_reads_what_the_first_one_read() -> None:
    torch.manual_seed(0)
    module, x = Layer(bidirectional=True), torch.randn(3, 2, 4)
    out = firebrick.compile(module, options={"strict": True})(x)[0]
    twice = [torch.autograd.grad(out.sum(), [*module.parameters()], retain_graph=True) for _ in range(2)]
    wanted = torch.autograd.grad(module(x)[0].sum(), [*module.parameters()])
    for found in twice:
        torch.testing.assert_close(found, wanted)


def test_a_part_under_no_grad_keeps_nothing_for_a_backward() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LSTM(4, 5), nn.LSTM(5, 4)

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            with torch.no_grad():
                x = self.first(x)[0]
            return [self.second(x)[0]]

    torch.manual_seed(0)
    check(Two(), torch.randn(3, 2, 4), read=(0,))


def test_a_joint_graph_has_one_call_for_each_way() -> None:
    x = torch.randn(3, 2, 4).requires_grad_()
    joint = trace_joint(fx.symbolic_trace(nn.Sequential(nn.LSTM(4, 5))), [x])
    targets = [n.target for n in joint.gm.graph.nodes]
    assert targets.count(recorded_lstm) == 1
    assert targets.count(aten.mkldnn_rnn_layer_backward.default) == 1


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 2, 4, 5), (20, 3, 64, 32)])
def test_fake_results_are_like_eager_s(shape: tuple[int, ...], dtype: torch.dtype, bias: bool) -> None:
    steps, batch, width, size = shape
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bfloat16 here")

    def flat(tensors: Any) -> list[Any]:
        return [(t.dtype, tuple(t.shape), t.stride()) for t in tensors]

    def results(x: torch.Tensor, *tensors: torch.Tensor) -> list[Any]:
        made = recorded_lstm(x, *tensors, True, [], 2, size, 1, bias, True, False, True)
        *given, space = made
        wide = [*given[:2], None]
        options = (True, 2, size, 1, bias, True, True, [], False)
        back = aten.mkldnn_rnn_layer_backward.default(x, *tensors, *given, *wide, *options, space)
        assert not any(t.requires_grad for t in made)
        return [flat(made), flat(back)]

    weights = [torch.randn(n, dtype=dtype) for n in ((4 * size, width), (4 * size, size), 4 * size, 4 * size)]
    tensors = [torch.randn(batch, steps, width, dtype=dtype).transpose(0, 1), *weights]
    tensors += [torch.randn(batch, size, dtype=dtype) for _ in range(2)]
    mode = new_fake_mode()
    with mode:
        found = results(*(mode.from_tensor(t) for t in tensors))
    with torch.no_grad():
        wanted = results(*tensors)
    if torch.__version__ < "2.12":  # whose kernel gives float32 gradients, unlike its own fake
        found[1], wanted[1] = ([entry[1:] for entry in side[1]] for side in (found, wanted))
    assert found == wanted
