"""Random numbers in captured programs: values and the states of all generators as plain Python leaves them."""

from __future__ import annotations

import random
from typing import Any

import compiling
import numpy as np
import pytest
import torch

import firebrick

X = torch.tensor([1.0, -2.0, 0.5])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def default(x: Any) -> Any:
    return torch.rand(3) + x, torch.nn.functional.dropout(x, 0.5), torch.randint(0, 9, (4,)), torch.randn_like(x)


def unused(x: Any) -> Any:
    torch.rand(3)
    torch.empty(3).uniform_(-1, 1)
    with torch.no_grad():
        torch.empty(2, 3).normal_()
    return torch.rand(3) + x, torch.empty(4).normal_()


def unused_beside_gradients(x: Any) -> Any:
    weight = x.clone().requires_grad_()
    return unused(weight)


def generator_as_argument(x: Any, g: Any) -> Any:
    return x + torch.rand(3, generator=g), torch.randint(0, 10, (3,), generator=g), x.clone().normal_(generator=g)


def methods_of_a_generator(x: Any, g: Any) -> Any:
    g.manual_seed(5)
    state = g.get_state()
    first = torch.rand(3, generator=g)
    g.set_state(state)
    return first + x, torch.rand(3, generator=g), g.initial_seed(), g.device


def generator_inside(x: Any) -> Any:
    return torch.rand(3, generator=torch.Generator().manual_seed(7)) + x, torch.rand(2)


def metadata_of_a_generator(x: Any, g: Any) -> Any:
    return x + 1, g.device.type, isinstance(g, torch.Generator), g is None, hasattr(g, "nothing")


def own_and_default_in_turn(x: Any, g: Any) -> Any:
    first = torch.rand(3, generator=g) + torch.rand(3)
    y = x.clone().bernoulli_(0.5, generator=g) + torch.nn.functional.dropout(x, 0.5)
    torch.nn.init.normal_(y, generator=g)
    return first, y, torch.randperm(4, generator=g), torch.rand(3)


class Noisy:
    def __init__(self) -> None:
        self.generator = generator()

    def __call__(self, x: Any) -> Any:
        try:
            return x + torch.rand(3, generator=self.generator)
        finally:
            self.last = torch.randint(0, 9, (2,), generator=self.generator)


noisy = Noisy()


def generator_as_attribute(x: Any, g: Any) -> Any:
    noisy.generator = g
    return noisy(x), noisy.last


def exception_after_a_draw(x: Any, g: Any) -> Any:
    first = torch.rand(3, generator=g)
    try:
        torch.rand(3, generator=g).view(7)
    except RuntimeError:
        first = first + torch.rand(3, generator=g)
    return first * x


def python(x: Any) -> Any:
    drawn = (
        random.random(),
        random.randint(1, 5),
        random.choice([1, 2, 3]),
        random.uniform(0, 1),
        random.sample(range(9), 3),
    )
    return x * drawn[0], drawn


def python_object(x: Any, r: Any) -> Any:
    return x * r.random(), r.randint(1, 9)


def python_seeded(x: Any) -> Any:
    random.seed(4)
    return x * random.random()


def numbers_computed(x: Any) -> Any:
    a, b, n = random.random(), random.gauss(0, 1), random.randrange(10)
    c = (a * 2 - b) / 4 + n
    whole = x.to(torch.int64)
    return x * a + n - c, c > x, whole * n + b, whole / n - x, x.sum() * a, (x > 0) * n, -c, [a, {"b": (b, n)}]


def numbers_in_place(x: Any) -> Any:
    y = x * 2
    y *= random.random()
    y.add_(random.uniform(-1, 1)).sub_(random.choice([1, 2, 3]))
    return y, x.to(torch.bfloat16) * random.random(), 1 - x.to(torch.complex64) * random.random()


def number_decides(x: Any) -> Any:
    return x * 2 if random.random() < 0.5 else x - 1


def number_as_a_size(x: Any) -> Any:
    return torch.ones(random.randint(1, 4)).sum() + x, ["a", "b"][random.randrange(2)]


