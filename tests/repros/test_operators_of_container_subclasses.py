"""Special methods that a class derived from a container writes as static methods, and `__iadd__`, were passed over; an
`__iter__` of its own ran while its items were guarded."""

import pytest
import torch

import firebrick


class Static(list):
    @staticmethod
    def __lt__(*args):
        return 2.5

    @staticmethod
    def __radd__(*args):
        return 3.5


class Assigned(list):
    def __iadd__(self, other):
        return "own"


class Iterated(list):
    def __iter__(self):
        return 2.5


class Hidden:
    __len__ = None


def _assigned(o):
    o += [1]
    return o


PROGRAMS = [
    (Static, lambda o: o < 1),
    (Static, lambda o: 1 > o),
    (Static, lambda o: 1 + o),
    (Static, lambda o: [1] + o),
    (Assigned, _assigned),
    (Iterated, list),
    (Hidden, bool),
]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("cls", "program"), PROGRAMS)
def test_the_class_s_own_methods_are_called(cls, program, inside):
    def run(x, o):
        try:
            return x + 1, program(cls() if inside else o)
        except TypeError as error:
            return x + 1, str(error)

    results = [f(torch.ones(2), cls())[1] for f in (run, firebrick.compile(run, backend="eager"))]
    assert results[1] == results[0]
