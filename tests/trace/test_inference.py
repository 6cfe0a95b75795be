"""Traced ATen graphs give eager's results: values, writes to inputs, and how outputs share memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from firebrick.backends.aten import run_aten
from firebrick.config import Config
from firebrick.pipeline import compile_graph
from firebrick.trace import trace_inference


def on_eager_kernels(gm: fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    aten = trace_inference(gm, inputs, Config())
    for node in aten.gm.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            assert not node.target._schema.is_mutable, node.target
    return run_aten(aten)


def compiled(gm: fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    return compile_graph(gm, inputs, Config.from_env())


def check(make: Any, fn: Any, *inputs: torch.Tensor, module: nn.Module | None = None) -> None:
    """Run `fn` eagerly and as `make` makes it, on equal inputs; compare outputs, inputs, state and aliasing."""
    gm = fx.symbolic_trace(module if module is not None else fn)
    eager_in = [t.clone() for t in inputs]
    ours_in = [t.clone() for t in inputs]
    state = {k: v.clone() for k, v in gm.state_dict().items()}
    with torch.no_grad():
        call = make(gm, ours_in)
        torch.manual_seed(0)
        ours = call(*ours_in)
        ours_state = {k: v.clone() for k, v in gm.state_dict().items()}
        gm.load_state_dict(state)
        torch.manual_seed(0)
        eager = (fn if module is None else module)(*eager_in)
    eager = eager if isinstance(eager, (tuple, list)) else [eager]
    assert len(ours) == len(eager)
    for a, b in zip(ours, eager, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, equal_nan=True)
            assert a.stride() == b.stride()
        else:
            assert a == b
    for a, b in zip(ours_in, eager_in, strict=True):
        torch.testing.assert_close(a, b)
    for name, value in (gm if module is None else module).state_dict().items():
        torch.testing.assert_close(ours_state[name], value)
    for i, a in enumerate(eager):
        for j, b in enumerate([*eager[:i], *eager_in]):
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
                ours_b = [*ours[:i], *ours_in][j]
                assert shares(a, b) == shares(ours[i], ours_b), f"aliasing of output {i} with {j}"


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


X = torch.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize("make", [on_eager_kernels, compiled])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + 1,
        lambda x: (x + 1, x * 2),
        lambda x: x.add_(1),
        lambda x: x.add_(1) * 2,
        lambda x: x.t().add_(1),
        lambda x: x[0].mul_(2) + x[0],
        lambda x: (x.view(-1)[2:5].zero_(), x.sum())[1],
        lambda x: x.view(-1),
        lambda x: (x, x),
        lambda x: x[1:],
        lambda x: (x + 1).t(),
        lambda x: ((y := x + 1), y.t(), y[0]),
        lambda x: ((y := x + 1)[0], y[1:]),
        lambda x: ((y := x + 1).view(-1).mul_(2), y)[1],
        lambda x: ((y := torch.zeros_like(x)).copy_(x), y)[1],
        lambda x: ((y := torch.empty_like(x)).copy_(x), y.add_(1))[1],
        lambda x: (x.permute(1, 0)[1:3].copy_(torch.ones(2, 4)), x * 1)[1],
        lambda x: x.unsqueeze(0).squeeze(0).add_(3),
        lambda x: x.diagonal().fill_(7.0),
        lambda x: x.as_strided((2, 2), (6, 1), 1).add_(5),
        lambda x: x.unfold(1, 2, 2).add_(1),
        lambda x: [(c := x.chunk(2, 1))[0].add_(1), c[1].sub_(c[0])][1],
        lambda x: x.unbind(0)[2].sub_(1),
        lambda x: x.transpose(0, 1).contiguous().view(-1).relu_(),
        lambda x: torch.add(x, 1, out=torch.empty_like(x)),
        lambda x: torch.max(x, 1),
        lambda x: x.masked_fill_(x > 3, 0.0),
        lambda x: x.clone().index_put_((torch.tensor([0, 1]),), torch.tensor(9.0)),
        lambda x: x.detach().add_(1),
        lambda x: x + torch.tensor([1.0, 2, 3, 4, 5, 6]),
        lambda x: torch.tensor([1.0, 2.0]),
        lambda x: x * torch.tensor(2.0),
        lambda x: x.to(torch.float64).add_(1).float(),
        lambda x: x.clone().gt_(3),
        lambda x: (x.expand(2, 4, 6).sum(0), x.clone().t_().add_(1)),
        lambda x: x.clone().unsqueeze_(0).mul_(2),
        lambda x: (None, 3, x),
        lambda x: F.silu(x, inplace=True),
        lambda x: F.rms_norm(x, (6,)),
        lambda x: torch.stack([x, x], 0).split(1),
        lambda x: x.clone().normal_(),
        lambda x: torch.bernoulli(torch.sigmoid(x)),
        lambda x: F.dropout(x, 0.5, True),
        lambda x: torch.rand_like(x) + x,
        lambda x: x.uniform_() + x.uniform_(),
        lambda x: torch.view_as_complex(x.reshape(4, 3, 2)).abs(),
        lambda x: x.var(1),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"),
        lambda x: F.pad(x, (1, 2)),
        lambda x: x.sort(1),
        lambda x: x.clone().fill_diagonal_(3.0),
    ],
)
def test_equals_eager(fn: Any, make: Any) -> None:
    check(make, fn, X)


def test_setitem() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, 0] = 1.0
        y[1] = x[2]
        y[y > 20] = -1.0
        y[torch.tensor([0, 3]), 2:4] = 5.0
        return y

    graph = fx.Graph()
    x = graph.placeholder("x")
    import operator

    y = graph.call_method("clone", (x,))
    graph.call_function(operator.setitem, (y, (slice(None), 0), 1.0))
    row = graph.call_function(operator.getitem, (x, 2))
    graph.call_function(operator.setitem, (y, 1, row))
    mask = graph.call_function(operator.gt, (y, 20))
    graph.call_function(operator.setitem, (y, mask, -1.0))
    graph.output((y,))
    gm = fx.GraphModule(nn.Module(), graph)
    aten = trace_inference(gm, [X], Config())
    torch.testing.assert_close(run_aten(aten)(X), gm(X))
