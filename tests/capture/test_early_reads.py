"""Numbers that masks, lengths and buffers decide are read in the guards, where the graph would end."""

import pytest
import torch
from torch import nn

import firebrick
from firebrick.capture import hook

X = torch.randn(3, 4)


def by_index(x, i):
    return x * [1.0, 2.0, 3.0][i]


def branch(x, mask):
    if (mask > 0).flatten().any().item():
        return x.sin()
    return x.cos()


def rounds(x, n):
    for k in range(n.max()):
        x = x + k
    return x


def after_a_write(x, mask):
    wanted = torch.zeros(mask.shape)
    wanted[mask == 2] = 7.0
    view = wanted[1:]
    view.mul_(2)
    if wanted.sum() == 14:
        return x + 1
    return x - wanted.sum()


def padded(x, n):
    return nn.functional.pad(x, (0, n))


def of_a_list(x, lengths):
    return [row[:n] * 2 for row, n in zip(x, lengths.tolist(), strict=True)]


CASES = [
    (by_index, [torch.tensor(1), torch.tensor(2), torch.tensor([0]), torch.tensor(1)]),
    (branch, [torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([1, 1])]),
    (rounds, [torch.tensor([1, 3]), torch.tensor([0, 2]), torch.tensor([3, 3])]),
    (after_a_write, [torch.tensor([1, 2]), torch.tensor([2, 2]), torch.tensor([2, 1])]),
    (padded, [torch.tensor(2), torch.tensor(0), torch.tensor(2)]),
    (of_a_list, [torch.tensor([1, 2, 3]), torch.tensor([4, 4, 0]), torch.tensor([1, 2, 3])]),
]


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize(("function", "values"), CASES)
def test_each_value_gives_what_plain_python_gives(function, values, fullgraph):
    compiled = firebrick.compile(function, fullgraph=fullgraph)
    for value in values:
        torch.testing.assert_close(compiled(X, value.clone()), function(X, value))


def test_more_values_than_captures_are_left_to_python():
    compiled = firebrick.compile(padded)
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12):
        torch.testing.assert_close(compiled(X, torch.tensor(n)), padded(X, n))


def test_data_that_change_in_place_are_seen():
    class Padding(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("left", torch.tensor(1))
            self.register_buffer("total", torch.tensor(3))

        def forward(self, x):
            return nn.functional.pad(x, (self.left, self.total - self.left))

    module = Padding()
    compiled = firebrick.compile(module, fullgraph=True)
    for total in (3, 4, 1, 3):
        module.total.fill_(total)
        torch.testing.assert_close(compiled(X), module(X))


def test_what_the_program_writes_first_is_not_read_too_early():
    def write(x, n):
        n.add_(1)
        return x * [1.0, 2.0, 3.0, 4.0][n]

    n, ours = torch.tensor(0), torch.tensor(0)
    compiled = firebrick.compile(write)
    for _ in range(3):
        torch.testing.assert_close(compiled(X, ours), write(X, n))
    assert ours == n
    with pytest.raises(firebrick.errors.Unsupported):
        firebrick.compile(write, fullgraph=True)(X, torch.tensor(0))


def test_layers_read_what_each_is_given():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, mask):
            x = self.second(self.first(x).relu()).sin().add(1).mul(2)
            if mask.any():
                return x.cos().sub(1)
            return x

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(4))

        def forward(self, x, one, two):
            for k, layer in enumerate(self.layers):
                x = layer(x, one if k < 2 else two)
            return x

    model = Model()
    compiled = firebrick.compile(model, fullgraph=True)
    for one, two in ((1, 0), (0, 1), (1, 1), (0, 0)):
        masks = [torch.tensor([0, n]) for n in (one, two)]
        torch.testing.assert_close(compiled(X, *masks), model(X, *masks))


def test_activations_still_end_the_graph():
    def toy(x, y):
        if y.sum() < 0:
            y = y * -1
        return x * y

    explained = firebrick.explain(toy)(X, X)
    assert len(explained.graphs) == 2


@pytest.mark.parametrize("n", [2, 3])
def test_what_the_frame_makes_of_nothing_is_known(n):
    def by_times(x):
        times = torch.linspace(0, 1, n + 1)
        later = times[1:] > times[:-1]
        assert later.all() or (~later).all()
        mask = torch.triu(torch.ones(n, n), diagonal=1)
        mask = mask.masked_fill(mask == 1, float("-inf"))
        for start, end in zip(times[:-1], times[1:], strict=True):
            x = x * 2 if start == times[0] else x + (end - start)
        return nn.functional.multi_head_attention_forward(
            x, x, x, 4, 2, torch.ones(12, 4), None, None, None, False, 0.0, torch.ones(4, 4), None,
            attn_mask=mask, is_causal=bool((mask < 0).any()),
        )[0]  # fmt: skip

    x = torch.randn(n, 1, 4)
    torch.testing.assert_close(firebrick.compile(by_times, fullgraph=True)(x), by_times(x))


def test_a_condition_that_raises_is_known_before_the_graph():
    def checked(x, mask):
        assert mask.any(), "nothing is wanted"
        return x + 1 if mask[0] else x - 1

    compiled = firebrick.compile(checked)
    for mask in ([True, False], [False, True], [True, True]):
        torch.testing.assert_close(compiled(X, torch.tensor(mask)), checked(X, torch.tensor(mask)))
    with pytest.raises(AssertionError, match="nothing is wanted"):
        compiled(X, torch.tensor([False, False]))


def by_number(x, n):
    n = n.item()
    return x[: n - 1].sin() if n > 2 else x[: n + 1].cos()


def by_arithmetic(x, n):
    number = int(n)
    if number * 3 - 1 < 8 and number % 2 != 5:
        x = x + number
    return x * 2


def by_element(x, n):
    return x.sin() if n.flatten()[0].item() >= 3 else x.cos()


def by_truth(x, n):
    return x.sin() if n > 2 else x.cos()


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("dims", [0, 1])
@pytest.mark.parametrize("function", [by_number, by_arithmetic, by_element, by_truth])
def test_a_comparison_is_compiled_for_each_answer(function, dims, fullgraph):
    compiled = firebrick.compile(function, fullgraph=fullgraph)
    for n in (1, 5, 2, 3, 4, 0, 1 << 40, 2, 3):
        if n < 1 << 40 or function is not by_number:
            value = torch.tensor(n).reshape((1,) * dims)
            torch.testing.assert_close(compiled(X, value), function(X, value))
    assert len(hook.entries(function.__code__)) == 2
    hook.reset()


def test_comparisons_behind_a_write_and_of_two_tensors():
    def written(x, n):
        n.add_(1)
        return x.sin() if n.item() > 2 else x.cos()

    def two(x, n, m):
        return x.sin() if n.item() > m.item() else x.cos()

    n, ours = torch.tensor(0), torch.tensor(0)
    compiled, both = firebrick.compile(written), firebrick.compile(two)
    for k in range(5):
        torch.testing.assert_close(compiled(X, ours), written(X, n))
        for m in (torch.tensor(2), torch.tensor(k)):
            torch.testing.assert_close(both(X, ours, m), two(X, n, m))
    assert ours == n


def test_a_loop_by_a_number_ends():
    def halves(x, n):
        n = n.item()
        while n > 1:
            x, n = x * 2, n // 2
        return x + n

    compiled = firebrick.compile(halves)
    for n in (1, 2, 3, 5, 100, 1 << 30, 4, 0):
        torch.testing.assert_close(compiled(X, torch.tensor(n)), halves(X, n=torch.tensor(n)))
