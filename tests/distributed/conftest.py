"""Fixtures of tests with several processes."""

import pytest
from ranks import Ranks

_alive: list[Ranks] = []


@pytest.fixture
def ranks():
    """Two processes, shared by tests until one of them fails in a process."""
    if not _alive or not all(process.is_alive() for process in _alive[0].processes):
        _alive[:] = [Ranks()]
    return _alive[0]


def pytest_sessionfinish():
    for one in _alive:
        one.close()
