"""A library call with None for a tensor (attention's backward has two) went to the dispatcher first, which takes no
None: what was passed before it was held for ever, as the saved tensors of ViT's first backward were."""

import gc
import weakref

import torch

import firebrick


def test_nothing_is_held():
    library = torch.library.Library("firebrick_undefined", "DEF")
    library.define("first(Tensor a, Tensor b) -> Tensor")
    library.impl("first", lambda a, b: a * 2, "CPU")
    library.impl("first", lambda a, b: torch.empty_like(a), "Meta")
    run = firebrick.compile(lambda x: torch.ops.firebrick_undefined.first(x, None) + 1)
    alive = []
    for _ in range(3):
        x = torch.rand(4)
        alive.append(weakref.ref(x))
        assert torch.equal(run(x), x * 2 + 1)
        del x
    gc.collect()
    assert [a() for a in alive] == [None] * 3
    library._destroy()
