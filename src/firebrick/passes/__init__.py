"""Passes: exchanges of modules (`swap` and the ready-made ones), rewrite rules, and what the compiler runs itself.

On an ATen graph, `run_passes` runs the registered rules and the caller's passes, gives parts to subgraph compilers,
and then runs `PASSES`. Order matters: groups for other compilers want the plain weights, so they are taken before
constants are folded; so are products of bytes, whose weights folding would make floats; folding comes before
prepacking, which wants to see computed weights as constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from firebrick.config import Config
from firebrick.extend import Level, Pass, PassReport, apply_passes, as_passes, fingerprint, registry
from firebrick.extend.partition import PartitionPass
from firebrick.extend.pass_base import TraceFunction
from firebrick.ir.graph.aten import AtenGraph
from firebrick.passes import rules
from firebrick.passes.activations import gelu_to_relu
from firebrick.passes.alone import Choose
from firebrick.passes.batched import computed_products
from firebrick.passes.batchnorm import FeatureBatchNorm, fold_batchnorm, layernorm_to_batchnorm
from firebrick.passes.convolution import prepack_convolution
from firebrick.passes.cuda_convolutions import place_convolutions
from firebrick.passes.cuda_products import merge_products
from firebrick.passes.fold import copy_constants, fold_constants
from firebrick.passes.integers import integer_products, widen_halves
from firebrick.passes.layout import check_layouts
from firebrick.passes.linears import FusedLinear, Int8Linear, fuse_qkv, quantize, quantize_linear
from firebrick.passes.modules import Swap, SwapReport, swap
from firebrick.passes.prepack import prepack_linear
from firebrick.report import recorder
from firebrick.targets.base import Target

__all__ = [
    "PASSES", "TUNED", "FeatureBatchNorm", "FusedLinear", "Int8Linear", "Swap", "SwapReport", "active_passes",
    "are_shipped", "check_layouts", "fold_batchnorm", "fuse_qkv", "gelu_to_relu", "layernorm_to_batchnorm",
    "passes_key", "placing", "quantize", "quantize_linear", "rules", "run_graph_passes", "run_passes", "swap",
]  # fmt: skip

TUNED = (prepack_convolution, prepack_linear, computed_products)
"""Passes that choose among kernels, and take what measures them."""
_BEFORE = (integer_products, widen_halves, copy_constants, fold_constants, place_convolutions, merge_products)
PASSES: tuple[Callable[..., AtenGraph], ...] = (*_BEFORE, *TUNED)
"""What the compiler itself does to every graph, in order."""


def active_passes(level: Level, passes: Sequence[Any], config: Config) -> tuple[Pass, ...]:
    """The passes of one level for one compile: registered ones that are on, and those that the caller gave.

    Raises:
        PassError: see `PassRegistry.active`.
    """
    chosen = registry.active(level, as_passes(passes), config)
    if config.numerics == "eager":
        chosen = tuple(step for step in chosen if step.name not in rules.ROUNDING)
    return chosen


def placing(passes: Sequence[Any], config: Config) -> list[Any]:
    """The subgraph compilers of a compile that place ops on a machine of their own."""
    steps = [step for step in active_passes("aten", passes, config) if isinstance(step, PartitionPass)]
    return [compiler for step in steps for compiler in step.compilers if compiler.device]


def are_shipped(passes: Sequence[Any], config: Config) -> bool:
    """Whether all passes of a compile are Firebrick's own, which do the same to equal parts of a graph."""
    shipped = set(map(id, rules.SHIPPED))
    levels: tuple[Level, ...] = ("torch", "joint", "aten")
    return all(id(step) in shipped for level in levels for step in active_passes(level, passes, config))


def passes_key(passes: Sequence[Any], config: Config) -> str | None:
    """Content hash of all passes of a compile, for the cache key; None forbids caching its artifact."""
    parts = [fingerprint(active_passes(level, passes, config)) for level in ("torch", "joint", "aten")]
    return None if None in parts else "/".join(part or "" for part in parts)


def run_graph_passes(
    gm: fx.GraphModule,
    level: Level,
    config: Config,
    *,
    passes: Sequence[Any] = (),
    trace: TraceFunction | None = None,
    frozen: frozenset[str] | None = None,
    example_inputs: Sequence[Any] | None = None,
) -> list[PassReport]:
    """Run the active passes of one level on a graph, in place; one report a pass."""
    with recorder.timed(f"passes {level}"):
        active = active_passes(level, passes, config)
        return apply_passes(gm, active, config=config, trace=trace, frozen=frozen, example_inputs=example_inputs)


def run_passes(
    aten: AtenGraph,
    targets: Mapping[str, Target],
    config: Config,
    *,
    passes: Sequence[Any] = (),
    trace: TraceFunction | None = None,
    on_report: Callable[[PassReport], object] = lambda _: None,
    choose: Choose | None = None,
) -> AtenGraph:
    """Run the active passes of level aten, then `PASSES`, leaving out those that `config.disable_passes` names.

    targets: the machine of each type of device. choose: measures what passes of `TUNED` choose from.
    """
    for report in run_graph_passes(aten.gm, "aten", config, passes=passes, trace=trace, frozen=aten.frozen):
        on_report(report)
    for step in PASSES:
        if step.__name__ not in config.disable_passes:
            with recorder.timed(f"pass {step.__name__}"):
                aten = step(aten, targets, config, *([choose] if step in TUNED else []))
    return aten
