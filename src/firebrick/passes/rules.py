"""The rewrite rules that come with Firebrick. All are registered; those of `ON` run in every compile.

Most others pay only where another engine runs the graph: Firebrick's own scheduler fuses pointwise ops by itself.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from firebrick.extend import Rule, graph_pass, registry, rule
from firebrick.ir.graph.calls import call_of, value_of
from firebrick.ir.index.sizes import size_of
from firebrick.passes.training_images import images_last

aten = torch.ops.aten


def _typed(function: Any) -> Any:
    """A pattern whose parameter c is a number and whose others are tensors."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    function.__annotations__ = {name: float if name == "c" else Tensor for name in names}
    return function


def _rule(name: str, before: Any, after: Any, *constants: str, where: Any = None) -> Rule:
    return rule(_typed(before), _typed(after), name=name, constants=constants, where=where)


def _plain_float(x: Tensor, y: Tensor) -> bool | str:
    return (x.dtype == y.dtype == torch.float32 and x.shape == y.shape) or "needs float32 tensors of one shape"


ADD_RELU = (
    _rule("add_relu", lambda x, y: torch.relu(x + y), lambda x, y: aten._add_relu.Tensor(x, y), where=_plain_float),
)
"""relu(x + y) -> _add_relu(x, y)"""


def _floats(x: Tensor, y: Tensor, z: Tensor) -> bool | str:
    return all(t.dtype.is_floating_point for t in (x, y, z)) or "needs floating tensors"


ADDCDIV = (
    _rule("addcdiv", lambda x, y, z: x + y / z, lambda x, y, z: torch.addcdiv(x, y, z), where=_floats),
    _rule(
        "addcdiv_value",
        lambda x, y, z, c: x + c * (y / z),
        lambda x, y, z, c: torch.addcdiv(x, y, z, value=c),
        where=_floats,
    ),
)
"""x + y / z -> addcdiv(x, y, z), also with a constant factor"""

# ------------------------------------------------------------------ constants folded into the matmul before them


def _not_zero(c: float) -> bool | str:
    return c != 0 or "divides by zero"


def _smaller_query(x: Tensor, y: Tensor, c: float) -> bool | str:
    return (c != 0 and x.shape[-1] < y.shape[-2]) or "the query is not smaller than the scores"


def _into_linear(word: str, by: Callable[[Any, Any], Any], where: Any = None) -> Rule:
    before, after = lambda x, w, b, c: by(F.linear(x, w, b), c), lambda x, w, b, c: F.linear(x, by(w, c), by(b, c))
    return _rule(f"fold_{word}_into_linear", before, after, "w", "b", where=where)


def _into_query(word: str, by: Callable[[Any, Any], Any]) -> Rule:
    before, after = lambda x, y, c: by(x @ y.transpose(-1, -2), c), lambda x, y, c: by(x, c) @ y.transpose(-1, -2)
    return _rule(f"fold_{word}_into_query", before, after, where=_smaller_query)


FOLD_INTO_MATMUL = (
    _into_linear("div", operator.truediv, _not_zero),
    _into_linear("mul", operator.mul),
    _rule(
        "fold_add_into_linear",
        lambda x, w, b, c: F.linear(x, w, b) + c,
        lambda x, w, b, c: F.linear(x, w, b + c),
        *("w", "b"),
    ),
    _rule(
        "fold_div_into_linear_without_bias",
        lambda x, w, c: F.linear(x, w) / c,
        lambda x, w, c: F.linear(x, w / c),
        "w",
        where=_not_zero,
    ),
    _rule("fold_div_into_matmul", lambda x, w, c: (x @ w) / c, lambda x, w, c: x @ (w / c), "w", where=_not_zero),
    _into_query("mul", operator.mul),
    _into_query("div", operator.truediv),
)
"""linear(x, w, b) / c -> linear(x, w / c, b / c) and its kin; weights must be constants, so that it costs nothing"""

