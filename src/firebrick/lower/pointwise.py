"""Rules of elementwise ops: formulas over the elements of their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from firebrick.ir.index.expr import Expr
from firebrick.ir.index.sizes import FLOAT_SIGNS, FloatNode, Formula
from firebrick.ir.loops.constructors import cast, constant, index_value, op, where
from firebrick.ir.loops.dtypes import BY_TORCH, DTYPES
from firebrick.ir.loops.program import Op, Value
from firebrick.ir.loops.scalar_ops import SCALAR_OPS
from firebrick.lower.context import Declined, Lowering, broadcast, rules, shape_of
from firebrick.lower.exact import are_exact, is_exact
from firebrick.lower.tensors import TensorValue

aten = torch.ops.aten
prims = torch.ops.prims


@dataclass(frozen=True, slots=True)
class Pointwise:
    """One elementwise op.

    fn: from the values of the arguments, all of the dtype that the op computes in, to the value of the result.
    computes: how that dtype is found: "result" (of the result's dtype), "args" (what the arguments promote to),
      "float" (as "result", and the op declines anything else), "bool" (arguments are taken as truth values).
    numbers: the last parameters of `fn`, which are numbers, with their defaults.
    """

    fn: Callable[..., Value]
    computes: str = "result"
    cost: int = 1
    numbers: tuple[tuple[str, float], ...] = ()

    def __call__(self, lw: Lowering, *args: Any, **kwargs: Any) -> TensorValue:
        """Lower a call."""
        if self.numbers:
            operands = self.fn.__code__.co_argcount - len(self.numbers)
            numbers = dict(zip(dict(self.numbers), args[operands:], strict=False)) | kwargs
            args, kwargs = (*args[:operands], *(numbers.pop(n, v) for n, v in self.numbers)), numbers
        if kwargs:
            raise Declined
        out = BY_TORCH[lw.node.meta["val"].dtype].name
        match self.computes:
            case "args":
                compute = DTYPES[promoted(lw, args)].compute
            case "bool":
                compute = "b8"
            case _:
                compute = DTYPES[out].compute
        if self.computes == "float" and not DTYPES[compute].is_float:
            raise Declined
        return elementwise(lw, self.fn, args, compute, self.cost)


def elementwise(
    lw: Lowering,
    fn: Callable[..., Value],
    args: tuple[TensorValue | bool | int | float | Expr | FloatNode | None, ...],
    compute: str | None,
    cost: int = 1,
    fake: torch.Tensor | None = None,
) -> TensorValue:
    """A formula over broadcast arguments, cast to `compute` first (not if None) and to the result's dtype at the end.

    Raises:
        Declined: an argument is neither a tensor nor a number.
    """
    val = lw.node.meta["val"] if fake is None else fake
    shape, out = shape_of(val), BY_TORCH[val.dtype].name
    operands: list[tuple[TensorValue, Callable[[tuple[Expr, ...]], tuple[Expr, ...]]] | Value | None] = []
    for arg in args:
        if isinstance(arg, TensorValue):
            if arg.shape != shape:
                lw.reread(arg)
            operands.append((arg, broadcast(arg.shape, shape)))
            cost += arg.cost
        elif arg is None:
            operands.append(None)
        elif isinstance(arg, (bool, int, float)) and compute is not None:
            operands.append(number(arg, compute))
        elif isinstance(arg, Expr) and compute is not None and (DTYPES[compute].is_float or compute == "i64"):
            operands.append(cast(index_value(arg), compute))
        elif isinstance(arg, FloatNode) and compute is not None and DTYPES[compute].is_float:
            operands.append(cast(float_value(arg.formula), compute))
        else:
            raise Declined

    exact = lw.config.numerics == "eager"
    if exact and not (
        are_exact(args) and is_exact(fn, [(compute or o[0].dtype) if isinstance(o, tuple) else o for o in operands])
    ):
        raise Declined

    def widen(element: Value) -> Value:
        assert compute is not None
        # Rounding to bf16 or f16 between two ops of one formula is left out, which only brings it nearer to the truth.
        if not exact and isinstance(element, Op) and element.name == "to" and element.dtype in _HALVES:
            inner = element.args[0]
            if inner.dtype == compute:
                return inner
        return cast(element, compute)

    def formula(index: tuple[Expr, ...]) -> Value:
        values: list[Value | None] = []
        for operand in operands:
            if isinstance(operand, tuple):
                element = operand[0].at(operand[1](index))
                values.append(element if compute is None else widen(element))
            else:
                values.append(operand)
        return cast(fn(*values), out)

    return lw.formula(formula, cost, val)


def float_value(formula: Formula) -> Value:
    """A float that is computed of sizes, in double precision."""
    if isinstance(formula, tuple):
        sign, *parts = formula
        return op(FLOAT_SIGNS[sign][0], *[float_value(part) for part in parts])
    return cast(index_value(formula), "f64") if isinstance(formula, Expr) else constant(float(formula), "f64")


def number(value: bool | int | float, dtype: str) -> Value:
    """A Python number as a constant, declined if the dtype can't hold it."""
    row = DTYPES[dtype]
    if row.is_int and (not math.isfinite(value) or not row.lo <= value <= row.hi):
        raise Declined
    return constant(value, dtype)


def promoted(lw: Lowering, args: tuple[Any, ...]) -> str:
    """The dtype that the arguments promote to."""
    dtypes = {a.dtype for a in args if isinstance(a, TensorValue)}
    if len(dtypes) == 1 and all(isinstance(a, TensorValue) for a in args):
        return dtypes.pop()
    metas: list[Any] = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in lw.node.args[: len(args)]]
    result = torch.result_type(metas[0], metas[1]) if len(metas) > 1 else metas[0].dtype
    for more in metas[2:]:
        result = torch.promote_types(result, torch.result_type(torch.empty(1, dtype=result), more))
    return BY_TORCH[result].name


