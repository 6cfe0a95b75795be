"""torch.nn.Module trees: containers, parameters, buffers, hooks, changes, modes."""

from __future__ import annotations

from typing import Any

import torch
from compiling import Compiled, assert_same
from torch import nn

X = torch.arange(6.0).reshape(2, 3)


def same(module: nn.Module, *args: Any, graphs: int | None = 1, calls: int = 2) -> Compiled:
    """Plain and compiled results agree, module state included."""
    import copy  # noqa: PLC0415

    plain = copy.deepcopy(module)
    compiled = Compiled(module)
    for _ in range(calls):
        assert_same(compiled(*args), plain(*args))
        assert_same(dict(module.state_dict()), dict(plain.state_dict()))
    if graphs is not None:
        assert len(compiled.graphs) == graphs
        assert not compiled.breaks
    return compiled


class Block(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.linear = nn.Linear(n, n)
        self.norm = nn.LayerNorm(n)
        self.act = nn.GELU()
        self.dropout = nn.Dropout(0.5)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.act(self.norm(self.linear(x)))) * self.scale


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(3) for _ in range(2)])
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 1)})
        self.body = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), Block(3))
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)])
        self.register_buffer("offset", torch.ones(3))
        self.plain = [1, 2]

    def forward(self, x: torch.Tensor, which: str = "a") -> tuple[torch.Tensor, ...]:
        for i, block in enumerate(self.blocks):
            x = block(x) + i
        x = self.body(x) + self.offset + self.weights[0] + self.body[0].weight.sum() + len(self.blocks)
        for name, head in self.heads.items():
            if name == which:
                y = head(x)
        return y, self.blocks[-1](x), x + sum(self.plain)


def test_containers() -> None:
    compiled = same(Net().eval(), X)
    names = {node.target for node in compiled.graphs[0].graph.nodes if node.op == "get_attr"}
    assert "blocks_0_linear_weight" in names
    assert "body_2_norm_bias" in names
    assert "offset" in names
    same(Net().eval(), X, "b")


def test_parameters_stay_the_same_objects() -> None:
    net = Net().eval()
    compiled = Compiled(net)
    compiled(X)
    assert compiled.graphs[0].blocks_0_linear_weight is net.blocks[0].linear.weight
    with torch.no_grad():
        net.blocks[0].linear.weight.mul_(2)
    assert_same(compiled(X), net(X))
    assert len(compiled.graphs) == 1


def test_replaced_parameters_and_modules_recompile() -> None:
    net = Net().eval()
    compiled = Compiled(net)
    compiled(X)
    net.blocks[0].linear.weight = nn.Parameter(torch.zeros(3, 3))
    assert_same(compiled(X), net(X))
    net.body[1] = nn.Tanh()
    assert_same(compiled(X), net(X))
    net.blocks[1].scale = 3.0
    assert_same(compiled(X), net(X))
    assert len(compiled.graphs) == 4


def test_train_and_eval() -> None:
    net = Block(3)
    net.dropout.p = 0.0
    compiled = Compiled(net)
    assert_same(compiled(X), net(X))
    net.eval()
    assert_same(compiled(X), net(X))
    net.train()
    assert_same(compiled(X), net(X))
    assert len(compiled.graphs) == 2


def test_batch_norm_in_training_changes_its_buffers() -> None:
    same(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), X)
    same(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.Flatten()), torch.randn(2, 1, 8, 8))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.cache: dict[str, Any] = {}
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.steps += 1
        self.cache["last"] = x + 1
        self.fresh = x * 2
        return x * self.calls


def test_attributes_changed_in_forward() -> None:
    net = Counting()
    compiled = Compiled(net)
    for n in range(1, 4):
        assert torch.equal(compiled(X), X * n)
        assert net.calls == n
        assert net.steps == n
        assert torch.equal(net.cache["last"], X + 1)
        assert torch.equal(net.fresh, X * 2)


def test_hooks_are_run() -> None:
    net = Block(3).eval()
    log: list[str] = []

    def before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        log.append("before")
        return (args[0] + 1,)

    def after(module: nn.Module, args: tuple[Any, ...], result: torch.Tensor) -> torch.Tensor:
        log.append("after")
        return result * 2

    net.linear.register_forward_pre_hook(before)
    handle = net.norm.register_forward_hook(after)
    compiled = Compiled(net)
    want = net(X)
    wanted, log[:] = list(log), []
    assert_same(compiled(X), want)
    assert log == wanted
    handle.remove()
    assert_same(compiled(X), net(X))


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x) * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    @property
    def size(self) -> int:
        return self.inner.in_features

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return name


def test_overridden_call_and_getattr() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.custom = Custom()

        def forward(self, x: torch.Tensor) -> tuple[object, ...]:
            return self.custom(x), self.custom.size, self.custom.anything, isinstance(self.custom, nn.Module)

    same(Outer(), X)


def test_parameters_and_named_modules_are_iterated() -> None:
    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = sum(p.sum() for p in self.parameters())
            names = [name for name, _ in self.named_modules()]
            dtype = next(self.parameters()).dtype
            return (x + total).to(dtype) + len(names) + len(list(self.children()))

    same(Norms(), X)


def test_one_module_in_two_places() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = self.a

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) + self.b(x)

    compiled = same(Shared(), X)
    names = [node.target for node in compiled.graphs[0].graph.nodes if node.op == "get_attr"]
    assert names == ["a_weight", "a_bias"]


def test_gradients_flow_through_captured_graphs() -> None:
    net = Block(3).eval()
    compiled = Compiled(net)
    compiled(X).sum().backward()
    got = net.linear.weight.grad.clone()
    net.zero_grad()
    net(X).sum().backward()
    assert torch.allclose(got, net.linear.weight.grad)


def test_functions_that_use_modules_of_their_globals() -> None:
    net = nn.Linear(3, 3)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return net(x) + net.weight.sum()

    assert torch.allclose(Compiled(fn)(X), fn(X))


def test_hooks_and_methods_set_later_are_seen() -> None:
    net = Block(3).eval()
    compiled = Compiled(net)
    assert_same(compiled(X), net(X))
    handle = net.norm.register_forward_hook(lambda module, args, result: result * 2)
    assert_same(compiled(X), net(X))
    handle.remove()
    net.linear.forward = lambda x: x * 3
    assert_same(compiled(X), net(X))
    del net.linear.forward
    assert_same(compiled(X), net(X))
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, result: result + 1)
    try:
        assert_same(compiled(X), net(X))
    finally:
        handle.remove()


def test_patched_methods_of_user_classes_are_seen(monkeypatch: Any) -> None:
    net = Block(3).eval()
    outer = nn.Sequential(net)
    compiled = Compiled(outer)
    assert_same(compiled(X), outer(X))
    monkeypatch.setattr(Block, "forward", lambda self, x: self.linear(x) * 5)
    assert_same(compiled(X), outer(X))