def number_as_a_key(x: Any) -> Any:
    names, n = {1: "one", 2: "two"}, random.choice([1, 2])
    return x + 1, names[n], n in names, n == 1, n in [2], f"{n}", str(n), int(n * 2.5), abs(n)


def number_where_torch_wants_one(x: Any) -> Any:
    p, n = random.random(), random.randrange(3)
    return torch.clamp(x, p), x**n, torch.add(x, x, alpha=p), torch.full((2,), p), torch.tensor(p), x // (n + 1), x % p


def large_number(x: Any) -> Any:
    many = random.getrandbits(80) + random.choice(range(10**12))
    return (
        x + random.getrandbits(30),
        many,
        many * 2**2000,
        random.randint(0, 2**1500),
        random.uniform(0, 1e300) * 1e300,
    )


def large_number_in_a_tensor(x: Any) -> Any:
    return x * random.getrandbits(62), x + random.randrange(2**40) * random.randrange(2**22)


def numbers_converted(x: Any) -> Any:
    a, b = int(random.random() * 10), round(random.uniform(-4, 4))
    c, d = float(random.randint(1, 6)), abs(random.gauss(0, 1))
    return (
        x * a + b,
        torch.tensor(a),
        torch.tensor(d),
        torch.tensor(c, dtype=torch.float64),
        torch.full((2, 1), d),
        x / c,
    )


def python_object_inside(x: Any) -> Any:
    own = random.Random(5)
    first = own.random()
    return x * first, own.getstate()[1][-1], own.random()


def list_shuffled(x: Any) -> Any:
    items = [x, x + 1, x + 2]
    random.shuffle(items)
    return items[0] * random.random()


def generator_made_and_returned(x: Any) -> Any:
    g = torch.Generator()
    g.manual_seed(11)
    y = x * torch.randn(3, generator=g)
    return y, torch.randn(2, generator=g).sum(), g.get_state().sum(), torch.rand(3, generator=g)


def generator_is_the_default(x: Any) -> Any:
    g = torch.default_generator
    return torch.rand(3) + torch.rand(3, generator=g) + torch.rand(3) + x


def generator_and_probabilities(x: Any, g: Any) -> Any:
    return (
        torch.multinomial(x.abs(), 2, generator=g),
        torch.bernoulli(x.sigmoid(), generator=g),
        torch.rand(1, generator=g),
    )


def fills_of_views(x: Any, g: Any) -> Any:
    y = torch.zeros(4, 6)
    y[1:3, ::2].normal_(generator=g)
    y.t()[0].uniform_(generator=g)
    return y, x + torch.empty(20, 3).t().exponential_(generator=g).sum()


def drawn_and_replaced(x: Any, g: Any) -> Any:
    first, second = torch.rand(3, generator=g), torch.rand(3, generator=g)
    plain = second
    first.data, total = x, first.sum()
    second = second.detach_()
    second.data = torch.ones(2)
    return first, total, first + 1, second, plain is second


def drawn_in_inference_mode(x: Any, g: Any) -> Any:
    with torch.inference_mode():
        first = torch.randn(3, generator=g)
        second = x * random.random() + first
    third = torch.randn(3, generator=g) + second
    return first, second, third, [t.is_inference() for t in (first, second, third)]


def number_as_a_tensor_in_inference_mode(x: Any) -> Any:
    with torch.inference_mode():
        made = [torch.tensor(random.random()), torch.full((2,), random.random()), x * random.random()]
    return [(one.is_inference(), one) for one in made]


@torch.no_grad()
def drawn_without_gradients(x: Any, g: Any) -> Any:
    return torch.randn(3, generator=g) * x, torch.randn(3, generator=g, requires_grad=True)


def seed_after_a_draw(x: Any) -> Any:
    first = torch.rand(3)
    torch.manual_seed(5)
    return first + x, torch.rand(3)


def drawn_in_turns(x: Any, g: Any, r: Any) -> Any:
    total = x
    for _ in range(3):
        total = total + torch.rand(3, generator=g) * r.random() + random.random()
    return total