# ---------------------------------------------------------------- scalar formulas


def like(a: Value, value: float) -> Value:
    """A constant of the dtype of `a`."""
    return constant(value, a.dtype)


def relu(a: Value) -> Value:
    """max(0, a), in this order: eager keeps -0.0."""
    return op("max", like(a, 0), a)


def add(a: Value, b: Value) -> Value:
    """Sum; of truth values, whether one holds."""
    return op("or" if a.dtype == "b8" else "add", a, b)


def mul(a: Value, b: Value) -> Value:
    """Product; of truth values, whether both hold."""
    return op("and" if a.dtype == "b8" else "mul", a, b)


def sub(a: Value, b: Value) -> Value:
    """Difference."""
    return op("xor" if a.dtype == "b8" else "sub", a, b)


def gelu_erf(a: Value) -> Value:
    """a/2 * (1 + erf(a / sqrt 2))."""
    e = op("erf", op("mul", a, like(a, math.sqrt(0.5))))
    return op("mul", op("mul", a, like(a, 0.5)), op("add", e, like(a, 1)))


def gelu_tanh(a: Value) -> Value:
    """The approximation of GELU by tanh."""
    cube = op("mul", op("mul", a, a), a)
    inner = op("mul", like(a, math.sqrt(2 / math.pi)), op("add", a, op("mul", like(a, 0.044715), cube)))
    return op("mul", op("mul", like(a, 0.5), a), op("add", like(a, 1), op("tanh", inner)))


def clamp_low(a: Value, low: Value | None) -> Value:
    """At least `low`; NaN stays."""
    return a if low is None else op("max", low, a)


def clamp_high(a: Value, high: Value | None) -> Value:
    """At most `high`; NaN stays."""
    return a if high is None else op("min", high, a)


def power(a: Value, b: Value) -> Value:
    """a to the power b, b by data."""
    return op("pow", a, b)


def sum_of_powers(exp: str, log: Callable[[Value], Value]) -> Callable[[Value, Value], Value]:
    """log(exp(a) + exp(b)) in the base of `exp`; log: of 1 and its argument."""

    def fn(a: Value, b: Value) -> Value:
        high, low = op("max", a, b), op("min", a, b)
        same = op("and", op("isinf", high), op("eq", high, low))
        return where(same, high, op("add", high, log(op(exp, op("sub", low, high)))))

    return fn


def heaviside(a: Value, b: Value) -> Value:
    """0 below zero, 1 above, b at it."""
    zero = like(a, 0)
    return where(op("eq", a, zero), b, where(op("gt", a, zero), like(a, 1), zero))


