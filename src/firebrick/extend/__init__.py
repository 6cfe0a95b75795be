"""All that a plug-in author imports."""

from firebrick.extend.base import LEVELS, Context, Level, Pass, PassReport, Site, graph_pass
from firebrick.extend.metas import set_fake_values
from firebrick.extend.registry import PassRegistry, fingerprint, order, registry
from firebrick.extend.rule import Rule, rule
from firebrick.extend.runner import apply_passes
from firebrick.extend.trace import trace_torch
from firebrick.extend.verify import Difference, compare, relative_error

__all__ = [
    "LEVELS",
    "Context",
    "Difference",
    "Level",
    "Pass",
    "PassRegistry",
    "PassReport",
    "Rule",
    "Site",
    "apply_passes",
    "compare",
    "fingerprint",
    "graph_pass",
    "order",
    "registry",
    "relative_error",
    "rule",
    "set_fake_values",
    "trace_torch",
]
