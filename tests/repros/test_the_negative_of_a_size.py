"""torch negates sizes in its own shape functions."""

from firebrick.ir.index.sizes import Sizes


def test_the_negative_of_a_size_is_an_expression():
    sizes = Sizes()
    size = sizes.size(sizes.symbol(5))
    assert (-size).node.hint == -5
    assert not sizes.facts