def times_log(log: str) -> Callable[[Value, Value], Value]:
    """a * log(b), 0 where a is 0, NaN where b is NaN; `log`: that function, or the one of 1 + b."""

    def fn(a: Value, b: Value) -> Value:
        zero = like(a, 0)
        plain = where(op("eq", a, zero), zero, op("mul", a, op(log, b)))
        return where(op("isnan", b), like(a, math.nan), plain)

    return fn


def silu(a: Value) -> Value:
    """a * sigmoid(a)."""
    return op("div", a, op("add", like(a, 1), op("exp", op("neg", a))))


def lerp(a: Value, b: Value, weight: Value) -> Value:
    """a + weight * (b - a), from the nearer end."""
    low = op("add", a, op("mul", weight, op("sub", b, a)))
    high = op("sub", b, op("mul", op("sub", b, a), op("sub", like(weight, 1), weight)))
    return where(op("lt", op("abs", weight), like(weight, 0.5)), low, high)


def hardswish(a: Value) -> Value:
    """a * clamp(a + 3, 0, 6) / 6."""
    lifted = op("min", op("max", op("add", a, like(a, 3)), like(a, 0)), like(a, 6))
    return op("div", op("mul", a, lifted), like(a, 6))


def rounding(name: str) -> Callable[[Value], Value]:
    """A rounding that leaves integers alone."""
    return lambda a: op(name, a) if DTYPES[a.dtype].is_float else a


def scalar(name: str) -> Callable[..., Value]:
    """The scalar function `name`."""
    return lambda *args: op(name, *args)


def logical(name: str) -> Callable[[Value, Value], Value]:
    """A bit operation, which for truth values is the logical one."""
    return lambda a, b: op(name if a.dtype == "b8" else f"bit{name}", a, b)


# ---------------------------------------------------------------- tables

_FLOAT_UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sigmoid sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc lgamma"
)


def _table() -> dict[Any, Callable[..., Any]]:
    rules: dict[Any, Callable[..., Any]] = {}
    for name in _FLOAT_UNARY.split():
        rules[getattr(aten, name).default] = Pointwise(scalar(name), "float", SCALAR_OPS[name].cost)
    for name in ("floor", "ceil", "round", "trunc"):
        rules[getattr(aten, name).default] = Pointwise(rounding(name))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        for overload in ("Tensor", "Scalar"):
            rules[getattr(getattr(aten, name), overload)] = Pointwise(scalar(name), "args")
    for name in ("and", "or", "xor"):
        rules[getattr(aten, f"logical_{name}").default] = Pointwise(scalar(name), "bool")
        for overload in ("Tensor", "Scalar"):
            rules[getattr(getattr(aten, f"bitwise_{name}"), overload)] = Pointwise(logical(name))
    one, xlog1py = Pointwise, aten.special_xlog1py
    rules |= {
        aten.neg.default: one(scalar("neg")),
        aten.abs.default: one(lambda a: a if a.dtype in ("b8", "u8") else op("abs", a)),
        aten.sign.default: one(lambda a: a if a.dtype == "b8" else op("sign", a)),
        aten.relu.default: one(relu),
        aten.reciprocal.default: one(lambda a: op("div", like(a, 1), a), "float", 4),
        aten.silu.default: one(silu, "float", 25),
        aten.hardswish.default: one(hardswish, "float", 8),
        aten.minimum.default: one(scalar("min")),
        aten.maximum.default: one(scalar("max")),
        aten.fmin.default: one(scalar("fmin"), "float", 2),
        aten.fmax.default: one(scalar("fmax"), "float", 2),
        aten.atan2.default: one(scalar("atan2"), "float", 40),
        aten.hypot.default: one(scalar("hypot"), "float", 20),
        **dict.fromkeys((aten.copysign.Tensor, aten.copysign.Scalar), one(scalar("copysign"), "float")),
        aten.logaddexp.default: one(sum_of_powers("exp", scalar("log1p")), "float", 50),
        aten.logaddexp2.default: one(
            sum_of_powers("exp2", lambda x: op("log2", op("add", like(x, 1), x))), "float", 50
        ),
        aten.heaviside.default: one(heaviside),
        **{
            getattr(aten.xlogy, o): one(times_log("log"), "float", 25)
            for o in ("Tensor", "Scalar_Other", "Scalar_Self")
        },
        **{
            getattr(xlog1py, o): one(times_log("log1p"), "float", 25)
            for o in ("default", "other_scalar", "self_scalar")
        },
        **dict.fromkeys((aten.lerp.Scalar, aten.lerp.Tensor), one(lerp, "float", 6)),
        aten.addcmul.default: one(
            lambda a, b, c, k: op("add", a, op("mul", op("mul", k, b), c)), "result", 3, (("value", 1),)
        ),
        aten.addcdiv.default: one(
            lambda a, b, c, k: op("add", a, op("div", op("mul", k, b), c)), "float", 6, (("value", 1),)
        ),
        **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), one(mul)),
        **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), one(scalar("div"), "float", 4)),
        **dict.fromkeys((aten.pow.Tensor_Tensor, aten.pow.Scalar), one(power, "float", 60)),
        aten.clamp.Tensor: one(lambda a, low=None, high=None: clamp_high(clamp_low(a, low), high)),
        aten.isinf.default: one(
            lambda a: op("isinf", a) if DTYPES[a.dtype].is_float else constant(False, "b8"), "args"
        ),
        aten.signbit.default: one(
            lambda a: op("signbit", a) if DTYPES[a.dtype].is_float else op("lt", a, like(a, 0)), "args"
        ),
        aten.logical_not.default: one(scalar("not"), "bool"),
        aten.bitwise_not.default: one(lambda a: op("not" if a.dtype == "b8" else "bitnot", a)),
        **{getattr(aten.bitwise_left_shift, o): one(scalar("shl")) for o in ("Tensor", "Tensor_Scalar")},
        **{getattr(aten.bitwise_right_shift, o): one(scalar("shr")) for o in ("Tensor", "Tensor_Scalar")},
    }
    return rules