def drawn_in_a_checkpoint(x: Any, g: Any) -> Any:
    def body(y: Any) -> Any:
        return y.sin() * torch.rand(3, generator=g) * random.random()

    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)


def drawn_before_an_error(x: Any, g: Any) -> Any:
    drawn = torch.rand(3, generator=g) * random.random()
    try:
        return x[torch.tensor([7])] * drawn
    except IndexError as error:
        return drawn, str(error), torch.rand(1, generator=g), random.random()


def numpy_global(x: Any) -> Any:
    return x * float(np.random.rand()), np.random.randint(3), np.random.randn(2).tolist()


def numpy_object(x: Any, r: Any) -> Any:
    return x * float(r.random()), r.normal(size=2).tolist()


def seeded(x: Any) -> Any:
    torch.manual_seed(1)
    return torch.rand(3) + x, torch.initial_seed()


def state_restored(x: Any) -> Any:
    state = torch.get_rng_state()
    first = torch.rand(3) + x
    torch.set_rng_state(state)
    return first, torch.rand(3)


def forked(x: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = torch.rand(3)
    return first + x, torch.rand(3) + x


_ROWS: list[tuple[Any, list[Any], int]] = [
    (default, [], 0),
    (unused, [], 0),
    (unused_beside_gradients, [], 0),
    (generator_as_argument, [generator], 0),
    (methods_of_a_generator, [generator], 3),
    (generator_inside, [], 0),
    (metadata_of_a_generator, [generator], 0),
    (own_and_default_in_turn, [generator], 0),
    (generator_as_attribute, [generator], 0),
    (exception_after_a_draw, [generator], 0),
    (python, [], 1),
    (python_object, [lambda: random.Random(3)], 0),
    (python_seeded, [], 0),
    (numbers_computed, [], 0),
    (numbers_in_place, [], 0),
    (number_decides, [], 1),
    (number_as_a_size, [], 3),
    (number_as_a_key, [], 9),
    (number_where_torch_wants_one, [], 9),
    (large_number, [], 0),
    (large_number_in_a_tensor, [], 2),
    (numbers_converted, [], 0),
    (python_object_inside, [], 1),
    (list_shuffled, [], 1),
    (generator_made_and_returned, [], 1),
    (generator_is_the_default, [], 1),
    (generator_and_probabilities, [generator], 2),
    (fills_of_views, [generator], 0),
    (seed_after_a_draw, [], 1),
    (drawn_and_replaced, [generator], 0),
    (drawn_in_inference_mode, [generator], 0),
    (number_as_a_tensor_in_inference_mode, [], 2),
    (drawn_without_gradients, [generator], 0),
    (drawn_in_turns, [generator, lambda: random.Random(4)], 0),
    (drawn_in_a_checkpoint, [generator], 2),
    (drawn_before_an_error, [generator], 0),
    (numpy_global, [], 5),
    (numpy_object, [lambda: np.random.default_rng(0)], 4),
    (seeded, [], 1),
    (state_restored, [], 2),
    (forked, [], 2),
]
"""Program, how its further arguments are made, the most breaks."""


def states(args: list[Any]) -> list[Any]:
    """The states of the thread's generators, and of those among arguments."""
    found: list[Any] = [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]
    for arg in args:
        if isinstance(arg, torch.Generator):
            found.append(arg.get_state().tolist())
        elif isinstance(arg, random.Random):
            found.append(arg.getstate())
        elif isinstance(arg, np.random.Generator):
            found.append(str(arg.bit_generator.state))
    return found


@pytest.mark.parametrize(("function", "make", "most"), _ROWS, ids=[row[0].__name__ for row in _ROWS])
@pytest.mark.parametrize("kernels", [False, True], ids=["eager", "kernels"])
def test_programs(function: Any, make: list[Any], most: int, kernels: bool) -> None:
    compiled: Any = firebrick.compile(function) if kernels else compiling.Compiled(function)
    for _ in range(2):
        outcomes = []
        for one in (function, compiled):
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            args = [X.clone(), *(build() for build in make)]
            results = [one(*args), one(*args)]
            outcomes.append((results, states(args)))
        compiling.assert_same(outcomes[1][0], outcomes[0][0])
        assert outcomes[1][1] == outcomes[0][1]
    if not kernels:
        assert len(compiled.breaks) <= most, compiled.breaks
        assert bool(compiled.breaks) is bool(most)


def test_numbers_differ_from_call_to_call_in_one_graph() -> None:
    def program(x: Any) -> Any:
        return x * random.random() + torch.rand(3, generator=own) - random.randint(0, 9)

    own = generator()
    compiled: Any = compiling.Compiled(program)
    outcomes = [compiled(X).tolist() for _ in range(5)]
    assert len({str(outcome) for outcome in outcomes}) == 5
    assert len(compiled.graphs) == 1
    assert not compiled.breaks


def test_a_float_that_changes_becomes_an_argument() -> None:
    def program(x: Any, scale: float) -> Any:
        return (x * scale).sin() + scale

    compiled: Any = compiling.Compiled(program)
    for scale in (0.1, 0.2, -0.0, float("inf"), float("nan"), 3.5):
        compiling.assert_same(compiled(X, scale), program(X, scale))
    assert len(compiled.graphs) == 2


def test_a_float_that_a_graph_must_know_stays_a_constant() -> None:
    def program(x: Any, scale: float) -> Any:
        return torch.nn.functional.celu(x, scale) * scale

    def nested(x: Any, scale: float) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda y: y.sin() * scale, x, use_reentrant=False)

    for function in (program, nested):
        compiled: Any = compiling.Compiled(function)
        for scale in (0.1, 0.2, 0.3):
            compiling.assert_same(compiled(X, scale), function(X, scale))
        assert len(compiled.graphs) == 3
        assert not compiled.breaks


