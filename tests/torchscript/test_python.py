"""TorchScript modules as plain Python and as FX."""

from typing import Dict, List, Optional, Tuple

import pytest
import torch
from torch import nn

from firebrick import torchscript
from firebrick.errors import PassError

X = torch.randn(3, 4)


class Flow(nn.Module):
    def forward(self, x, n: int, flag: bool = True):
        out: List[torch.Tensor] = []
        for i in range(n):
            if flag and i % 2 == 0:
                x = torch.relu(x) + i
            elif i > 5:
                break
            else:
                x = -x
            out.append(x * 2)
        while len(out) < 3:
            out.append(x)
        return torch.stack(out), x.size(0)


class Containers(nn.Module):
    def forward(self, x, d: Dict[str, torch.Tensor], o: Optional[torch.Tensor] = None) -> Tuple[torch.Tensor, str]:
        y = d["a"] if "a" in d else x
        if o is not None:
            y = y + o
        names = [k for k in d.keys()]
        parts = torch.chunk(y, 2, dim=-1)
        a, b = parts[0], parts[1]
        total = 0.0
        for name in names:
            total += float(len(name)) / 2
        return (a @ b.t()) * total, "n={}".format(len(names))


class State(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0
        self.last = torch.zeros(0)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        if len(self.last) > 0:
            x = x + self.last
        self.last = x
        self.count += 1
        return self.inner(x) * self.count

    @torch.jit.export
    def reset(self):
        self.count = 0
        self.last = torch.zeros(0)


class Casts(nn.Module):
    def forward(self, x):
        y = x.to(torch.float64)
        if x.dtype == torch.float32 and not x.is_cuda:
            y = y.sum(dim=[0], keepdim=True)
        return y.to(x.device), torch.zeros([2], dtype=torch.int64), torch.tensor([1.5, 2.0])


@pytest.mark.parametrize(
    ("make", "args"),
    [
        (Flow, (X, 4)),
        (Flow, (X, 9, False)),
        (Flow, (X, 0)),
        (Containers, (X, {"a": X * 2, "bc": X})),
        (Containers, (X, {"b": X}, X)),
        (Casts, (X,)),
    ],
)
def test_converted_modules_compute_the_same(make, args):
    script = torch.jit.script(make().eval())
    module = torchscript.to_module(script)
    found, wanted = module(*args), script(*args)
    torch.testing.assert_close(found[0], wanted[0])
    if not isinstance(wanted, torch.Tensor):
        assert all(a == b if isinstance(a, (int, str)) else torch.equal(a, b) for a, b in zip(found[1:], wanted[1:]))
    assert "def forward(self" in module.source


def test_state_and_other_methods():
    script = torch.jit.script(State().eval())
    module = torchscript.to_module(script)
    for _ in range(3):
        torch.testing.assert_close(module(X), script(X))
    script.reset()
    module.reset()
    torch.testing.assert_close(module(X), script(X))
    assert module.count == 1
    names = sorted(name for name, _ in module.named_parameters())
    assert names == ["inner.0.bias", "inner.0.weight"]
    with torch.no_grad():
        script.inner[0].weight.mul_(2)
        script.reset(), module.reset()
    torch.testing.assert_close(module(X), script(X))


def test_errors_are_raised_as_written():
    class Checks(nn.Module):
        def forward(self, x):
            if x.dim() != 2:
                raise ValueError("two dimensions, not {}".format(x.dim()))
            return x * 2

    module = torchscript.to_module(torch.jit.script(Checks()))
    with pytest.raises(ValueError, match="two dimensions, not 1"):
        module(X[0])


def test_traced_modules():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).eval()
    x = torch.randn(2, 3, 8, 8)
    module = torchscript.to_module(torch.jit.trace(model, x))
    torch.testing.assert_close(module(x), model(x))
    assert not module.training


def test_to_fx():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    gm = torchscript.to_fx(torch.jit.script(model), [X])
    torch.testing.assert_close(gm(X), model(X))
    names = [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]
    assert any("gelu" in n for n in names)
    flow = torchscript.to_fx(torch.jit.script(Flow()), [X, 3])
    torch.testing.assert_close(flow(X)[0], Flow()(X, 3)[0])
    with pytest.raises(PassError, match="writes its own attributes"):
        torchscript.to_fx(torch.jit.script(State().eval()), [X])