RULES, _rule = rules()
RULES.update(_table())


def _compute(lw: Lowering) -> str:
    return DTYPES[BY_TORCH[lw.node.meta["val"].dtype].name].compute


def _needs_float(lw: Lowering) -> str:
    compute = _compute(lw)
    if not DTYPES[compute].is_float:
        raise Declined
    return compute


# ---------------------------------------------------------------- ops with parameters


@_rule(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def _add(lw: Lowering, a: Any, b: Any, scale: Any = 1, *, alpha: float = 1) -> TensorValue:
    alpha = alpha if scale == 1 else scale
    combine = add if lw.node.target in (aten.add.Tensor, aten.add.Scalar) else sub
    if alpha == 1:
        return elementwise(lw, combine, (a, b), _compute(lw))
    return elementwise(lw, lambda x, y, k: combine(x, mul(y, k)), (a, b, alpha), _compute(lw), 2)


def _divide(lw: Lowering, a: Any, b: Any, *, name: str = "", rounding_mode: str | None = None) -> TensorValue:
    """Integer division by data is the library's: it raises when the divisor is 0."""
    name = name or {None: "div", "floor": "floordiv", "trunc": "truncdiv"}[rounding_mode]
    compute = _compute(lw)
    if not DTYPES[compute].is_float and (isinstance(b, TensorValue) or b == 0 or compute == "b8"):
        raise Declined
    return elementwise(lw, scalar(name), (a, b), compute, SCALAR_OPS[name].cost)


for _name, _ops in {
    "": (aten.div.Tensor_mode, aten.div.Scalar_mode),
    "floordiv": (aten.floor_divide.default, aten.floor_divide.Scalar),
    "mod": (aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor),
    "fmod": (aten.fmod.Tensor, aten.fmod.Scalar),
}.items():
    RULES.update(dict.fromkeys(_ops, partial(_divide, name=_name)))


_POWERS: dict[float, Callable[[Value], Value]] = {
    0.0: lambda a: like(a, 1), 1.0: lambda a: a, 2.0: lambda a: op("mul", a, a),
    3.0: lambda a: op("mul", op("mul", a, a), a), 4.0: lambda a: op("mul", op("mul", a, a), op("mul", a, a)),
}  # fmt: skip
"""Exponent -> product, for numbers of any kind."""

_FLOAT_POWERS: dict[float, Callable[[Value], Value]] = {
    0.5: lambda a: op("sqrt", a), -0.5: lambda a: op("rsqrt", a), -1.0: lambda a: op("div", like(a, 1), a),
    -2.0: lambda a: op("div", like(a, 1), op("mul", a, a)),
}  # fmt: skip


@_rule(aten.pow.Tensor_Scalar)
def _pow(lw: Lowering, a: TensorValue, exponent: float) -> TensorValue:
    compute = _compute(lw)
    product = _POWERS.get(exponent) if exponent != 4 or not DTYPES[compute].is_float else None
    if DTYPES[compute].is_float:
        product = product or _FLOAT_POWERS.get(exponent)
    if product is not None and compute != "b8":
        return elementwise(lw, product, (a,), compute, 4)
    if not DTYPES[compute].is_float:
        raise Declined
    return elementwise(lw, power, (a, exponent), compute, SCALAR_OPS["pow"].cost)


@_rule(aten.gelu.default)
def _gelu(lw: Lowering, a: TensorValue, *, approximate: str = "none") -> TensorValue:
    fn = gelu_erf if approximate == "none" else gelu_tanh
    return elementwise(lw, fn, (a,), _needs_float(lw), 40)


@_rule(aten.clamp.default)
def _clamp(lw: Lowering, a: TensorValue, low: float | None = None, high: float | None = None) -> TensorValue:
    limits = (_limit(lw, low), _limit(lw, high))
    return elementwise(lw, lambda x, lo, hi: clamp_high(clamp_low(x, lo), hi), (a, *limits), _compute(lw))


def _limit(lw: Lowering, number: float | None) -> float | None:
    """A limit as eager has it, in the dtype of the result: 1e-12 is 0 in float16, of which `normalize` makes NaN."""
    dtype = lw.node.meta["val"].dtype
    if not isinstance(number, float) or dtype not in (torch.bfloat16, torch.float16):
        return number
    return float(torch.tensor(number, dtype=dtype))


@_rule(aten.where.self)
def _select(lw: Lowering, cond: TensorValue, a: Any, b: Any) -> TensorValue:
    out = BY_TORCH[lw.node.meta["val"].dtype].name
    # Nothing is computed, so bf16 and f16 need no conversion.
    same = all(not isinstance(x, TensorValue) or x.dtype == out for x in (a, b))
    dtype = out if same else DTYPES[out].compute
    if cond.dtype != "b8":
        raise Declined
    a, b = (cast(index_value(x), dtype) if isinstance(x, Expr) else x for x in (a, b))
    a, b = (number(x, dtype) if isinstance(x, (bool, int, float)) else x for x in (a, b))

    def fn(c: Value, *values: Value) -> Value:
        rest = iter(values)
        x, y = (cast(next(rest), dtype) if isinstance(v, TensorValue) else v for v in (a, b))
        return where(c, x, y)

    return elementwise(lw, fn, (cond, *(v for v in (a, b) if isinstance(v, TensorValue))), None)


_rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)(lambda lw, a, mask, value: _select(lw, mask, value, a))


