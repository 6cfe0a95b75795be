"""`function.__class__` of a function made in captured code raised AttributeError, which a `finally` can hide."""

import torch

import firebrick


class Box:
    made = 0

    @classmethod
    def make(cls):
        cls.made += 1


def program(x, y):
    def inner():
        return x

    try:
        y.copy_(x)
        kind = inner.__class__
        Box.make()
    finally:
        return kind  # noqa: B012 (an exception is meant to be lost)


def test_the_class_is_known():
    Box.made = 0
    assert firebrick.compile(program, backend="eager")(torch.ones(2), torch.ones(2)) is type(program)
    assert Box.made == 1
