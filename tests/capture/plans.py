"""Plans for frames of one small function, evaluated natively and in Python."""

from firebrick.capture import hook
from firebrick.capture.guards import sources as s
from firebrick.capture.guards.guard_plan import Plan, build_plan

X, Y = s.Local("x"), s.Local("y")


def two(x=None, y=None):
    return None


def frame(x=None, y=None):
    return hook.Frame(two, (x, y))


def plan(*guards):
    return build_plan(guards, two.__code__)


def agree(made: Plan, view):
    """Evaluate natively, several times so that caches are used, and compare with Python."""
    expected = all(guard.holds(view) for guard in made.guards)
    for _ in range(3):
        assert made.check(view) is expected, (made.explain_failure(view), made.show())
    assert (made.explain_failure(view) == "") is expected
    return expected


class Plain:
    pass
