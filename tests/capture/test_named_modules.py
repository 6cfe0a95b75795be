"""Every kind of module that capture promises, one program each."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import pytest
import torch
from naming import Table, X, check_row
from torch import nn

TABLE = Table()
row = TABLE.row


def seeded(make: Any) -> Any:
    """Arguments with modules in them, the same each time."""

    def arguments() -> tuple[Any, ...]:
        torch.manual_seed(7)
        return (X.clone(), *make())

    return arguments


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])
        self.table = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Tanh()})
        self.chain = nn.Sequential(OrderedDict(first=nn.Linear(3, 3), second=nn.Sigmoid()))
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))])
        self.named = nn.ParameterDict({"w": nn.Parameter(torch.full((3,), 2.0))})
        self.buffers_ = nn.BufferList([]) if hasattr(nn, "BufferList") else None

    def forward(self, x):
        for layer in self.items:
            x = layer(x)
        for name, layer in self.table.items():
            x = layer(x) + len(name)
        x = self.chain[0](x) + self.chain.second(x) + self.chain[:1](x) + self.items[-1](x) + self.table["a"](x)
        for weight in self.weights:
            x = x * weight
        for key in self.named:
            x = x + self.named[key]
        found = len(self.items), len(self.chain), "a" in self.table, list(self.table.keys()), list(self.named.keys())
        return (
            x + self.weights[0],
            found,
            len(self.weights),
            [type(m).__name__ for m in self.chain],
            self.items[0] is self.items[0],
        )


@row(make=seeded(lambda: (Containers(),)))
def containers(x, m):
    return m(x)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("gone", None)
        self.calls = 0
        self.log: list[int] = []
        self.last = None
        self.mode = "a"

    def forward(self, x):
        self.calls += 1
        self.log.append(self.calls)
        self.total += x.sum(0)
        self.total = self.total * 2
        self.last = x
        del self.mode
        self.mode = f"mode {self.calls}"
        self.extra = {"x": self.calls}
        return x + self.total, self.gone is None


@row(make=seeded(lambda: (Counting(),)))
def attributes_changed_inside(x, m):
    return m(x), m.calls, m.last


@row(graphs=None, make=seeded(lambda: (Counting(),)))
def attributes_changed_in_several_calls(x, m):
    for _ in range(3):
        y = m(x)
    return y, m.calls


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.log: list[str] = []
        self.inner.register_forward_pre_hook(self.before)
        self.inner.register_forward_hook(self.after)
        self.inner.register_forward_hook(self.with_options, with_kwargs=True)

    def before(self, module, args):
        self.log.append("before")
        return (args[0] * 2,)

    def after(self, module, args, result):
        self.log.append("after")
        return result + 1

    def with_options(self, module, args, kwargs, result):
        self.log.append(f"options {sorted(kwargs)}")

    def forward(self, x):
        return self.inner(x)


@row(make=seeded(lambda: (Hooked(),)))
def hooks(x, m):
    return m(x), m.log


class Overriding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def __call__(self, x, *args):
        return super().__call__(x * 2, *args)

    def __getattr__(self, name):
        if name == "virtual":
            return 5
        return super().__getattr__(name)

    def __setattr__(self, name, value):
        if name == "odd":
            object.__setattr__(self, name, value + 1)
        else:
            super().__setattr__(name, value)

    def __len__(self):
        return 4

    def __contains__(self, item):
        return item == 1

    def __iter__(self):
        return iter([1, 2])

    def forward(self, x, n=1):
        self.odd = 3
        return x * self.scale + self.virtual + n


@row(make=seeded(lambda: (Overriding(),)))
def overridden_methods(x, m):
    return m(x), m(x, 2), len(m), 1 in m, list(m), m.odd, hasattr(m, "nothing"), m.virtual


@row(graphs=None, breaks=None, make=seeded(lambda: (nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2)),)))
def lazy_modules(x, m):
    return m(x), type(m[0]).__name__, m[0].in_features


@row(graphs=None, breaks=None, make=seeded(lambda: (nn.Sequential(nn.LazyConv1d(4, 1), nn.LazyBatchNorm1d()),)))
def lazy_convolution_and_norm(x, m):
    return m(x[:, :, None]), type(m[0]).__name__, m[1].num_features


@row(graphs=None, breaks=None)
def modules_made_inside(x):
    torch.manual_seed(3)
    layer = nn.Linear(3, 3)
    return layer(x), layer.weight.shape, nn.ReLU()(x), nn.Sequential(nn.Tanh(), nn.Identity())(x)


@row()
def modules_without_parameters_made_inside(x):
    return (
        nn.ReLU()(x) + nn.GELU(approximate="tanh")(x),
        nn.Softmax(dim=-1)(x),
        nn.Flatten(0)(x),
        nn.MSELoss()(x, x + 1),
    )


@row(make=seeded(lambda: (nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3)),)))
def train_and_eval_outside(x, m):
    return m(x), m.training


@row(graphs=None, breaks=None, make=seeded(lambda: (nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3)),)))
def train_and_eval_switched_inside(x, m):
    m.eval()
    y = m(x)
    m.train()
    z = m(x)
    return y, z, m.training, m[0].training


@row(make=seeded(lambda: (Containers(),)))
def trees_are_walked(x, m):
    names = [name for name, _ in m.named_parameters()]
    total = sum(p.sum() for p in m.parameters())
    kinds = [type(k).__name__ for k in m.modules()]
    children = [name for name, _ in m.named_children()]
    modules = [name for name, _ in m.named_modules()]
    buffers = [name for name, _ in m.named_buffers()]
    return (
        x + total,
        names,
        kinds,
        children,
        modules,
        buffers,
        len(list(m.children())),
        m.get_submodule("table.a")(x),
        m.get_parameter("named.w"),
    )


@row(graphs=None, breaks=None, make=seeded(lambda: (nn.Linear(3, 3),)))
def state_dict_inside(x, m):
    state = m.state_dict()
    return m(x), sorted(state), state["weight"].sum()


@row(graphs=None, breaks=None, make=seeded(lambda: (nn.Linear(3, 3),)))
def parameters_changed_inside(x, m):
    with torch.no_grad():
        m.weight.mul_(2)
        m.bias.zero_()
    return m(x), m.weight


@row(graphs=None, breaks=None, make=seeded(lambda: (nn.Linear(3, 3),)))
def parameters_replaced_inside(x, m):
    m.weight = nn.Parameter(m.weight * 2)
    m.register_buffer("late", x.clone())
    return m(x) + m.late, sorted(dict(m.named_buffers())), m.weight.requires_grad


@row(graphs=None, breaks=None, make=seeded(lambda: (nn.Linear(3, 3),)))
def submodules_added_inside(x, m):
    if not hasattr(m, "late"):
        m.late = nn.ReLU()
        m.add_module("later", nn.Tanh())
    return m.later(m.late(m(x))), [name for name, _ in m.named_children()]


@row(graphs=None, breaks=None, make=seeded(lambda: (nn.Linear(3, 3),)))
def requires_grad_switched_inside(x, m):
    m.requires_grad_(False)
    y = m(x)
    m.requires_grad_(True)
    return y, m(x), y.requires_grad


@row(graphs=None, breaks=None, make=seeded(lambda: (nn.Linear(3, 3),)))
def modules_copied_and_converted_inside(x, m):
    other = copy.deepcopy(m).to(torch.float64)
    return m(x), other(x.double()), m.weight.dtype


@row(make=seeded(lambda: (nn.Linear(3, 3),)))
def methods_called_by_name(x, m):
    return (
        type(m).forward(m, x),
        nn.Module.__call__(m, x),
        getattr(m, "forward")(x),
        m.__call__(x),
        m.extra_repr(),
        m._get_name(),
    )


@row(
    make=seeded(
        lambda: (nn.MultiheadAttention(4, 2, batch_first=True), nn.LSTM(3, 4, batch_first=True), nn.GRUCell(3, 4))
    )
)
def library_modules(x, attention, lstm, cell):
    h, (a, b) = lstm(x[None])
    y, weights = attention(h, h, h)
    return y, weights, a, b, cell(x)


@row(
    make=seeded(
        lambda: (
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0), 2, enable_nested_tensor=False
            ),
        )
    )
)
def transformer_encoder(x, m):
    return m(torch.cat([x, x[:, :1]], 1)[None])


@row(make=seeded(lambda: (nn.Embedding(5, 3, padding_idx=0), nn.EmbeddingBag(5, 3), nn.CosineSimilarity())))
def embeddings(x, e, bag, cosine):
    index = torch.tensor([[0, 1], [2, 4]])
    return e(index), bag(index), cosine(x, x + 1)


class Partial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.activation = torch.relu
        self.pick = {"a": nn.Linear(3, 3)}
        self.listed = [nn.Linear(3, 3)]
        self.function = lambda y: y + 1
        self.bound = self.helper

    def helper(self, y):
        return y * 2

    def forward(self, x):
        return self.bound(self.function(self.activation(self.pick["a"](self.listed[0](x)))))


@row(make=seeded(lambda: (Partial(),)))
def functions_and_hidden_modules_as_attributes(x, m):
    return m(x)


NORMED = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))


@row(make=lambda: (X, NORMED), graphs=None, breaks=None)
def parametrized_modules(x, m):
    return m(x)


@row(make=seeded(lambda: (nn.Linear(3, 3),)))
def functional_call(x, m):
    return torch.func.functional_call(m, {"weight": x[:1].T @ x[:1], "bias": x[0]}, (x,)), m(x)


@pytest.mark.parametrize("program", TABLE.rows, ids=lambda program: program.name)
def test_module(program):
    check_row(program)
