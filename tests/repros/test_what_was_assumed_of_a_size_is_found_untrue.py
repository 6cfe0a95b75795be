"""A graph that met a size of 1 behind what was made for larger ones ran on eager kernels (GraphUNet's loops)."""

import pytest

from firebrick.ir.index.expr import NeedsNumber
from firebrick.ir.index.sizes import Sizes


def test_the_compile_begins_again_with_what_is_known():
    sizes = Sizes()
    one, many = sizes.symbol(1), sizes.symbol(5)
    assert not sizes.ask("==", one, 1, "ones")
    assert not sizes.ask("==", many, 1, "ones")
    assert sizes.ask("==", one, 1, "exactly")
    with pytest.raises(NeedsNumber):
        sizes.enforce()
    sizes.enforce()
    assert sizes.ask("==", one, 1, "certainly")
    assert not sizes.ask("==", many, 1)
    assert ("==", many - 1) in sizes.facts, "what else was assumed is enforced by the second"
