"""`functools.wraps` copies the attributes of what it wraps: a wrapper of a compiled function was taken for it.

`compile(grad(compile(f)))` compiled f, without an error, and a bound method of a compiled function lost its object.
"""

import functools

import torch
from torch.func import grad, jvp

import firebrick

X = torch.tensor(0.3, dtype=torch.float64)


def compiled(function):
    return firebrick.compile(function, backend="aot_eager")


def tenfold(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args) * 10

    return inner


def f(x):
    return (x.sin() * x).exp()


def test_transforms_of_compiled_functions_are_compiled():
    torch.testing.assert_close(compiled(grad(compiled(f)))(X), grad(f)(X))
    torch.testing.assert_close(grad(compiled(grad(compiled(f))))(X), grad(grad(f))(X))
    torch.testing.assert_close(compiled(lambda x: grad(grad(compiled(f)))(x))(X), grad(grad(f))(X))

    @compiled
    def slope(x):
        return jvp(compiled(grad(compiled(f))), (x,), (torch.ones_like(x),))[1]

    torch.testing.assert_close(slope(X), grad(grad(f))(X))


def test_a_wrapper_is_not_what_it_wraps():
    inside, outside = tenfold(compiled(f)), compiled(tenfold(compiled(f)))
    assert inside(X) == outside(X) == compiled(lambda x: inside(x))(X) == f(X) * 10
    assert compiled(tenfold(outside))(X) == f(X) * 100
    assert firebrick.disable(inside)(X) == f(X) * 10


def test_marks_are_not_those_of_a_wrapper():
    for mark in (firebrick.disable, firebrick.assume_constant_result, firebrick.allow_in_graph, torch.compiler.disable):
        marked = tenfold(mark(lambda x: x.sin()))
        assert compiled(lambda x, marked=marked: marked(x) + x)(X) == X.sin() * 10 + X, mark


def test_a_bound_method_of_a_compiled_function():
    class Scale:
        factor = 3

        @compiled
        def scaled(self, x):
            return x * self.factor

    assert compiled(Scale().scaled)(X) == Scale().scaled(X) == X * 3
