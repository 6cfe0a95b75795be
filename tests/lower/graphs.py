"""Makes ATen graphs of small functions and compares what their loops compute with eager PyTorch."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from tests.ir.interp import run
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from firebrick.config import Config
from firebrick.ir.graph.aten import AtenGraph
from firebrick.ir.loops.bounds import CHECK
from firebrick.ir.loops.check import check as check_legal
from firebrick.ir.loops.program import Extern, LoopProgram, Nest
from firebrick.lower import lower
from firebrick.targets.by_device import find_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONFIG = Config()
HOST = find_targets((), CONFIG)


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


def single(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> tuple[AtenGraph, list[torch.Tensor]]:
    """A graph of one op, and its tensor arguments in order."""
    graph = fx.Graph()
    mode = FakeTensorMode(allow_non_fake_inputs=False)
    tensors: list[torch.Tensor] = []

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            node = graph.placeholder(f"a{len(tensors)}")
            node.meta["val"] = mode.from_tensor(value)
            tensors.append(value)
            return node
        if isinstance(value, (list, tuple)):
            return type(value)(place(v) for v in value)
        return value

    placed = [place(a) for a in args]
    named = {k: place(v) for k, v in (kwargs or {}).items()}
    node = graph.call_function(op, tuple(placed), named)
    fake_args, fake_kwargs = fx.node.map_arg((tuple(placed), named), lambda n: n.meta["val"])
    with mode:
        val = op(*fake_args, **fake_kwargs)
    node.meta["val"] = list(val) if isinstance(val, (tuple, list)) else val
    outs = [node]
    if isinstance(node.meta["val"], list):
        outs = []
        for k, v in enumerate(node.meta["val"]):
            item = graph.call_function(operator.getitem, (node, k))
            item.meta["val"] = v
            outs.append(item)
    graph.output(tuple(outs))
    return AtenGraph(fx.GraphModule({}, graph), {}, [], [None] * len(outs)), tensors


def check_op(op: Any, *args: Any, rtol: float = 2e-6, atol: float = 1e-6, **kwargs: Any) -> LoopProgram:
    """Lower one op, run it with the interpreter and compare with eager."""
    aten, tensors = single(op, args, kwargs)
    program = lower(aten, HOST, CONFIG)
    check_legal(program)
    expected = op(*args, **kwargs)
    expected = tuple(expected) if isinstance(expected, (tuple, list)) else (expected,)
    actual = run(program, tensors, {})
    fakes = [node.meta["val"] for node in aten.gm.graph.output_node().args[0]]
    for want, got, fake in zip(expected, actual, fakes, strict=True):
        # A few ops of eager lay out broadcast results otherwise than their meta functions say.
        compare(want, got, rtol, atol, stride=False)
        assert got.numel() < 2 or same_strides(got, fake)
    return program


def same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both are laid out alike."""
    return all(n == 1 or x == y for n, x, y in zip(a.shape, a.stride(), b.stride(), strict=True))


def lower_function(fn: Callable[..., Any], *inputs: torch.Tensor, decompositions: Any = None) -> LoopProgram:
    """The loop program of a function."""
    return lower(trace(fn, inputs, decompositions), HOST, CONFIG)


def check(
    fn: Callable[..., Any], *inputs: torch.Tensor, rtol: float = 2e-6, atol: float = 1e-6, decompositions: Any = None
) -> LoopProgram:
    """Lower `fn`, run it with the interpreter and compare with eager: values, dtypes, shapes and strides."""
    aten = trace(fn, inputs, decompositions)
    program = lower(aten, HOST, CONFIG)
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


def compare(want: Any, got: Any, rtol: float = 2e-6, atol: float = 1e-6, stride: bool = True) -> None:
    """Fail unless both are equal up to rounding of their dtype."""
    if not isinstance(want, torch.Tensor):
        assert want == got
        return
    if want.dtype in (torch.bfloat16, torch.float16):
        rtol, atol = max(rtol, 1e-2), max(atol, 1e-2)
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
    assert not stride or want.numel() < 2 or same_strides(got, want)


def nests(program: LoopProgram) -> int:
    """How many loop nests it has."""
    return sum(isinstance(n, Nest) for n in program.nodes)


def externs(program: LoopProgram) -> list[str]:
    """The library calls that it makes, checks of indices not counted."""
    return [n.op for n in program.nodes if isinstance(n, Extern) and n.op != CHECK]


def checks(program: LoopProgram) -> int:
    """How many checks of indices it makes."""
    return sum(isinstance(n, Extern) and n.op == CHECK for n in program.nodes)
