"""Calls of equal modules are captured once and replayed; what differs is executed."""

import pytest
import torch
from torch import nn

import firebrick
from firebrick.capture import hook
from firebrick.capture.frame import Capture
from firebrick.capture.replay import Repeats
from firebrick.config import Config
from firebrick.tools.models import build_model


class Block(nn.Module):
    """Enough nodes for a template."""

    def __init__(self, width=4, scale=1.0):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.scale = scale
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        y = torch.relu(self.first(x)) * self.scale
        return self.norm(x + torch.tanh(self.second(y)) + 1)


class Stack(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        x = x * 2  # no input of the graph, whose guards belong to the first block that looks at it
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def counted(monkeypatch):
    """Classes whose calls were replayed."""
    replayed = []
    plain = Repeats._replay

    def replay(self, template, module, arguments):
        result = plain(self, template, module, arguments)
        replayed.append(module.cls.__name__)
        return result

    monkeypatch.setattr(Repeats, "_replay", replay)
    return replayed


def captured(model, inputs):
    """The graphs' text, the guards and the result of one capture."""
    reports = []
    firebrick.reset()
    callback = Capture(lambda gm, example_inputs: gm.forward, Config(strict=True), on_frame=reports.append)
    args, kwargs = (inputs, {}) if isinstance(inputs, tuple) else ((), inputs)
    result = hook.Wrapped(model, callback, object())(*args, **kwargs)
    texts = ["\n".join(str(node.format_node()) for node in report.graph.graph.nodes) for report in reports]
    return texts, sorted(guard for report in reports for guard in report.guards), result


def without_templates(monkeypatch):
    monkeypatch.setattr(Repeats, "call", lambda self, module, args, kwargs, run: run())


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "resnet50"])
@pytest.mark.parametrize("grad", [False, True])
def test_graph_and_guards_are_those_of_a_full_execution(name, grad, counted, monkeypatch):
    options = {"layers": 3, "width": 64} if name != "resnet50" else {}
    model, inputs = build_model(name, **options)
    with torch.set_grad_enabled(grad):
        texts, guards, _ = captured(model, inputs)
        assert counted
        without_templates(monkeypatch)
        full_texts, full_guards, _ = captured(model, inputs)
    assert texts == full_texts
    assert guards == full_guards


@torch.no_grad()
def test_equal_blocks_are_replayed(counted):
    model, x = Stack(Block() for _ in range(5)), torch.randn(2, 4)
    _, _, result = captured(model, (x,))
    assert counted.count("Block") >= 4
    torch.testing.assert_close(result, model(x))


def both(model, *inputs):
    compiled = firebrick.compile(model, backend="eager")
    torch.testing.assert_close(compiled(*inputs), model(*inputs))
    return compiled


@torch.no_grad()
def test_another_constant_is_executed(counted):
    both(Stack([Block(), Block(scale=2.0), Block()]), torch.randn(2, 4))
    assert counted == ["Block"]


