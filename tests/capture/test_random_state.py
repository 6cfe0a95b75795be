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
    (unused_beside_gradients, [], 1),
    (generator_as_argument, [generator], 3),
    (methods_of_a_generator, [generator], 6),
    (generator_inside, [], 3),
    (metadata_of_a_generator, [generator], 0),
    (own_and_default_in_turn, [generator], 5),
    (generator_as_attribute, [generator], 3),
    (exception_after_a_draw, [generator], 4),
    (python, [], 5),
    (python_object, [lambda: random.Random(3)], 3),
    (python_seeded, [], 2),
    (numpy_global, [], 5),
    (numpy_object, [lambda: np.random.default_rng(0)], 4),
    (seeded, [], 2),
    (state_restored, [], 2),
    (forked, [], 4),
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
