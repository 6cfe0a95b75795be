"""Schedules of parsed programs."""

from firebrick.config import Config
from firebrick.fuse import schedule
from firebrick.ir.loops.parse import parse
from firebrick.targets.cpu.cpu_target import CpuTarget

TARGET = CpuTarget("avx512", 64, 4, (), 32)


def plan(text, **options):
    """The schedule of a program in text form, for a machine with wide vectors and 4 threads."""
    return schedule(parse(text), {"cpu": TARGET}, Config(**options))


def steps(result):
    """For each step the nodes that it does."""
    return [list(getattr(s, "nodes", (s.name if hasattr(s, "op") else "",))) for s in result.steps]


def reasons(result):
    """Why which nodes are apart."""
    return {(r.first, r.second): r.reason for r in result.refusals}
