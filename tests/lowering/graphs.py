"""Makes ATen graphs of small functions and compares what their loops compute with eager PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from firebrick.config import Config
from firebrick.extend.graph import AtenGraph
from firebrick.loops.check import check as check_legal
from firebrick.loops.interp import run
from firebrick.loops.ir import Extern, LoopProgram, Nest
from firebrick.lowering import lower

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONFIG = Config()


def trace(fn: Callable[..., Any], inputs: Sequence[torch.Tensor], decompositions: Any = None) -> AtenGraph:
    """The graph of a function of tensors that mutates nothing."""

    def flat(*args: torch.Tensor) -> tuple[Any, ...]:
        result = fn(*args)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    with torch.no_grad():
        gm = make_fx(flat, decomposition_table=decompositions, tracing_mode="fake", _allow_non_fake_inputs=True)(
            *inputs
        )
    constants = {}
    mode = next(n.meta["val"].fake_mode for n in gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor))
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            constants[node.target] = getattr(gm, node.target)
            node.meta["val"] = mode.from_tensor(constants[node.target])
        elif node.op == "output":
            node.args = (tuple(node.args[0]),)
    return AtenGraph(gm, constants, [], [None] * len(gm.graph.output_node().args[0]))


def lower_function(fn: Callable[..., Any], *inputs: torch.Tensor, decompositions: Any = None) -> LoopProgram:
    """The loop program of a function."""
    return lower(trace(fn, inputs, decompositions), CONFIG)


def check(
    fn: Callable[..., Any], *inputs: torch.Tensor, rtol: float = 2e-6, atol: float = 1e-6, decompositions: Any = None
) -> LoopProgram:
    """Lower `fn`, run it with the interpreter and compare with eager: values, dtypes, shapes and strides."""
    aten = trace(fn, inputs, decompositions)
    program = lower(aten, CONFIG)
    check_legal(program)
    expected = fn(*[t.clone() for t in inputs])
    expected = tuple(expected) if isinstance(expected, (tuple, list)) else (expected,)
    actual = run(program, [_copy(t) for t in inputs], aten.constants)
    for want, got in zip(expected, actual, strict=True):
        compare(want, got, rtol, atol)
    return program


def _copy(t: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
    return made.copy_(t)


def compare(want: Any, got: Any, rtol: float = 2e-6, atol: float = 1e-6) -> None:
    """Fail unless both are equal up to rounding of their dtype."""
    if not isinstance(want, torch.Tensor):
        assert want == got
        return
    if want.dtype in (torch.bfloat16, torch.float16):
        rtol, atol = max(rtol, 1e-2), max(atol, 1e-2)
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True, check_stride=want.numel() > 1)


def nests(program: LoopProgram) -> int:
    """How many loop nests it has."""
    return sum(isinstance(n, Nest) for n in program.nodes)


def externs(program: LoopProgram) -> list[str]:
    """The library calls that it makes."""
    return [n.op for n in program.nodes if isinstance(n, Extern)]
