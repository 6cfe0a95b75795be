"""Capture lets go of the user's objects when it is done, without waiting for the garbage collector."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import firebrick


class Thing:
    def __init__(self):
        self.scale = 2


def straight(x, thing):
    return x * thing.scale


def broken(x, thing):
    y = x * thing.scale
    n = y.sum().item()
    return y + n


def raising(x, thing):
    y = x * thing.scale
    return y.nothing


def looping(x, thing):
    for _ in range(2):
        x = x * thing.scale
        if x.sum().item() > 100:
            break
    return x + 1


def counting(n, thing):
    try:
        yield from range(n)
    finally:
        thing.scale = 3


def giving_up_a_generator(x, thing):
    for i, v in enumerate(counting(3, thing)):
        if v == 1:
            return x * i


class Asked:
    def __init__(self, thing):
        self.thing = thing

    @property
    def lacking(self):
        return self.thing.nothing


def asking(x, thing):
    asked = Asked(thing)
    try:
        x = x * asked.lacking
    except AttributeError:
        x = x + hasattr(asked, "lacking")
    return x


@pytest.mark.parametrize("function", [straight, broken, raising, looping, giving_up_a_generator, asking])
def test_arguments_are_let_go(function):
    compiled = firebrick.compile(function, backend="eager")
    thing, x = Thing(), torch.ones(3)
    seen = weakref.ref(thing), weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        try:
            compiled(x, thing)
        except AttributeError:
            pass
        del thing, x
        assert [ref() for ref in seen] == [None, None]
    finally:
        gc.enable()


def plain_function(x):
    return x * 2


def test_weak_references_of_classes_functions_and_tensors_stay_in_the_graph():
    def program(x):
        of_class, of_tensor, of_function = weakref.ref(Thing), weakref.ref(x), weakref.ref(plain_function)
        y = of_function()(of_tensor())
        return y, of_class() is Thing, of_class, of_tensor, of_function

    x = torch.ones(3)
    compiled = firebrick.compile(program, backend="eager", fullgraph=True)
    for function in (program, compiled):
        y, same, of_class, of_tensor, of_function = function(x)
        assert torch.equal(y, x * 2)
        assert same
        assert (of_class(), of_tensor(), of_function()) == (Thing, x, plain_function)
        assert of_tensor is weakref.ref(x)