def test_a_random_number_behind_a_break_is_not_compiled_for_each_value() -> None:
    def program(x: Any) -> Any:
        number = random.random()
        return torch.clamp(x, number) * number + torch.full((3,), number)

    compiled: Any = compiling.Compiled(program)
    for seed in range(12):
        random.seed(seed)
        want = program(X)
        random.seed(seed)
        compiling.assert_same(compiled(X), want)
    assert len(compiled.graphs) < 10


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.generator = generator()

    def forward(self, x: Any) -> Any:
        return x * self.weight * random.random() + torch.rand(3, generator=self.generator)


def test_states_are_put_back_where_a_graph_is_out_of_date() -> None:
    outcomes = []
    for compile_it in (False, True):
        random.seed(3)
        module: Any = Scaled()
        call = firebrick.compile(module) if compile_it else module
        results = [call(X)]
        module.double()
        results += [call(X), call(X)]
        outcomes.append((results, random.getstate(), module.generator.get_state().tolist()))
    compiling.assert_same(outcomes[1][0], outcomes[0][0])
    assert outcomes[1][1:] == outcomes[0][1:]


def test_states_are_put_back_where_a_graph_raises() -> None:
    def program(x: Any, index: Any, g: Any) -> Any:
        drawn = x * random.random() + torch.rand(3, generator=g)
        return drawn[index]

    outcomes: list[Any] = []
    compiled: Any = firebrick.compile(program)
    for call in (program, compiled):
        random.seed(3)
        g = generator()
        call(X, torch.tensor([1]), g)
        with pytest.raises(IndexError):
            call(X, torch.tensor([7]), g)
        outcomes.append((random.random(), torch.rand(2, generator=g).tolist()))
    assert outcomes[0] == outcomes[1]


def test_the_default_generator_given_later_is_drawn_from_in_order() -> None:
    def program(x: Any, g: Any) -> Any:
        return torch.rand(3) + torch.rand(3, generator=g) * 2 + torch.rand(3) * 4 + x

    compiled: Any = compiling.Compiled(program)
    for g in (generator(), torch.default_generator, generator()):
        outcomes = []
        for call in (program, compiled):
            torch.manual_seed(1)
            g.manual_seed(2)
            outcomes.append(call(X, g))
        compiling.assert_same(outcomes[1], outcomes[0])