# ---------------------------------------------------------------- conversion and copies


@_rule(aten._to_copy.default, prims.convert_element_type.default, prims.device_put.default)
def _to(lw: Lowering, a: TensorValue, *_args: Any, **_kwargs: Any) -> TensorValue:
    dtype = BY_TORCH[lw.node.meta["val"].dtype].name
    rounds = dtype in _HALVES and DTYPES[a.dtype].is_float and a.dtype not in _HALVES
    return elementwise(lw, (lambda x: rounded(x, dtype)) if rounds else lambda x: x, (a,), None, 0)


_HALVES = ("bf16", "f16")


def rounded(x: Value, dtype: str) -> Value:
    """x in half precision because the program says so: unlike what ops round, it stays rounded in a formula."""
    return Op(dtype, "to", (Op(x.dtype, "to", (cast(x, dtype),)),))


@_rule(aten.clone.default, aten.lift_fresh_copy.default)
def _clone(lw: Lowering, a: TensorValue, **_kwargs: Any) -> TensorValue:
    return elementwise(lw, lambda x: x, (a,), None, 0)


@_rule(aten.copy.default)
def _copy(lw: Lowering, a: TensorValue, source: TensorValue, _non_blocking: bool = False) -> TensorValue:
    return elementwise(lw, lambda x: x, (source,), None, 0)
