"""The rewrite rules that come with Firebrick. All are registered; those of `ON` run in every compile.

Most others pay only where another engine runs the graph: Firebrick's own scheduler fuses pointwise ops by itself.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from firebrick.extend import Rule, graph_pass, registry, rule
from firebrick.ir.graph.calls import call_of, value_of

if TYPE_CHECKING:
    from collections.abc import Callable

# ------------------------------------------------------------------ add + relu


def _add_relu_before(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x + y)


def _add_relu_after(x: Tensor, y: Tensor) -> Any:
    return torch.ops.aten._add_relu.Tensor(x, y)


def _plain_float(x: Tensor, y: Tensor) -> bool | str:
    return (x.dtype == y.dtype == torch.float32 and x.shape == y.shape) or "needs float32 tensors of one shape"


ADD_RELU = (rule(_add_relu_before, _add_relu_after, name="add_relu", where=_plain_float),)
"""relu(x + y) -> _add_relu(x, y)"""

# ------------------------------------------------------------------ x + v * y / z


def _addcdiv_before(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x + y / z


def _addcdiv_after(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.addcdiv(x, y, z)


def _addcdiv_value_before(x: Tensor, y: Tensor, z: Tensor, v: float) -> Tensor:
    return x + v * (y / z)


def _addcdiv_value_after(x: Tensor, y: Tensor, z: Tensor, v: float) -> Tensor:
    return torch.addcdiv(x, y, z, value=v)


def _floats(x: Tensor, y: Tensor, z: Tensor) -> bool | str:
    return all(t.dtype.is_floating_point for t in (x, y, z)) or "needs floating tensors"


ADDCDIV = (
    rule(_addcdiv_before, _addcdiv_after, name="addcdiv", where=_floats),
    rule(_addcdiv_value_before, _addcdiv_value_after, name="addcdiv_value", where=_floats),
)
"""x + y / z -> addcdiv(x, y, z), also with a constant factor"""

# ------------------------------------------------------------------ constants folded into the matmul before them


def _linear_div(x: Tensor, w: Tensor, b: Tensor, c: float) -> Tensor:
    return F.linear(x, w, b) / c


def _linear_div_after(x: Tensor, w: Tensor, b: Tensor, c: float) -> Tensor:
    return F.linear(x, w / c, b / c)


def _linear_mul(x: Tensor, w: Tensor, b: Tensor, c: float) -> Tensor:
    return F.linear(x, w, b) * c


def _linear_mul_after(x: Tensor, w: Tensor, b: Tensor, c: float) -> Tensor:
    return F.linear(x, w * c, b * c)


def _linear_add(x: Tensor, w: Tensor, b: Tensor, c: float) -> Tensor:
    return F.linear(x, w, b) + c


def _linear_add_after(x: Tensor, w: Tensor, b: Tensor, c: float) -> Tensor:
    return F.linear(x, w, b + c)


def _linear_no_bias_div(x: Tensor, w: Tensor, c: float) -> Tensor:
    return F.linear(x, w) / c


def _linear_no_bias_div_after(x: Tensor, w: Tensor, c: float) -> Tensor:
    return F.linear(x, w / c)


def _matmul_div(x: Tensor, w: Tensor, c: float) -> Tensor:
    return (x @ w) / c


def _matmul_div_after(x: Tensor, w: Tensor, c: float) -> Tensor:
    return x @ (w / c)


def _scores_div(x: Tensor, y: Tensor, c: float) -> Tensor:
    return (x @ y.transpose(-1, -2)) / c


def _scores_div_after(x: Tensor, y: Tensor, c: float) -> Tensor:
    return (x / c) @ y.transpose(-1, -2)


def _scores_mul(x: Tensor, y: Tensor, c: float) -> Tensor:
    return (x @ y.transpose(-1, -2)) * c


def _scores_mul_after(x: Tensor, y: Tensor, c: float) -> Tensor:
    return (x * c) @ y.transpose(-1, -2)


def _not_zero(c: float) -> bool | str:
    return c != 0 or "divides by zero"


def _smaller_query(x: Tensor, y: Tensor, c: float) -> bool | str:
    return (c != 0 and x.shape[-1] < y.shape[-2]) or "the query is not smaller than the scores"


FOLD_INTO_MATMUL = (
    rule(_linear_div, _linear_div_after, name="fold_div_into_linear", constants=("w", "b"), where=_not_zero),
    rule(_linear_mul, _linear_mul_after, name="fold_mul_into_linear", constants=("w", "b")),
    rule(_linear_add, _linear_add_after, name="fold_add_into_linear", constants=("w", "b")),
    rule(
        _linear_no_bias_div,
        _linear_no_bias_div_after,
        name="fold_div_into_linear_without_bias",
        constants=("w",),
        where=_not_zero,
    ),
    rule(_matmul_div, _matmul_div_after, name="fold_div_into_matmul", constants=("w",), where=_not_zero),
    rule(_scores_mul, _scores_mul_after, name="fold_mul_into_query", where=_smaller_query),
    rule(
        _scores_div,
        _scores_div_after,
        name="fold_div_into_query",
        where=_smaller_query,
    ),
)
"""linear(x, w, b) / c -> linear(x, w / c, b / c) and its kin; weights must be constants, so that it costs nothing"""

# ------------------------------------------------------------------ three matmuls of one input


def _three_linears(x: Tensor, a: Tensor, b: Tensor, c: Tensor, p: Tensor, q: Tensor, r: Tensor) -> Any:
    return F.linear(x, a, p), F.linear(x, b, q), F.linear(x, c, r)


def _three_linears_after(x: Tensor, a: Tensor, b: Tensor, c: Tensor, p: Tensor, q: Tensor, r: Tensor) -> Any:
    joined = F.linear(x, torch.cat([a, b, c]), torch.cat([p, q, r])).split([a.shape[0], b.shape[0], c.shape[0]], -1)
    return joined[0], joined[1], joined[2]


def _three_matmuls(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Any:
    return x @ a, x @ b, x @ c


def _three_matmuls_after(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Any:
    joined = (x @ torch.cat([a, b, c], 1)).split([a.shape[1], b.shape[1], c.shape[1]], -1)
    return joined[0], joined[1], joined[2]


def _matrices(a: Tensor, b: Tensor, c: Tensor) -> bool | str:
    return a.dim() == b.dim() == c.dim() == 2 or "weights are no matrices"


MERGE_LINEARS = (
    rule(
        _three_linears,
        _three_linears_after,
        name="merge_linears",
        constants=("a", "b", "c", "p", "q", "r"),
        where=_matrices,
    ),
    rule(_three_matmuls, _three_matmuls_after, name="merge_matmuls", constants=("a", "b", "c"), where=_matrices),
)
"""linear(x, a), linear(x, b), linear(x, c) -> one linear of the joined weights, split"""

# ------------------------------------------------------------------ attention


def _scaled(by: Callable[[Tensor, float], Tensor]) -> list[tuple[str, Callable[..., Tensor], Callable[..., Tensor]]]:
    def plain(q: Tensor, k: Tensor, v: Tensor, c: float) -> Tensor:
        return torch.softmax(by(q @ k.transpose(-1, -2), c), -1) @ v

    def masked(q: Tensor, k: Tensor, v: Tensor, m: Tensor, c: float) -> Tensor:
        return torch.softmax(by(q @ k.transpose(-1, -2), c) + m, -1) @ v

    scale = (lambda c: 1 / c) if by is operator.truediv else (lambda c: c)

    def plain_after(q: Tensor, k: Tensor, v: Tensor, c: float) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, scale=scale(c))

    def masked_after(q: Tensor, k: Tensor, v: Tensor, m: Tensor, c: float) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=scale(c))

    return [("", plain, plain_after), ("_masked", masked, masked_after)]


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
    if verdict is not True:
        return verdict
    return m.dtype == q.dtype or "the mask's dtype is another"


def _unscaled_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def _unscaled_attention_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=1.0)


def _attention_rules() -> tuple[Rule, ...]:
    found = []
    for spelling, by in (("div", operator.truediv), ("mul", operator.mul)):
        for suffix, pattern, replacement in _scaled(by):
            where: Any = _masked_heads if suffix else _heads
            found.append(rule(pattern, replacement, name=f"attention_{spelling}{suffix}", where=where))
    found.append(
        rule(
            _unscaled_attention,
            _unscaled_attention_after,
            name="attention_unscaled",
            where=lambda q, k, v: _heads(q, k, v, 1.0),
        )
    )
    return tuple(found)


ATTENTION = _attention_rules()
"""softmax(q @ k.T / c + mask) @ v -> scaled_dot_product_attention"""

# ------------------------------------------------------------------ GELU


def _gelu_erf(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def _gelu_erf_mul(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5)))


def _gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _gelu_tanh_product(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608028654 * (1.0 + 0.044715 * x * x)))


def _exact_gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def _approximate_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


GELU = (
    rule(_gelu_erf, _exact_gelu, name="gelu_erf"),
    rule(_gelu_erf_mul, _exact_gelu, name="gelu_erf_mul"),
    rule(_gelu_tanh, _approximate_gelu, name="gelu_tanh"),
    rule(_gelu_tanh_product, _approximate_gelu, name="gelu_tanh_product"),
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
    if name in ("view", "expand", "permute", "_to_copy", "to", "alias", "contiguous", "squeeze", "float"):
        return source if name != "permute" or list(arguments["dims"]) == sorted(arguments["dims"]) else None
    if name == "slice":
        return source
    if name == "dropout":
        return source if arguments.get("train") is False or arguments.get("p") == 0 else None
    if name == "cat":
        parts = arguments.get("tensors", ())
        return parts[0] if isinstance(parts, (tuple, list)) and len(parts) == 1 else None
    return None


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
        if any(u.target is torch.ops.aten.as_strided.default for u in node.users):
            continue  # its offset is that of the memory that it was made for
        like = old.dtype == new.dtype and old.device == new.device and old.shape == new.shape
        if like and old.stride() == new.stride():
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)
            changed = True
    return changed


remove_noops = graph_pass(_drop_noops, name="remove_noops", level="aten", atomic=True, fixed=True)
"""x + 0, x * 1, a view of the same shape, a cast to the same dtype, a slice of all, cat of one -> x.