# ------------------------------------------------------------------ three matmuls of one input


def _three_linears(x: Tensor, a: Tensor, b: Tensor, d: Tensor, p: Tensor, q: Tensor, r: Tensor) -> Any:
    joined = F.linear(x, torch.cat([a, b, d]), torch.cat([p, q, r])).split([a.shape[0], b.shape[0], d.shape[0]], -1)
    return joined[0], joined[1], joined[2]


def _three_matmuls(x: Tensor, a: Tensor, b: Tensor, d: Tensor) -> Any:
    joined = (x @ torch.cat([a, b, d], 1)).split([a.shape[1], b.shape[1], d.shape[1]], -1)
    return joined[0], joined[1], joined[2]


def _matrices(a: Tensor, b: Tensor, d: Tensor) -> bool | str:
    return a.dim() == b.dim() == d.dim() == 2 or "weights are no matrices"


MERGE_LINEARS = (
    _rule(
        "merge_linears",
        lambda x, a, b, d, p, q, r: (F.linear(x, a, p), F.linear(x, b, q), F.linear(x, d, r)),
        _three_linears,
        *("a", "b", "d", "p", "q", "r"),
        where=_matrices,
    ),
    _rule("merge_matmuls", lambda x, a, b, d: (x @ a, x @ b, x @ d), _three_matmuls, *("a", "b", "d"), where=_matrices),
)
"""linear(x, a), linear(x, b), linear(x, d) -> one linear of the joined weights, split"""

# ------------------------------------------------------------------ attention


def _heads(q: Tensor, k: Tensor, v: Tensor, c: float) -> bool | str:
    if c == 0:
        return "scaled by zero"
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        return "not [batch, heads, length, size]"
    if not q.dtype == k.dtype == v.dtype or not q.dtype.is_floating_point:
        return "dtypes differ"
    return q.shape[:2] == k.shape[:2] == v.shape[:2] or "batches or heads differ"


def _masked_heads(q: Tensor, k: Tensor, v: Tensor, m: Tensor, c: float) -> bool | str:
    verdict = _heads(q, k, v, c)
    return verdict if verdict is not True else m.dtype == q.dtype or "the mask's dtype is another"


def _scaled(spelling: str, by: Callable[[Any, float], Any], scale: Callable[[float], float]) -> tuple[Rule, ...]:
    return (
        _rule(
            f"attention_{spelling}",
            lambda q, k, v, c: torch.softmax(by(q @ k.transpose(-1, -2), c), -1) @ v,
            lambda q, k, v, c: F.scaled_dot_product_attention(q, k, v, scale=scale(c)),
            where=_heads,
        ),
        _rule(
            f"attention_{spelling}_masked",
            lambda q, k, v, m, c: torch.softmax(by(q @ k.transpose(-1, -2), c) + m, -1) @ v,
            lambda q, k, v, m, c: F.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=scale(c)),
            where=_masked_heads,
        ),
    )


ATTENTION = (
    *_scaled("div", operator.truediv, lambda c: 1 / c),
    *_scaled("mul", operator.mul, lambda c: c),
    _rule(
        "attention_unscaled",
        lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -1) @ v,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1.0),
        where=lambda q, k, v: _heads(q, k, v, 1.0),
    ),
)
"""softmax(q @ k.T / c + mask) @ v -> scaled_dot_product_attention"""

_GELU_OF_TANH: Any = lambda x: F.gelu(x, approximate="tanh")  # noqa: E731

GELU = (
    _rule("gelu_erf", lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), lambda x: F.gelu(x)),
    _rule("gelu_erf_mul", lambda x: 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5))), lambda x: F.gelu(x)),
    _rule(
        "gelu_tanh",
        lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
        _GELU_OF_TANH,
    ),
    _rule(
        "gelu_tanh_product",
        lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608028654 * (1.0 + 0.044715 * x * x))),
        _GELU_OF_TANH,
    ),
)
"""The written-out forms of GELU -> gelu"""

