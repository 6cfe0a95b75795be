"""Small launches of one kernel run as one, in programs whose results stay what they are."""

import pytest
import torch
from interpreted import AVAILABLE

from firebrick.ir.kernels.schedule import Launch

if AVAILABLE:
    from groups import CARDS
    from tile_agree import agree, launches, planned, run_interpreted

    from firebrick.targets.cuda import beside

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not AVAILABLE, reason="no triton")]


def rand(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def parts(schedule):
    """How many parts each launch has."""
    kernels = {k.name: k for k in schedule.kernels}
    return sorted(len(kernels[s.kernel].body.parts) for s in schedule.steps if isinstance(s, Launch))


def update(*tensors):
    return [torch.addcmul(x * 0.9, x, x, value=0.1) for x in tensors]


def test_many_equal_updates_are_few_launches():
    tensors = [rand(5, 7) + k for k in range(21)]
    made = agree(lambda *xs: tuple(update(*xs)), *tensors)
    assert parts(made) == [1, 4, 16]
    assert len(made.kernels) == 3


def test_updates_in_place():
    def step(*xs):
        for x, new in zip(xs, update(*xs), strict=True):
            x.copy_(new)
        return xs[0] * 2 + xs[-1]

    agree(step, *[rand(6, 4) + k for k in range(9)])


def test_what_waits_runs_before_it_is_read_or_its_arguments_are_written():
    def steps(a, b, c):
        x, y = a.sin(), b.sin()
        z = (x.flip(0) @ y).sin() + c.sin()
        a.mul_(2)
        return x, y, z, a.sin(), (z + a).sum(0), z.cumsum(0).sin()

    agree(steps, rand(8, 8), rand(8, 8), rand(8, 8), tolerance=1e-5)


def test_launches_that_fill_the_card_stay_alone():
    _, made, _ = planned(lambda x, y: (x.exp() - 1, y.exp() - 1), rand(3000, 3000), rand(3000, 3000))
    assert launches(made) == 2
    assert launches(agree(lambda x, y: (x.exp() - 1, y.exp() - 1), rand(150, 150), rand(150, 150))) == 1


def test_launches_do_not_wait_with_much_memory():
    """Casts of gradients: what they read lives until they run."""
    x = torch.empty(1024, 1024, device="meta")

    def casts(x, *ys):
        return tuple((x @ y).sin() for y in ys)

    _, made, _ = planned(casts, *[torch.zeros(1024, 1024) + k for k in range(21)])
    assert x.nbytes * 8 <= beside._HELD * CARDS[90].level2 < x.nbytes * 9
    assert max(parts(made)) == 8
    assert made.arena_bytes <= 10 * x.nbytes
    _, made, _ = planned(lambda *ys: tuple(y.sin() for y in ys), *[torch.zeros(1024, 1024) + k for k in range(21)])
    assert max(parts(made)) == 16  # of the caller's tensors


def test_the_interpreted_program_is_the_schedule():
    x = rand(4)
    (results), made = run_interpreted(lambda x: (x.sin() + 1, (x + 2).sin() + 1), x)
    torch.testing.assert_close(results[0], x.sin() + 1)
    assert made.kernels
