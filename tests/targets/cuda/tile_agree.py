"""Runs a function through lowering, fusion, tiles and Triton's interpreter, and compares it with eager."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import fx

sys.path.append(str(Path(__file__).parents[2] / "lower"))

from graphs import compare, trace  # noqa: E402
from groups import CARDS, CudaTarget, schedule_for  # noqa: E402
from interpreted import Runner  # noqa: E402

from firebrick import fuse  # noqa: E402
from firebrick.config import Config  # noqa: E402
from firebrick.ir.loops.bounds import CHECK  # noqa: E402
from firebrick.ir.loops.program import Extern  # noqa: E402
from firebrick.lower import lower  # noqa: E402
from firebrick.passes import run_passes  # noqa: E402
from firebrick.trace import trace_inference  # noqa: E402
from firebrick.trace.decompositions import decompositions  # noqa: E402


def launches(schedule):
    """How many kernels one call runs."""
    return sum(not isinstance(s, Extern) for s in schedule.steps)


def calls(schedule):
    """The library calls of one call, checks of indices not counted."""
    return [s.op for s in schedule.steps if isinstance(s, Extern) and s.op != CHECK]


def run_interpreted(fn, *inputs):
    """The results of a function's kernels, and the schedule."""
    graph, schedule, texts = planned(fn, *inputs)
    return Runner(schedule, texts)(inputs, graph.constants), schedule


def planned(fn, *inputs):
    """The graph of a function, its schedule and the texts of its kernels."""
    graph = trace(fn, inputs, decompositions())
    return (graph, *schedule_for(lower(graph, {"cpu": CudaTarget(CARDS[90])}, Config())))


def agree(fn, *inputs, tolerance=2e-6, exact=True):
    """The schedule of a function whose kernels give what eager gives, and float64 as nearly as `tolerance`."""
    want = _tuple(fn(*[t.clone() for t in inputs]))
    made, schedule = run_interpreted(fn, *[_same_layout(t) for t in inputs])
    for a, b in zip(want, made, strict=True):
        compare(a, b, tolerance, tolerance, stride=False)
    if exact and any(t.dtype == torch.float32 for t in inputs):
        wide = _tuple(fn(*[t.double() if t.is_floating_point() else t for t in inputs]))
        for a, b in zip(wide, made, strict=True):
            if b.is_floating_point():
                torch.testing.assert_close(b.double(), a.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
    return schedule


def for_a_card(net, *inputs):
    """The schedule of a module whose every step is made for a card, and its results."""
    config, targets = Config(), {"cpu": CudaTarget(CARDS[90])}
    with torch.no_grad():
        graph = run_passes(trace_inference(fx.symbolic_trace(net), inputs, config), targets, config)
        made = fuse.schedule(lower(graph, targets, config), targets, config)
        return made, Runner(made, [targets["cpu"].kernel(k) for k in made.kernels])(inputs, graph.constants)


def _tuple(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _same_layout(t):
    once = t[tuple(slice(0, 1) if s == 0 else slice(None) for s in t.stride())]
    return torch.empty_strided(once.shape, t.stride(), dtype=t.dtype).copy_(once).expand(t.shape)
