"""Fixtures of tests with several processes."""

import pytest
from ranks import Ranks

_alive: dict[int, Ranks] = {}


def _of(world):
    if world not in _alive or not all(process.is_alive() for process in _alive[world].processes):
        _alive[world] = Ranks(world)
    return _alive[world]


@pytest.fixture
def ranks():
    """Two processes, shared by tests until one of them fails in a process."""
    return _of(2)


@pytest.fixture
def four_ranks():
    """As `ranks`, four of them."""
    return _of(4)


def pytest_collection_modifyitems(items):
    for item in items:
        if {"ranks", "four_ranks"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.xdist_group("ranks"))


def pytest_sessionfinish():
    for one in _alive.values():
        one.close()