Graphs at this level are functional, so a value may stand for its copy; outputs keep theirs.
"""


def _drop_torch_noops(gm: fx.GraphModule) -> bool:
    changed = False
    for node in list(gm.graph.nodes):
        call = call_of(node)
        if call is None or call.name != "dropout" or call.arguments.get("inplace"):
            continue
        source = call.arguments.get("self")
        if isinstance(source, fx.Node) and (call.arguments.get("train") is False or call.arguments.get("p") == 0):
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)
            changed = True
    return changed


remove_torch_noops = graph_pass(
    _drop_torch_noops, name="remove_inactive_dropout", level="torch", atomic=True, fixed=True
)
"""dropout(x, p, training=False) -> x, which in eager returns x itself too; lets other rules see through."""

for _step in (*ATTENTION, *MERGE_LINEARS):
    _step.after = ("remove_inactive_dropout",)

SHIPPED = (
    remove_torch_noops,
    *GELU,
    *ATTENTION,
    *FOLD_INTO_MATMUL,
    *MERGE_LINEARS,
    *ADDCDIV,
    *ADD_RELU,
    remove_noops,
)
"""All of them, in order."""
ON = frozenset({"remove_noops", "remove_inactive_dropout", "attention_div", "attention_mul"})
"""Names of those that run in every compile. With a mask, rows that are masked as a whole would come out otherwise."""
ROUNDING = frozenset({"attention_div", "attention_mul"})
"""Those of `ON` that change the rounding: left out under numerics="eager"."""

for _step in SHIPPED:
    registry.register(_step, enabled=_step.name in ON)
