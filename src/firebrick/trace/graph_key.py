"""The content of a torch-level graph as text: what the cache key of its compiled form is made of."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from firebrick.errors import LoweringError
from firebrick.ir.graph.nested import Nested
from firebrick.ir.index.sizes import expressions, size_of
from firebrick.runtime.engine_steps import EngineCall


class _NoText(Exception):
    """Something in the graph has no stable text."""


def graph_text(gm: fx.GraphModule) -> str | None:
    """Return a text that is equal for equal graphs in every process; None if the graph holds what has no such text."""
    numbers: dict[fx.Node, int] = {}
    lines = []
    try:
        for node in gm.graph.nodes:
            numbers[node] = len(numbers)
            if node.op == "call_module":
                return None
            head = node.op if node.op == "placeholder" else f"{node.op} {_target_text(node.target)}"
            kwargs = f" {_text(dict(node.kwargs), numbers)}" if node.kwargs else ""
            lines.append(f"{head} {_text(node.args, numbers)}{kwargs}")
    except _NoText:
        return None
    return "\n".join(lines)


def _target_text(target: Any) -> str:
    if isinstance(target, str | torch._ops.OpOverload):
        return str(target)
    if isinstance(target, Nested):
        texts = [f"{graph_text(body.graph)} -> {body.leaves} {body.spec}" for body in target.bodies]
        if target.key is None or any(text.startswith("None") for text in texts):
            raise _NoText
        return f"{target} {target.key} {{{' '.join(texts)}}}"
    if isinstance(target, EngineCall) and target.stable:
        return f"engine {target.__name__}"
    if isinstance(target, types.MethodType):
        raise _NoText  # what it does depends on what it is bound to
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    short = getattr(target, "__name__", "")
    if name and "<" in name and getattr(sys.modules.get(str(module)), short, None) is target:
        name = short  # made inside another function, as F.max_pool2d is, and known by its module
    if not name or "<" in name or isinstance(target, torch._ops.HigherOrderOperator):
        raise _NoText
    if module is None:
        owner = getattr(target, "__objclass__", None) or getattr(target, "__self__", None)
        module = getattr(owner, "__name__", "")
    elif module.partition(".")[0] not in ("torch", "_operator", "builtins", "math"):
        raise _NoText  # a function of the user's: equal names don't mean equal code
    return f"{module}.{name}"


_PLAIN = (int, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, type(...))


def _text(value: Any, numbers: dict[fx.Node, int]) -> str:
    if isinstance(value, fx.Node):
        return f"%{numbers[value]}"
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, (tuple, list)):
        inner = ",".join([_text(v, numbers) for v in value])
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, dict):
        return "{" + ",".join([f"{k}={_text(v, numbers)}" for k, v in value.items()]) + "}"
    if isinstance(value, slice):
        return f"{_text(value.start, numbers)}:{_text(value.stop, numbers)}:{_text(value.step, numbers)}"
    if isinstance(value, _PLAIN):
        return repr(value)
    raise _NoText


def metas_text(tensors: Iterable[Any]) -> str:
    """Return the metadata of tensors, one a line."""
    lines = []
    for t in tensors:
        if isinstance(t, torch.Tensor):
            flags = {"requires grad": t.requires_grad, "conj": t.is_conj(), "neg": t.is_neg()}
            flags |= {"inference": t.is_inference(), str(t.layout): t.layout != torch.strided}
            marks = "".join([f" {name}" for name, is_on in flags.items() if is_on])
            stride = expressions(t.stride()) if t.layout == torch.strided else ()
            shape, offset = expressions(t.shape), size_of(t.storage_offset())
            # The host program's table names devices, so an artifact of one GPU is no other's.
            lines.append(f"{t.dtype} {shape} strides {stride} offset {offset} {t.device}{marks}")
        else:
            lines.append(f"{type(t).__name__} {t!r}")
    return "\n".join(lines)


def sharing_text(tensors: Sequence[torch.Tensor]) -> str:
    """Return which tensors share memory, as groups of positions."""
    groups: dict[int, list[int]] = {}
    for i, t in enumerate(tensors):
        if isinstance(t, torch.Tensor) and t.layout == torch.strided:
            groups.setdefault(t.untyped_storage()._cdata, []).append(i)
    return repr([g for g in groups.values() if len(g) > 1])


def constants_of(gm: fx.GraphModule) -> dict[str, torch.Tensor]:
    """Return the captured tensors of a torch-level graph by the names that a trace gives them."""
    constants: dict[str, torch.Tensor] = {}
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value = attrgetter(str(node.target))(gm)
            if isinstance(value, torch.Tensor):
                if torch._C._functorch.is_functorch_wrapped_tensor(value):
                    raise LoweringError(f"{node.target} is a tensor of a transform that has ended")
                constants[str(node.target).replace(".", "_")] = value
        elif node.op == "call_module":
            module = gm.get_submodule(str(node.target))
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                constants[f"{node.target}.{name}".replace(".", "_")] = tensor
    return constants


@cache
def _choose() -> None:
    """Make torch's first choice of a GPU's kernel of attention in this process: it orders them for the card then."""
    torch._fused_sdp_choice(q := torch.empty(1, 1, 8, 64, dtype=torch.float16, device="cuda"), q, q)


def state_text(on_gpu: bool) -> str:
    """Return the state of this thread that a trace depends on. The CPU has no order of kernels of attention."""
    modes = [f"{d} {torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else 'off'}" for d in ("cpu", "cuda")]
    kernels = [k for k in ("flash", "mem_efficient", "math", "cudnn") if getattr(torch._C, f"_get_{k}_sdp_enabled")()]
    order = (_choose(), torch._C._get_sdp_priority_order())[1:] if on_gpu else ""
    kinds = f"default dtype {torch.get_default_dtype()}\nattention {kernels} {order}"
    return f"autocast {', '.join(modes)}\n{kinds}\ndeterministic {torch.are_deterministic_algorithms_enabled()}"
