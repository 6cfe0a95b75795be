"""FX calls in one normal form, so that `x + y`, `torch.add(x, y)` and `x.add(y)` are the same thing.

A call is a name and its arguments by parameter name, without those that have their default value.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import fx

_OPERATORS = {
    operator.truediv: "div", operator.floordiv: "floor_divide", operator.mod: "remainder",
    operator.and_: "bitwise_and", operator.or_: "bitwise_or", operator.xor: "bitwise_xor",
    operator.inv: "bitwise_not",
}  # fmt: skip
_RENAMED = {
    "absolute": "abs", "concat": "cat", "concatenate": "cat", "divide": "div", "true_divide": "div",
    "multiply": "mul", "negative": "neg", "subtract": "sub", "_unsafe_view": "view", "reshape": "view",
}  # fmt: skip
_SAME_PARAMETER = {"input": "self", "tensor": "self", "training": "train"}
_MOVED = 16  # products
_IGNORED_PARAMETERS = frozenset({"_stacklevel"})


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


COMMUTATIVE = _words(
    """
    add mul maximum minimum eq ne logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor
    """
)
"""Ops whose parameters `self` and `other` may change places."""

VIEWS = _words(
    """
    view expand permute transpose t squeeze unsqueeze flatten unflatten contiguous alias detach swapaxes
    movedim mT adjoint view_as reshape_as expand_as _to_contiguous clone lift_fresh_copy
    """
)
"""Ops that hold the elements of their one tensor in another shape or layout, each element at least once."""

CASTS = _words(
    """
    _to_copy to float half bfloat16 double type convert_element_type
    """
)
RESHAPES = _words(
    """
    view squeeze unsqueeze flatten unflatten contiguous alias detach clone expand lift_fresh_copy
    """
)
"""Views that keep the elements' order (expand: only when the shape comes back)."""

_POINTWISE = _words(
    """
    add sub mul div neg abs exp log sqrt rsqrt erf tanh sigmoid relu relu6 gelu silu pow square maximum
    minimum clamp clamp_min clamp_max reciprocal sin cos hardtanh hardswish hardsigmoid leaky_relu elu
    softplus mish where addcdiv addcmul logical_not bitwise_not eq ne lt le gt ge
    """
)
_IN_PLACE = "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor imatmul setitem"
_MUTATING_OPERATORS = frozenset(getattr(operator, name) for name in _IN_PLACE.split())


@dataclass(frozen=True, slots=True)
class Call:
    """A normalised call; `arguments` leaves out defaults."""

    name: str
    arguments: dict[str, Any]


def value_of(node: Any) -> Any:
    """The fake value that a node carries, or None."""
    return node.meta.get("val") if isinstance(node, fx.Node) else None


def call_of(node: fx.Node) -> Call | None:
    """The node's call in normal form; None for placeholders, constants and submodules."""
    call = _read(node)
    return _as_transpose(call) if call is not None and call.name in _TRANSPOSES else call


_TRANSPOSES = frozenset({"transpose", "t", "permute", "swapaxes", "swapdims", "numpy_T", "mT", "getattr"})


def _as_transpose(call: Call) -> Call:
    """All ways to exchange two dimensions as `transpose` of the two, counted from the end, in ascending order."""
    arguments = dict(call.arguments)
    source = arguments.pop("self", arguments.pop("arg0", None))
    value = value_of(source)
    rank = value.dim() if isinstance(value, torch.Tensor) else None
    pair: tuple[Any, ...] = ()
    if call.name in ("t", "mT", "numpy_T") and not arguments and (call.name != "numpy_T" or rank == 2):
        pair = (-2, -1)
    elif call.name == "getattr" and set(arguments) == {"arg1"}:
        wanted = arguments["arg1"]
        pair = (-2, -1) if wanted == "mT" or (wanted == "T" and rank == 2) else ()
    elif call.name == "permute":
        dims = list(arguments.get("dims", ()))
        moved = [i for i, d in enumerate(dims) if isinstance(d, int) and d % len(dims) != i]
        pair = (moved[0] - len(dims), moved[1] - len(dims)) if len(moved) == 2 else ()
    elif len(arguments) == 2:
        pair = tuple(arguments.values())
    if len(pair) != 2 or not all(type(d) is int for d in pair) or (rank is not None and rank < 2):
        return call
    if rank is not None:
        pair = tuple(d - rank if d >= 0 else d for d in pair)
    return Call("transpose", {"self": source, "dim0": min(pair), "dim1": max(pair)})