@torch.no_grad()
def test_other_sizes_are_executed(counted):
    class Between(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.up, self.down = nn.Linear(4, inner), nn.Linear(inner, 4)

        def forward(self, x):
            return torch.relu(self.down(torch.relu(self.up(torch.relu(x))))) + torch.tanh(x) * 2

    both(Stack([Between(8), Between(16), Between(8)]), torch.randn(2, 4))
    assert counted == ["Between"]


@torch.no_grad()
def test_a_changed_block_is_seen(counted):
    model, x = Stack(Block() for _ in range(4)), torch.randn(2, 4)
    compiled = both(model, x)
    model.blocks[2].scale = 3.0
    torch.testing.assert_close(compiled(x), model(x))
    model.blocks[3].first = nn.Linear(4, 4)
    torch.testing.assert_close(compiled(x), model(x))
    model.blocks[3].second.weight = model.blocks[2].second.weight
    torch.testing.assert_close(compiled(x), model(x))
    handle = model.blocks[1].register_forward_hook(lambda module, args, out: out + 1)
    torch.testing.assert_close(compiled(x), model(x))
    handle.remove()
    model.blocks[1].norm.eval()
    torch.testing.assert_close(compiled(x), model(x))


@torch.no_grad()
def test_tied_weights_are_executed(counted):
    model = Stack(Block() for _ in range(3))
    model.blocks[1].first.weight = model.blocks[0].second.weight
    both(model, torch.randn(2, 4))
    assert counted == ["Block"]  # the third


class Known(Block):
    """Does something else where it is the first of all."""

    everyone: list = []

    def forward(self, x):
        y = super().forward(x)
        return y * 2 if self is self.everyone[0] else y


class Keyed(Block):
    table: dict = {}

    def forward(self, x):
        return super().forward(x) * self.table[self]


@pytest.mark.parametrize("kind", [Known, Keyed])
@torch.no_grad()
def test_identity_of_a_module_is_not_replayed(kind, counted):
    blocks = [kind() for _ in range(3)]
    Known.everyone = blocks
    Keyed.table = {block: index + 1.0 for index, block in enumerate(blocks)}
    both(Stack(blocks), torch.randn(2, 4))
    assert kind.__name__ not in counted


class Counting(Block):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return super().forward(x) * type(self).calls


class Keeping(Block):
    def forward(self, x, kept):
        kept.append(x)
        return super().forward(x) * len(kept)


class Caching(Block):
    holder: dict = {}

    def forward(self, x):
        self.holder["seen"].append(1.0)
        return super().forward(x) * len(self.holder["seen"])


@torch.no_grad()
def test_a_block_that_changes_something_is_executed_each_time():
    class KeepingStack(Stack):
        def forward(self, x):
            kept = []
            for block in self.blocks:
                x = block(x, kept)
            return x, kept

    class CachingStack(Stack):
        def forward(self, x):
            Caching.holder["seen"] = []
            return super().forward(x)

    x = torch.randn(2, 4)
    both(KeepingStack(Keeping() for _ in range(4)), x)
    both(CachingStack(Caching() for _ in range(4)), x)
    model = Stack(Counting() for _ in range(4))
    Counting.calls = 0
    expected = model(x)
    Counting.calls = 0
    torch.testing.assert_close(firebrick.compile(model, backend="eager")(x), expected)
    assert Counting.calls == 4


@torch.no_grad()
def test_a_block_that_reads_what_others_change_is_executed_each_time():
    class Reading(Block):
        state: dict = {"level": 1.0}

        def forward(self, x):
            return super().forward(x) * self.state["level"]

    class ReadingStack(Stack):
        def forward(self, x):
            for block in self.blocks:
                Reading.state["level"] += 1.0
                x = block(x)
            return x

    x, model = torch.randn(2, 4), ReadingStack(Reading() for _ in range(4))
    Reading.state["level"] = 1.0
    expected = model(x)
    Reading.state["level"] = 1.0
    torch.testing.assert_close(firebrick.compile(model, backend="eager")(x), expected)
    assert Reading.state["level"] == 5.0


def test_blocks_that_write_to_their_input():
    class Writing(Block):
        def forward(self, x):
            y = super().forward(x)
            x.add_(1)
            return y + x

    class WritingInside(Block):
        def forward(self, x):
            y = super().forward(x)
            y.mul_(2)
            return y + x

    with torch.no_grad():
        for kind in (Writing, WritingInside):
            model, x = Stack(kind() for _ in range(4)), torch.randn(2, 4)
            mine, theirs = x.clone(), x.clone()
            torch.testing.assert_close(firebrick.compile(model, backend="eager")(mine), model(theirs))
            torch.testing.assert_close(mine, theirs)


def test_results_that_share_memory_are_executed():
    class Viewing(Block):
        def forward(self, x):
            return super().forward(x), x[0]

    class ViewingStack(Stack):
        def forward(self, x):
            rows = []
            for block in self.blocks:
                x, row = block(x)
                row.add_(1)
                rows.append(row)
            return x, rows

    with torch.no_grad():
        model, x = ViewingStack(Viewing() for _ in range(4)), torch.randn(2, 4)
        mine, theirs = x.clone(), x.clone()
        torch.testing.assert_close(firebrick.compile(model, backend="eager")(mine), model(theirs))
        torch.testing.assert_close(mine, theirs)


def test_gradients_of_replayed_blocks(counted):
    model, x = Stack(Block() for _ in range(4)), torch.randn(2, 4)
    firebrick.compile(model, backend="eager")(x).sum().backward()
    got = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    assert counted
    for mine, parameter in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)
