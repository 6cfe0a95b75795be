"""Functions that captured code makes, with what they carry: names, module, annotations, attributes."""

from __future__ import annotations

import functools
import inspect
import json
import sys

import pytest
import torch
from compiling import Compiled
from naming import Table, X, check_row

TABLE = Table()
row = TABLE.row


@row()
def wrappers(x):
    def noted(n: int = 3) -> str:
        "text"
        return n

    noted.level = 3

    @functools.wraps(noted)
    def own(n):
        return n

    @functools.wraps(json.dumps)
    def of_library(*args, **kwargs):
        return json.dumps(*args, **kwargs)

    @functools.wraps(torch.nn.functional.gelu)
    def of_builtin(*args):
        return args

    every = own, of_library, of_builtin, functools.update_wrapper(lambda: 0, len)
    found = [(f.__module__, f.__name__, f.__qualname__, f.__doc__, dict(f.__annotations__)) for f in every]
    return x + 1, found, own.level, own.__wrapped__ is noted, sorted(vars(own))


@row()
def wrappers_of_chosen_parts(x):
    def noted(n: int = 3) -> str:
        return n

    noted.level = 3

    @functools.wraps(noted, assigned=("__name__",), updated=())
    def own(n):
        return n

    return x + 1, own.__name__, own.__qualname__, dict(own.__annotations__), sorted(vars(own))


@row()
def names_are_not_in_the_dict(x):
    def f(n: int = 3) -> str:
        return n

    f.__name__, f.__doc__, f.__module__, f.level = "other", "text", "elsewhere", 4
    return x + 1, dict(f.__dict__), f.__name__, f.__module__, f.__doc__


@row(breaks=1)
def defaults_that_are_set(x):
    y = x + 1

    def f(y, n=1):
        return y * n

    f.__defaults__ = (3,)
    return y, f(2)


@row(breaks=1)
def code_that_is_set(x):
    y = x + 1

    def f(n):
        return n

    def g(n):
        return n * 3

    f.__code__ = g.__code__
    return y, f(2)


# -- frames that are asked for a name ----------------------------------------------------------------


def caller():
    return sys._getframe(1).f_code.co_name, inspect.currentframe().f_back.f_code.co_name, inspect.stack()[1].function


def decorated(function):
    @functools.wraps(function)
    def around(*args):
        return function(*args)

    return around


@decorated
def above(depth):
    return [inspect.stack()[n][3] for n in range(depth)]


class Named:
    def name(self):
        return f"{type(self).__name__}.{sys._getframe().f_code.co_name}"


@row()
def names_of_frames(x):
    frame = sys._getframe()
    names = frame.f_code.co_name, inspect.currentframe().f_code.co_qualname, inspect.stack()[0].function
    return x + 1, names, caller(), above(3), Named().name(), [sys._getframe().f_code.co_name for _ in range(2)]


@row()
def places_of_frames(x):
    frame, record = sys._getframe(), inspect.stack()[0]
    return x + frame.f_lineno, record.filename, frame.f_code.co_firstlineno, record.function


def last(function, *args):
    return function(*args)


@row(graphs=None, breaks=None)
def frames_that_captured_code_has_not(x):
    found = [last(caller), *map(lambda n: sys._getframe().f_back.f_code.co_name, [1])]
    return x + 1, found, inspect.stack()[0].lineno, len(inspect.stack()) > 1, sorted(sys._getframe().f_locals)


@pytest.mark.parametrize("program", TABLE.rows, ids=lambda program: program.name)
def test_functions(program):
    check_row(program)


def test_wrapper_that_is_returned():
    def f(x):
        @functools.wraps(json.dumps)
        def g(*args, **kwargs):
            return json.dumps(*args, **kwargs)

        return x + 1, g

    made, plain = Compiled(f)(X)[1], f(X)[1]
    for name in (*functools.WRAPPER_ASSIGNMENTS, "__dict__"):
        assert getattr(made, name, None) == getattr(plain, name, None)
    assert made([1]) == "[1]"