def _read(node: fx.Node) -> Call | None:
    if node.op == "call_function":
        target = node.target
        if isinstance(target, torch._ops.OpOverload):
            name = _aten_name(target)
            parameters = _overload_parameters(target)
            return _bind(name, parameters, node.args, node.kwargs)
        name = _function_name(target)
    elif node.op == "call_method":
        target, name = None, _RENAMED.get(str(node.target), str(node.target))
        if str(node.target) in ("reshape", "view"):
            name = "view"
    else:
        return None
    for parameters in _signatures(name, target):
        call = _bind(name, parameters, node.args, node.kwargs)
        if call is not None:
            return call
    if node.kwargs and not node.args:
        return Call(name, dict(node.kwargs))
    return Call(name, {**{f"arg{i}": arg for i, arg in enumerate(node.args)}, **node.kwargs})


@lru_cache(maxsize=4096)
def _aten_name(target: torch._ops.OpOverload) -> str:
    namespace, _, name = target.name().partition("::")
    name = name.split(".")[0]
    name = _RENAMED.get(name, name)
    return name if namespace == "aten" else f"{namespace}::{name}"


def _function_name(target: Any) -> str:
    if target in _OPERATORS:
        return _OPERATORS[target]
    name = getattr(target, "__name__", type(target).__name__)
    return _RENAMED.get(name, name)


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    required: bool
    default: Any
    is_list: bool
    keyword_only: bool


@lru_cache(maxsize=4096)
def _overload_parameters(target: torch._ops.OpOverload) -> tuple[_Parameter, ...]:
    return _schema_parameters(target._schema)


def _schema_parameters(schema: Any) -> tuple[_Parameter, ...]:
    return tuple(
        _Parameter(
            _SAME_PARAMETER.get(a.name, a.name),
            not a.has_default_value(),
            a.default_value if a.has_default_value() else None,
            str(a.type).startswith("List[") or "int[]" in str(a.type),
            a.kwarg_only,
        )
        for a in schema.arguments
    )


def _signatures(name: str, target: Any) -> tuple[tuple[_Parameter, ...], ...]:
    """Candidate parameter lists of a torch function or tensor method: Python's signature, ATen's schemas."""
    if not inspect.isfunction(target):
        return _schemas(name)
    lasts = (target.__module__ or "").startswith("torch.")  # a cache would keep a user's function, and all it holds
    return ((_signature if lasts else _signature.__wrapped__)(target), *_schemas(name))


@lru_cache(maxsize=4096)
def _signature(function: Any) -> tuple[_Parameter, ...]:
    try:
        return _python_parameters(inspect.signature(function))
    except (TypeError, ValueError):
        return ()


@lru_cache(maxsize=4096)
def _schemas(name: str) -> tuple[tuple[_Parameter, ...], ...]:
    schemas = []
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        arguments = schema.arguments
        if any(a.is_out for a in arguments) or not arguments or "Tensor" not in str(arguments[0].type):
            continue
        if any("Dimname" in str(a.type) for a in arguments):
            continue
        schemas.append(_schema_parameters(schema))
    return tuple(schemas)


def _python_parameters(signature: inspect.Signature) -> tuple[_Parameter, ...]:
    parameters = []
    for p in signature.parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            return ()
        required = p.default is p.empty
        parameters.append(
            _Parameter(
                _SAME_PARAMETER.get(p.name, p.name),
                required,
                None if required else p.default,
                False,
                p.kind is p.KEYWORD_ONLY,
            )
        )
    return tuple(parameters)


def _bind(name: str, parameters: tuple[_Parameter, ...], args: Any, kwargs: Any) -> Call | None:
    args = tuple(args)
    positional = [p for p in parameters if not p.keyword_only]
    if len(args) > len(positional) or (len(args) > 2 and _takes_numbers(positional, args)):
        # x.view(2, -1): the numbers from the first list parameter on are that list.
        index = next((i for i, p in enumerate(positional) if p.is_list), None)
        if index is None or any(isinstance(a, (tuple, list)) for a in args[index:]):
            return None
        args = (*args[:index], tuple(args[index:]))
    elif len(args) == 2 and _takes_numbers(positional, args):
        args = (args[0], (args[1],))
    bound: dict[str, Any] = {p.name: a for p, a in zip(positional, args, strict=False)}
    names = {p.name for p in parameters}
    for key, value in kwargs.items():
        key = _SAME_PARAMETER.get(key, key)
        if key not in names or key in bound:
            return None
        bound[key] = value
    for p in parameters:
        if p.name not in bound:
            if p.required:
                return None
        elif p.name in _IGNORED_PARAMETERS or (not p.required and _equal(bound[p.name], p.default)):
            del bound[p.name]
    return Call(name, bound)