# ------------------------------------------------------------------ no-ops

_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1, "pow": 1}


def _source(name: str, arguments: dict[str, Any]) -> Any:
    """What a call returns unchanged (by value), or None."""
    source = arguments.get("self")
    if name in _NEUTRAL:
        other = arguments.get("other", arguments.get("exponent"))
        if isinstance(other, (int, float)) and not isinstance(other, bool) and other == _NEUTRAL[name]:
            return source if set(arguments) <= {"self", "other", "exponent"} else None
        if name in ("add", "mul") and isinstance(source, (int, float)) and source == _NEUTRAL[name]:
            return other
    if name in ("view", "expand", "permute", "_to_copy", "to", "alias", "contiguous", "squeeze", "float", "slice"):
        return source if name != "permute" or list(arguments["dims"]) == sorted(arguments["dims"]) else None
    if name == "dropout":
        return source if arguments.get("train") is False or arguments.get("p") == 0 else None
    if name == "constant_pad_nd":
        return None if any(arguments["pad"]) else source
    parts = arguments.get("tensors", ()) if name == "cat" else ()
    return parts[0] if isinstance(parts, (tuple, list)) and len(parts) == 1 else None


def _drop_noops(gm: fx.GraphModule) -> bool:
    changed = False
    for node in list(gm.graph.nodes):
        call = call_of(node)
        source = _source(call.name, call.arguments) if call is not None else None
        if not isinstance(source, fx.Node) or any(u.op == "output" for u in node.users):
            continue
        old, new = value_of(node), value_of(source)
        if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
            continue
        moved = size_of(old.storage_offset()) != size_of(new.storage_offset())
        readers = [u.target for u in node.users]
        if any(getattr(r, "is_view", False) if moved else r is aten.as_strided.default for r in readers):
            continue  # its offset is that of the memory that it was made for
        like = old.dtype == new.dtype and old.device == new.device and old.shape == new.shape
        if like and old.stride() == new.stride():
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)
            changed = True
    return changed


remove_noops = graph_pass(_drop_noops, name="remove_noops", level="aten", atomic=True, fixed=True)
"""x + 0, x * 1, a view of the same shape, a cast to the same dtype, a slice of all, no padding, cat of one -> x.

Graphs at this level are functional, so a value may stand for its copy; outputs keep theirs.
"""


def _drop_dropout(gm: fx.GraphModule) -> bool:
    count = len(gm.graph.nodes)
    for node, call in [(node, call_of(node)) for node in gm.graph.nodes]:
        plain = call is not None and call.name == "dropout" and not call.arguments.get("inplace")
        source = _source("dropout", call.arguments) if plain else None  # type: ignore[union-attr]
        if isinstance(source, fx.Node):
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)
    return len(gm.graph.nodes) < count


remove_torch_noops = graph_pass(_drop_dropout, name="remove_inactive_dropout", level="torch", atomic=True, fixed=True)
"""dropout(x, p, training=False) -> x, which in eager returns x itself too; lets other rules see through."""

for _step in (*ATTENTION, *MERGE_LINEARS):
    _step.after = ("remove_inactive_dropout",)

SHIPPED = (
    *(remove_torch_noops, *GELU, *ATTENTION, *FOLD_INTO_MATMUL, *MERGE_LINEARS, *ADDCDIV, *ADD_RELU),
    *(images_last, remove_noops),
)
"""All of them, in order."""
ON = frozenset({"remove_noops", "remove_inactive_dropout", "attention_div", "attention_mul", "images_last"})
"""Names of those that run in every compile. With a mask, rows that are masked as a whole would come out otherwise."""
ROUNDING = frozenset({"attention_div", "attention_mul", "images_last"})
"""Those of `ON` that change the rounding: left out under numerics="eager"."""

for _step in SHIPPED:
    registry.register(_step, enabled=_step.name in ON)
