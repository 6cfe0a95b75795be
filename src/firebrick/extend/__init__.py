"""All that a plug-in author imports."""

from firebrick.extend.claimed_group import CompiledGroup
from firebrick.extend.partition import Claim, Partition, PartitionPass, as_passes, partition
from firebrick.extend.pass_base import LEVELS, Context, Level, Pass, PassReport, Site, graph_pass
from firebrick.extend.pass_registry import PassRegistry, fingerprint, order, registry
from firebrick.extend.pass_runner import apply_passes
from firebrick.extend.pattern import trace_torch
from firebrick.extend.rule import Rule, rule
from firebrick.extend.subgraph_compiler import SubgraphCompiler
from firebrick.extend.verify import Difference, compare, relative_error
from firebrick.fakes.node_values import set_fake_values
from firebrick.ir.graph.calls import Call, call_of, value_of
from firebrick.report import listening
from firebrick.targets.base import FunctionText, FusionFacts, Refused, Target, Templates, View

__all__ = [
    "LEVELS", "Call", "Claim", "CompiledGroup", "Context", "Difference", "FunctionText", "FusionFacts", "Level",
    "Partition", "PartitionPass", "Pass", "PassRegistry", "PassReport", "Refused", "Rule", "Site", "SubgraphCompiler",
    "Target", "Templates", "View", "apply_passes", "as_passes", "call_of", "compare", "fingerprint", "graph_pass",
    "listening", "order", "partition", "registry", "relative_error", "rule", "set_fake_values", "trace_torch",
    "value_of",
]  # fmt: skip