def _takes_numbers(positional: list[_Parameter], args: tuple[Any, ...]) -> bool:
    """Whether the second parameter is a list and the second argument is not."""
    return len(positional) > 1 and positional[1].is_list and not isinstance(args[1], (tuple, list))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, fx.Node) or isinstance(b, fx.Node):
        return a is b
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and bool(a == b)


def is_mutating(node: fx.Node) -> bool:
    """Whether the node writes to one of its arguments: in-place ops and methods, `out=`, `inplace=True`."""
    if node.op == "call_method":
        name = str(node.target)
        return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        return bool(written_by(node.target, node.args, node.kwargs))
    if node.target in _MUTATING_OPERATORS or node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        return True
    name = getattr(node.target, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        return True
    call = call_of(node) if True in node.args else None
    return call is not None and call.arguments.get("inplace") is True


def written_by(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that an operator's schema says are written; of a packet, that any of its overloads may write."""
    if isinstance(target, torch._ops.OpOverload):
        positions, names = _writes(target)
    elif isinstance(target, torch._ops.OpOverloadPacket):
        rows = [_writes(getattr(target, name)) for name in target.overloads()]
        positions, names = frozenset().union(*(p for p, _ in rows)), frozenset().union(*(n for _, n in rows))
    else:
        return []
    written = [a for k, a in enumerate(args) if k in positions] + [a for name, a in kwargs.items() if name in names]
    return [t for a in written for t in (a if isinstance(a, (list, tuple)) else (a,)) if t is not None]


@lru_cache(maxsize=4096)
def _writes(op: torch._ops.OpOverload) -> tuple[frozenset[int], frozenset[str]]:
    """Places and names of the arguments that are written; by operator, for the hash of some schemas raises."""
    rows = [(k, a) for k, a in enumerate(op._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return frozenset(k for k, a in rows if not a.kwarg_only), frozenset(a.name for _, a in rows)


def is_pointwise(name: str) -> bool:
    """Whether the op computes each element from the elements at the same place."""
    return name in _POINTWISE


def shows_memory(node: Any) -> bool:
    """Whether a node only looks at the memory of its first argument."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def show_node(node: fx.Node) -> str:
    """One line: `name = op(arguments)`."""
    if node.op not in ("call_function", "call_method"):
        return f"{node.name} = {node.op} {node.target}"
    name = _aten_name(node.target) if isinstance(node.target, torch._ops.OpOverload) else None
    name = name or (_function_name(node.target) if node.op == "call_function" else f".{node.target}")
    arguments = [_show(a) for a in node.args] + [f"{k}={_show(v)}" for k, v in node.kwargs.items()]
    return f"{node.name} = {name}({', '.join(arguments)})"


def _show(value: Any) -> str:
    return f"[{', '.join(map(_show, value))}]" if isinstance(value, (tuple, list)) else str(value)


def copy_node(graph: fx.Graph, node: fx.Node, arg: Callable[[fx.Node], fx.Node]) -> fx.Node:
    """`graph.node_copy`, which warns of sizes that are symbols."""
    args, kwargs = fx.map_arg(node.args, arg), fx.map_arg(node.kwargs, arg)
    copied = graph.create_node(node.op, node.target, (), {}, node.name, node.type)
    copied.args, copied.kwargs = args, kwargs
    copied.meta = {**node.meta}
    return copied


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a value, in order: in tuples, lists and dicts too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def key_of(op: str, args: Sequence[Any]) -> tuple[str, ...]:
    """What is equal for calls of the same shapes; texts, so that nothing is decided about sizes that are symbols."""
    return (op, *[str([*arg.shape] if isinstance(arg, torch.Tensor) else arg) for arg in args])


def work_of(op: str, x: torch.Tensor, weight: torch.Tensor, *more: Any) -> int:
    """About how long a matmul, a convolution or attention takes, in products; a number is moved in the time of some."""
    if op == "aten::convolution":
        depth, out = weight[0].numel(), more[-1].numel()
    else:
        depth, attends = x.shape[-1], op == "firebrick::attention"
        out = (1 + attends) * (x.numel() // depth) * weight.shape[-1 - attends]
    return int(depth * out + _MOVED * (x.numel() + weight.numel() + out))
