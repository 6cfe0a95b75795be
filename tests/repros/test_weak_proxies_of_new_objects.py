"""A weak proxy of an object that was made in the compiled function outlived it behind a graph break."""

import weakref

import torch

import firebrick


class Holder:
    scale = 3


def scaled(x):
    holder = Holder()
    holder.scale = 4
    proxy = weakref.proxy(holder)
    return x * proxy.scale


def test_the_object_lives_as_long_as_the_frame():
    assert torch.equal(firebrick.compile(scaled, backend="eager")(torch.ones(2)), scaled(torch.ones(2)))
