"""An operator whose schema has a list as a default was no function of captured code: what operators write was kept by
their schemas, and such a schema has no hash."""

import torch
from tests.repros.same import same

LIBRARY = torch.library.Library("firebrick_repro_lists", "DEF")
LIBRARY.define("shifted(Tensor(a!) x, int[] shifts=[1], int[] dims=[0]) -> ()")


def shifted(x, shifts=(1,), dims=(0,)):
    x.copy_(x.roll(shifts, dims))


LIBRARY.impl("shifted", shifted, "CPU")
LIBRARY.impl("shifted", lambda x, shifts=(1,), dims=(0,): None, "Meta")


def test_an_operator_of_torch():
    same(
        lambda x: torch.ops.aten.roll.default(x, [2]) + torch.ops.aten.avg_pool2d.default(x, [1, 1]),
        torch.randn(1, 3, 4),
    )


def test_an_operator_of_others_that_writes():
    def fn(x):
        y = x + 1
        torch.ops.firebrick_repro_lists.shifted(y)
        return y * 2

    same(fn, torch.randn(5), strict=False)  # no graph of kernels has it
