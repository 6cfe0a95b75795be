"""A local that a loop may not have bound is the continuation's own too: binding it again ends what it held."""

import itertools

import torch

import firebrick


def test_what_the_loop_left_is_let_go_when_its_name_is_bound_again():
    def f(x, items, log):
        def values(v):
            try:
                yield v
            finally:
                log.append("closed")

        for _ in itertools.product(range(2), items):
            it = values(x)
            next(it)
        it = values(nothing(x))
        log.append("end")
        return next(it)

    plain, captured = [], []
    x = torch.ones(3)
    f(x, [1, 2], plain)
    firebrick.compile(f, backend="eager")(x, [1, 2], captured)
    assert captured == plain == ["closed"] * 4 + ["end", "closed"]


def nothing(x):
    return None


def test_a_loop_that_never_ran_leaves_its_name_unbound():
    def f(x, items):
        for _ in itertools.product(range(2), items):
            it = iter([x])
            next(it)
        y = x + 1
        try:
            return y, it
        except UnboundLocalError as error:
            return y, str(error)

    x = torch.ones(3)
    assert str(firebrick.compile(f, backend="eager")(x, [])) == str(f(x, []))
