"""Callbacks of the frame hook that put one function in the place of another."""

from firebrick.capture import hook
from firebrick.capture.guards.guard_kinds import Guard
from firebrick.capture.guards.guard_plan import build_plan
from firebrick.capture.guards.sources import Local


class Replace:
    """A callback that compiles `original` to `compiled` under guards, and leaves all else alone."""

    def __init__(self, original, compiled, guards=lambda frame: []):
        self.original, self.compiled, self.guards = original, compiled, guards
        self.frames = []

    def __call__(self, frame):
        if frame.code is not self.original.__code__:
            return None
        self.frames.append(frame)
        return build_plan(self.guards(frame), frame.code), self.compiled.__code__


def equals(*names):
    return lambda frame: [Guard("EQUALS", Local(name), frame.locals[name]) for name in names]


def names_offered(action):
    seen = []
    with hook.installed(lambda frame: seen.append(frame.code.co_name)):
        result = action()
    return result, seen


def helper(x):
    return x + 1


def f_const(k):
    return k


def g_const(k):
    return ("compiled", k)
