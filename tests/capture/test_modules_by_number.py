"""A number that varies chooses among the modules of a list: what is captured serves all that are alike."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import firebrick


class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.linear, self.norm, self.number = nn.Linear(8, 8), nn.LayerNorm(8), number

    def forward(self, x):
        return self.norm(x + torch.relu(self.linear(x)))


class Model(nn.Module):
    def __init__(self, kind=Layer, count=9):
        super().__init__()
        self.layers = nn.ModuleList(map(kind, range(count)))

    def forward(self, x, i):
        return self.layers[i](x)


def graphs_of(model, calls, compiled=None):
    """How many graphs the calls take; each is compared with eager mode's, results and gradients."""
    compiled, before = compiled or firebrick.compile(model), firebrick.graphs_compiled()
    for call in calls:
        twin = copy.deepcopy(model)
        wanted, result = twin(*call), compiled(*call)
        torch.testing.assert_close(result, wanted)
        if torch.is_grad_enabled():
            model.zero_grad()
            result.sum().backward()
            wanted.sum().backward()
            for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
                assert (mine.grad is None) is (other.grad is None)
                if mine.grad is not None:
                    torch.testing.assert_close(mine.grad, other.grad)
        for mine, other in zip(model.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(mine, other)
    return firebrick.graphs_compiled() - before


X = torch.randn(3, 8)
NUMBERS = (0, 1, 2, 3, 5, 8, 7, 4, 2, 0, 6)


@pytest.mark.parametrize("grad", [False, True])
def test_equal_modules_share_what_is_compiled(grad):
    with torch.set_grad_enabled(grad):
        assert graphs_of(Model(), [(X, i) for i in NUMBERS]) == 3  # 0, 1, and all others


def test_of_a_sequential_and_by_sums():
    class Two(Model):
        def __init__(self):
            super().__init__()
            self.more = nn.Sequential(*(nn.Linear(8, 8) for _ in range(9)))

        def forward(self, x, i):
            return self.layers[i + 1](x) + self.more[i](x) + self.layers[8 - i](x)

    assert graphs_of(Two(), [(X, i) for i in (0, 1, 2, 3, 5, 7, 6)]) == 3


def test_numbers_beyond_the_list():
    model = Model()
    compiled = firebrick.compile(model)
    for i in (2, 3, 5):
        compiled(X, i)
    with pytest.raises(IndexError):
        compiled(X, 9)
    torch.testing.assert_close(compiled(X, -2), model.layers[7](X))
    del model.layers[8]
    with pytest.raises(IndexError):
        compiled(X, 8)


def test_modules_that_differ_are_compiled_apart():
    model = Model()
    model.layers[5].norm.eps = 0.5
    model.layers[7] = nn.Linear(8, 8)
    model.layers[8].linear.weight = nn.Parameter(torch.randn(8, 8).T)
    compiled = firebrick.compile(model)
    assert graphs_of(model, [(X, i) for i in (2, 3, 4, 6)], compiled) == 2
    assert graphs_of(model, [(X, i) for i in (5, 7, 8, 5, 7, 8, 3)], compiled) == 3


def test_changes_are_seen():
    model = Model()
    compiled = firebrick.compile(model)
    for i in (2, 3, 4):
        compiled(X, i)
    model.layers[6] = Layer(6)
    model.layers[4].linear.weight.data.mul_(2)
    handle = model.layers[5].register_forward_hook(lambda module, args, result: result * 2)
    for i in (4, 5, 6):
        torch.testing.assert_close(compiled(X, i), model(X, i))
    handle.remove()
    torch.testing.assert_close(compiled(X, 5), model(X, 5))


def test_numbers_that_modules_have():
    class Numbered(Layer):
        def forward(self, x):
            return super().forward(x) * self.number

    assert graphs_of(Model(Numbered), [(X, i) for i in (2, 3, 4, 8, 5)]) <= 3


def test_a_module_that_is_reached_in_two_ways():
    class Both(Model):
        def forward(self, x, i):
            return self.layers[i](x) + self.layers[3](x) * 2 + self.layers[i](x)

    for numbers in ((2, 4, 3, 5, 3, 4), (3, 4, 5, 3), (4, 3, 3, 5)):
        graphs_of(Both(), [(X, i) for i in numbers])

    class Other(Both):
        def forward(self, x, i):
            same = self.layers[i] is self.layers[3]
            return self.layers[i](x) + (x if same else -x)

    graphs_of(Other(), [(X, i) for i in (2, 4, 3, 5, 3, 4)])


def test_tied_weights():
    model = Model()
    model.layers[4].linear.weight = model.layers[6].linear.weight = model.layers[2].linear.weight

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x, i):
            return self.inner(x, i) + x @ self.inner.layers[2].linear.weight

    with torch.enable_grad():
        graphs_of(Tied(), [(X, i) for i in (3, 5, 4, 6, 7, 2, 8)])


def test_buffers_that_are_written():
    model = Model(lambda number: nn.BatchNorm1d(8))
    with torch.enable_grad():
        assert graphs_of(model, [(X, i) for i in (2, 3, 5, 4, 3)]) == 2
    model.eval()
    assert graphs_of(model, [(X, i) for i in (2, 3, 5, 4, 3)]) == 2


def test_lists_in_chosen_modules():
    class Block(nn.Module):
        def __init__(self, number):
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))

        def forward(self, x, j):
            return self.parts[j](x) + self.parts[0](x)

    class Nested(Model):
        def forward(self, x, i, j):
            return self.layers[i](x, j)

    model = Nested(Block)
    graphs_of(model, [(X, i, j) for i, j in ((2, 2), (3, 3), (4, 4), (2, 4), (5, 3), (6, 2))])


def test_what_is_compiled_does_not_hold_the_modules():
    model = Model()
    compiled, held = firebrick.compile(model), weakref.ref(model.layers[3])
    for i in (2, 3, 4):
        compiled(X, i)
    del model, compiled
    gc.collect()
    assert held() is None
