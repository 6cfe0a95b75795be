"""Walks the table of rules: each row is lowered on samples and agrees with eager PyTorch, with no library call."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from graphs import check_op, externs

from firebrick.ir.loops.dtypes import BY_TORCH
from firebrick.lower import RULES, bags, cuda_convolutions, sampling, updates
from firebrick.lower.library_calls import RULES as CALLS

aten = torch.ops.aten
prims = torch.ops.prims

FLOATS = (torch.float32, torch.bfloat16, torch.float64)
SPECIAL = [0.0, -0.0, 0.3, -0.3, 1.0, -1.0, 2.5, -3.5, 7.0, 25.0, float("inf"), float("-inf"), float("nan")]


def f(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Random normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def n(*shape: int, low: int = -4, high: int = 5, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Random integers."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def b(*shape: int) -> torch.Tensor:
    """Random truth values."""
    return n(*shape, low=0, high=2).bool()


def special(dtype: torch.dtype) -> torch.Tensor:
    """Numbers at which functions differ."""
    if dtype.is_floating_point:
        return torch.tensor(SPECIAL, dtype=dtype)
    return torch.tensor([0, 1, 2, 3, 5, 9, 1], dtype=dtype)


def layouts(dtype: torch.dtype) -> list[torch.Tensor]:
    """Shapes and strides that kernels must handle."""
    whole = f(2, 3, 4, dtype=dtype) if dtype.is_floating_point else n(2, 3, 4, low=0, dtype=dtype)
    return [whole, whole.permute(2, 0, 1), whole[:, ::2], whole[0, 0, 0], whole[:, :0], special(dtype)]


def unary(dtypes: tuple[torch.dtype, ...] = FLOATS) -> list[tuple[Any, ...]]:
    """One tensor."""
    return [(t,) for d in dtypes for t in layouts(d)]


def binary(dtypes: tuple[torch.dtype, ...] = (*FLOATS, torch.int32, torch.uint8)) -> list[tuple[Any, ...]]:
    """Two tensors that broadcast."""
    made: list[tuple[Any, ...]] = []
    for d in dtypes:
        x = layouts(d)[0]
        made += [(x, x.flip(0)), (x, x[0, 0]), (x[:, :1], x[0]), (x[0, 0, 0], x), (x.permute(1, 0, 2), x[:1, :1])]
        pairs = torch.tensor(list(product(special(d).tolist(), repeat=2)), dtype=d)
        made.append((pairs[:, 0], pairs[:, 1]))
    return made


def with_number(
    numbers: tuple[Any, ...], dtypes: tuple[torch.dtype, ...] = (*FLOATS, torch.int64)
) -> list[tuple[Any, ...]]:
    """A tensor and a number."""
    return [(t, k) for d in dtypes for t in (special(d), layouts(d)[1]) for k in numbers]


INTS = (torch.int64, torch.int32, torch.uint8, torch.int8)
UNARY = (*FLOATS, torch.float16)
MIXED = [
    (f(2, 3), n(2, 3)),
    (n(3), f(2, 3, dtype=torch.bfloat16)),
    (f(2, 3, dtype=torch.float64), f(2, 3)),
    (b(2, 3), n(2, 3)),
]
GROUPS: dict[str, list[tuple[Any, ...]]] = {
    "float unary": unary(UNARY),
    "unary": unary((*UNARY, *INTS[:2])),
    "float binary": binary(FLOATS),
    "binary": binary(),
    "int binary": binary(INTS),
}


def names(packets: str, *overloads: str) -> list[Any]:
    """Overloads of several ops."""
    return [getattr(getattr(aten, p), o) for p in packets.split() for o in overloads]


Sample = tuple[tuple[Any, ...], dict[str, Any]]


def _samples() -> dict[Any, list[Sample]]:
    table: dict[Any, list[Sample]] = {}

    def put(ops: list[Any], cases: list[tuple[Any, ...]], **kwargs: Any) -> None:
        for op in ops:
            table.setdefault(op, []).extend((case, kwargs) for case in cases)

    functions = (
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sigmoid sin cos tan asin acos atan sinh cosh tanh asinh acosh "
        "atanh erf erfc lgamma reciprocal silu hardswish"
    )
    put(names(functions, "default"), GROUPS["float unary"])
    put(names("exp sin log sqrt sigmoid reciprocal", "default"), [(n(2, 3, low=1),), (b(3),)])
    put(names("floor ceil round trunc abs sign relu neg", "default"), GROUPS["unary"])
    put(names("isinf signbit", "default"), GROUPS["unary"])
    # Eager's float kernel gives NaN at infinity.
    put([aten.gelu.default], [(f(2, 3, dtype=d) * 4,) for d in UNARY])
    put([aten.gelu.default], [(f(2, 3, dtype=d) * 4,) for d in UNARY], approximate="tanh")
    put(names("lt le gt ge eq ne", "Tensor"), [*GROUPS["binary"], *MIXED])
    put(names("lt le gt ge eq ne", "Scalar"), with_number((0, 1, 2.5)))
    put(names("logical_and logical_or logical_xor", "default"), [*GROUPS["binary"], *MIXED])
    put(names("bitwise_and bitwise_or bitwise_xor", "Tensor"), [*GROUPS["int binary"], (b(3, 2), b(2))])
    put(names("bitwise_and bitwise_or bitwise_xor", "Scalar"), with_number((3, -1), INTS[:2]))
    put(
        names("bitwise_left_shift bitwise_right_shift", "Tensor"),
        [(n(3, 4), n(4, low=-2, high=70)), (n(4), n(4, low=0))],
    )
    put(names("bitwise_left_shift bitwise_right_shift", "Tensor_Scalar"), with_number((1, 3), INTS[:2]))
    put(names("logical_not bitwise_not", "default"), [(n(2, 3),), (b(2, 3),)])
    put(names("minimum maximum", "default"), [*GROUPS["binary"], *MIXED, (b(3), b(3))])
    put(names("fmin fmax atan2 hypot logaddexp logaddexp2", "default"), GROUPS["float binary"])
    xlog1py = aten.special_xlog1py
    put(
        [xlog1py.default, aten.copysign.Tensor, aten.xlogy.Tensor, aten.div.Tensor],
        GROUPS["float binary"],
    )
    put([aten.heaviside.default], [*GROUPS["float binary"], (n(3, 4), n(4)), (b(3, 2), b(2)), (f(2, 3).relu(), f(3))])
    put([aten.div.Tensor], [*MIXED, (n(2, 3), n(3, low=1))])
    put([aten.pow.Tensor_Tensor], GROUPS["float binary"])
    put(
        [xlog1py.other_scalar, aten.copysign.Scalar, aten.xlogy.Scalar_Other, aten.div.Scalar],
        with_number((2, -0.5), FLOATS),
    )
    put(
        [xlog1py.self_scalar, aten.xlogy.Scalar_Self, aten.pow.Scalar],
        [(k, t) for t, k in with_number((2, 0.5, 0), FLOATS)],
    )
    put([aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor], [*GROUPS["binary"], *MIXED[:3]])
    put([aten.mul.Tensor, aten.add.Tensor], [(b(3, 2), b(2))])
    put([aten.floor_divide.default], binary((torch.float32, torch.float64)))
    put([aten.floor_divide.Scalar], with_number((2, -3)))
    put([aten.mul.Scalar, aten.add.Scalar, aten.sub.Scalar], with_number((3, -2)))
    put([aten.add.Tensor, aten.sub.Tensor], [(f(2, 3), f(3))], alpha=0.5)
    put([aten.add.Tensor, aten.mul.Tensor], with_number((0.1, 3), FLOATS))
    put([aten.clamp.Tensor], [(f(2, 3), f(3), f(2, 1) + 2), (f(2, 3), f(3)), (n(3), None, n(1))])
    put([aten.clamp.default], [(special(torch.float32), -1, 2), (special(torch.float32), None, 1.5), (n(3), 0, 2)])
    put([aten.pow.Tensor_Scalar], with_number((0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 2.3), FLOATS))
    put([aten.pow.Tensor_Scalar], [(n(2, 3), k) for k in (0, 1, 2, 3, 4)])
    for mode in (None, "floor", "trunc"):
        # Eager divides bf16 in bf16 here, and floor makes a whole unit of the difference.
        put([aten.div.Tensor_mode], binary((torch.float32, torch.float64)), rounding_mode=mode)
        put([aten.div.Tensor_mode, aten.div.Scalar_mode], with_number((2, -3)), rounding_mode=mode)
    put([aten.remainder.Tensor, aten.fmod.Tensor], GROUPS["float binary"])
    put([aten.remainder.Scalar, aten.fmod.Scalar], with_number((2, -3)))
    put([aten.remainder.Scalar_Tensor], [(7.5, f(2, 3))])
    put(names("addcmul addcdiv", "default"), [(f(2, 3), f(3), f(2, 1))], value=0.3)
    put([aten.lerp.Scalar], [(f(2, 3), f(3), 0.3), (f(2, 3), f(3), 0.8)])
    put([aten.lerp.Tensor], [(f(2, 3), f(3), f(2, 1))])
    put([aten.where.self], [(b(2, 3), f(3), f(2, 1)), (b(3), n(2, 3), f(3)), (b(3), f(3, dtype=torch.bfloat16), f(3))])
    put([aten.masked_fill.Scalar], [(f(2, 3), b(3), float("-inf")), (n(2, 3), b(2, 1), 4), (b(3), b(3), True)])
    put([aten.masked_fill.Tensor], [(f(2, 3), b(3), torch.tensor(2.0))])
    for source, target in product((*FLOATS, torch.float16, *INTS, torch.bool), repeat=2):
        data = f(2, 3).mul(3).abs().to(source) if source.is_floating_point else n(2, 3, low=0).to(source)
        put([aten._to_copy.default], [(data,)], dtype=target)
        put([prims.convert_element_type.default], [(data, target)])
    put([prims.device_put.default], [(f(2), torch.device("cpu"))])
    put([aten.clone.default, aten.lift_fresh_copy.default], [(f(3, 2).t(),)])
    put([aten.clone.default], [(f(3, 2).t(),)], memory_format=torch.contiguous_format)
    put([aten.copy.default], [(f(2, 3), f(3)), (n(2, 3), f(2, 3))])
    put([aten.native_dropout.default], [(f(2, 3), 0.5, False)])
    _views(put)
    _reductions(put)
    _indexing(put)
    return table


def _views(put: Any) -> None:
    x = f(2, 3, 4)
    put(
        [aten.view.default, aten.reshape.default],
        [(x, [6, 4]), (x, [2, 12]), (x, [-1]), (x, [2, 3, 2, 2])],
    )
    put([aten.reshape.default], [(x.permute(1, 2, 0)[:, :, :1], [12])])
    put([aten._reshape_alias.default], [(x, [6, 4], [4, 1])])
    put([aten.squeeze.dim], [(f(1, 3, 1), 0), (f(1, 3, 1), 1)])
    put([aten.squeeze.dims], [(f(1, 3, 1), [0, 2])])
    put([aten.unsqueeze.default], [(x, 1), (x, -1)])
    put([prims.view_of.default, aten.detach.default, aten.alias.default, aten.lift_fresh.default], [(x,)])
    put([aten.permute.default], [(x, [2, 0, 1]), (x, [-1, 0, 1])])
    put([aten.transpose.int], [(x, 0, -1), (f(), 0, -1)])
    put([aten.t.default], [(f(2, 3),), (f(2),), (f(),)])
    put([aten.expand.default], [(f(1, 3), [4, 3]), (f(3), [2, -1, 3]), (f(), [2])])
    put([aten.slice.Tensor], [(x, 1, 1, 3), (x, 2, 0, 9, 2), (x, -1, -2), (x, 0, 5, 2), (x,)])
    put([aten.select.int], [(x, 1, 2), (x, 0, -1)])
    put([aten.diagonal.default], [(x,), (x, 1, 1, 2), (x, -1, 2, 0)])
    put([aten.unfold.default], [(f(2, 9), 1, 4, 2), (f(9), 0, 3, 1)])
    put([aten.as_strided.default], [(x, [2, 2], [3, 5], 1), (x, [4], [2])])
    put([aten.view.dtype], [(x, torch.float32)])
    put([aten.flip.default], [(x, [0, 2]), (f(), [])])
    put([aten.roll.default], [(x, [1, -2], [0, 2]), (x, [5]), (f(3, 0), [1], [0]), (f(3, 0), [1])])


def _reductions(put: Any) -> None:
    x, empty = f(2, 3, 4), f(2, 0, 3)
    nan = f(3, 4)
    nan[1, 2] = nan[1, 3] = float("nan")
    data = [x, x.permute(2, 0, 1), f(3, 4, dtype=torch.bfloat16), f(3, 4, dtype=torch.float64), nan]
    ints = [n(3, 4), n(3, 4, dtype=torch.int32), n(3, 4, low=0, dtype=torch.uint8)]
    whole = [(t,) for t in (*data, *ints, f())]
    one = [(t, d, k) for t in (*data, *ints) for d in (0, -1) for k in (False, True)]
    many = [(t, d, k) for t in (*data, *ints) for d in ([0], [-1, 0], []) for k in (False, True)]
    put([aten.sum.default], [*whole, (b(3, 4),), (empty,)])
    put([aten.sum.dim_IntList], [*many, (b(3, 4), [0]), (empty, [1]), (empty, None)])
    put([aten.sum.default], [(n(3, 4),)], dtype=torch.float32)
    put([aten.prod.default], [*whole, (empty,)])
    put([aten.prod.dim_int], one)
    put([aten.mean.default], [(t,) for t in data])
    put([aten.mean.dim], [(t, d, k) for t in data for d in ([0], [-1, 0], None) for k in (False, True)])
    put([aten.amax.default, aten.amin.default], [*many, (b(3, 4), [0])])
    put([aten.max.default, aten.min.default], [*whole, (b(3, 4),)])
    put([aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default], one)
    put([aten.argmax.default, aten.argmin.default], [*whole, (x, None, True)])
    put([aten.any.default], [*whole, (b(3, 4),), (empty,)])
    put([aten.any.dim], [*one, (b(3, 4), 1)])
    put([aten.any.dims], [(b(3, 4), [0, 1]), (x, [0, 2], True), (b(3, 4), None)])
    variances = [aten.var.correction, aten.var_mean.correction]
    put(variances, [(t, d) for t in data for d in ([0], [-1, 0], None)])
    put(variances, [(x, [1])], correction=0, keepdim=True)
    put(variances, [(x, [0])], correction=2)
    put([aten.linalg_vector_norm.default], [(t, k, d) for t in data for k in (2, 1, float("inf")) for d in ([0], None)])
    put([aten._softmax.default, aten._log_softmax.default], [(t, d, False) for t in data for d in (0, -1)])
    put([aten._softmax.default, aten._log_softmax.default], [(f(), 0, False), (empty, 2, False)])
    weight, bias = f(4, seed=3), f(4, seed=4)
    put([aten.native_layer_norm.default], [(t, [4], weight, bias, 1e-5) for t in (x, f(3, 4))])
    put([aten.native_layer_norm.default], [(x, [3, 4], None, None, 1e-5), (x, [4], weight, None, 1e-3)])
    half = torch.bfloat16
    put([aten.native_layer_norm.default], [(f(3, 4, dtype=half), [4], weight.to(half), bias.to(half), 1e-5)])
    image = f(2, 6, 3, 3)
    put([aten.native_group_norm.default], [(image, f(6), f(6), 2, 6, 9, g, 1e-5) for g in (1, 2, 6)])
    put([aten.native_group_norm.default], [(image, None, None, 2, 6, 9, 3, 1e-5)])


def _indexing(put: Any) -> None:
    x = f(2, 3, 4)
    cpu = {"device": torch.device("cpu"), "pin_memory": False}
    put([aten.full.default], [([2, 3], 1.5), ([], 2), ([3], True)], **cpu)
    put([aten.full_like.default], [(x, 2.0), (n(3), 7)])
    put([aten.scalar_tensor.default], [(1.5,)], dtype=torch.float32)
    put([aten.arange.default], [(5,), (4.5,)], **cpu)
    put([aten.arange.start], [(2, 7), (0.5, 3)], **cpu)
    put([aten.arange.start_step], [(2, 9, 3), (5, 0, -2), (0.0, 1.0, 0.1)], **cpu)
    put([aten.arange.start_step], [(1, 9, 2)], dtype=torch.float32)
    put(
        [prims.iota.default],
        [(5,)],
        start=2,
        step=3,
        dtype=torch.int64,
        device=torch.device("cpu"),
        requires_grad=False,
    )
    put(
        [aten.cat.default],
        [([x, x * 2], 1), ([x, f(2, 3, 1)], -1), ([f(0), x], 0), ([n(2), f(3)],), ([x, x[:, :0]], 1)],
    )
    put([aten.repeat.default], [(x, [2, 1, 3]), (f(3), [2, 2]), (f(), [3])])
    put(
        [aten.constant_pad_nd.default],
        [(x, [1, 2], 0.5), (x, [1, 0, 0, 2]), (x, [-1, 1, 2, -1], 3.0), (n(3), [1, 1], 2)],
    )
    put([aten.constant_pad_nd.default], [(f(2, 0), [1, 1], 1.0)])
    pads = [(f(2, 6), [5, 2]), (n(2, 3, 6), [0, 1]), (f(2, 6), [-1, 3]), (f(2, 6), [3, -4])]
    put(names("reflection_pad1d replication_pad1d", "default"), pads)
    pads = [(f(2, 5, 6).transpose(0, 1), [1, 2, 1, 0]), (f(2, 3, 4, 6), [5, 5, 3, -2]), (f(2, 3, 4, 6), [-1, 0, 0, 2])]
    put(names("reflection_pad2d replication_pad2d", "default"), pads)
    put(names("reflection_pad3d replication_pad3d", "default"), [(f(2, 3, 4, 5), [1, 2, 3, 0, -1, 2])])
    put(names("replication_pad1d", "default"), [(f(2, 3), [7, 9]), (b(2, 3), [1, 1])])
    put(
        [aten.slice_scatter.default],
        [(x, f(2, 2, 4), 1, 1, 3), (x, f(2, 3, 2), 2, 0, 4, 2), (x, x + 1), (x, f(2, 3, 0), 2, 3, 2)],
    )
    put([aten.select_scatter.default], [(x, f(2, 4), 1, 2), (x, f(3, 4), 0, -1)])
    image, half = f(2, 3, 7, 6), f(3, 6, 6, dtype=torch.bfloat16)
    last = image.to(memory_format=torch.channels_last)
    put([aten.avg_pool2d.default], [(t, 3, 2, 1) for t in (image, last, half)])
    put([aten.avg_pool2d.default], [(image, [2, 3]), (image, 3, 2, 1, True, False), (image, 3, 2, 1, True, True)])
    put([aten.avg_pool2d.default], [(image, 2, 1, 0, False, True, 3), (f(2, 7, 6), 3, 2, 1, False, False)])
    put([aten.avg_pool3d.default], [(f(2, 5, 4, 6), 2, 2, 1)])
    put([aten.avg_pool2d.default], [(t, [5, 6], 1, [2, 3]) for t in (image, last, half)])
    put([aten.avg_pool2d.default], [(f(2, 3, 70), [1, 40], [1, 2], [0, 20]), (f(2, 3, 4, 90), [2, 80], 1)])
    put([aten._adaptive_avg_pool2d.default], [(t, s) for t in (image, last, half) for s in ([3, 4], [7, 3], [9, 1])])
    put([aten._adaptive_avg_pool2d.default], [(f(2, 3, 110), [2, 3]), (f(2, 6, 6), [3, 2])])
    put([aten._adaptive_avg_pool3d.default], [(f(2, 5, 4, 6), [2, 4, 5])])
    put(
        [aten.index_select.default],
        [(x, 0, n(7, low=0, high=2)), (n(3, 20), -2, n(4, low=0, high=3, dtype=torch.int32))],
    )
    put([aten.take.default], [(x.transpose(0, 1), n(3, 5, low=-24, high=24))])
    put([aten.embedding.default], [(f(5, 16), n(3, 2, low=0, high=5))])
    put(
        [aten.index.Tensor],
        [(x, [None, n(4, low=-3, high=3)]), (x, [n(4, low=0, high=2), None, n(2, 1, low=-4, high=4)])],
    )
    put([aten.gather.default], [(f(3, 4), 0, n(7, 4, low=0, high=3))])
    put([aten._functional_assert_async.msg], [(torch.tensor(True), "text", x)])
    put(
        [aten.cumsum.default, aten.cumprod.default],
        [(t, 0) for t in (f(3, 4), n(3, 4), f(), b(3, 2), f(4, dtype=torch.bfloat16))],
    )
    put([aten.cumsum.default, aten.cumprod.default], [(n(3, 4), -1)], dtype=torch.float32)
    put([aten.logcumsumexp.default], [(f(3, 4), 1), (f(3, 4), -2), (f(5), 0)])
    put(
        [aten.cummax.default, aten.cummin.default],
        [(t, -1) for t in (f(3, 4), n(3, 4), f(), f(2, 0), special(torch.float32))],
    )
    put(
        [aten._unsafe_index.Tensor],
        [(x, [None, n(2, 2, low=0, high=3)]), (x, [n(3, low=0, high=2), n(2, 1, low=0, high=3)])],
    )


SAMPLES = _samples()
ELSEWHERE = {
    *(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default),
    *(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default),
}
"""Lowered only where one of two results is used: tested in test_lower and codegen/test_windows.py."""
# Tested with their schedules, in codegen/test_updates.py, test_sampling.py and test_bags.py; cuda/test_convolutions.py.
ELSEWHERE |= updates.RULES.keys() | sampling.RULES.keys() | bags.RULES.keys() | cuda_convolutions.RULES.keys()

TOLERANCE: dict[Any, float] = {aten.lgamma.default: 1e-5, aten.prod.default: 1e-5}
"""Ops whose own kernels in eager differ from the scalar function's by more."""


@pytest.mark.parametrize("op", sorted(RULES, key=str), ids=str)
def test_rule(op: Any) -> None:
    if op in CALLS or op in ELSEWHERE:
        return
    assert SAMPLES.get(op), f"no sample of {op}"
    lowered = 0
    for args, kwargs in SAMPLES[op]:
        try:
            op(*args, **kwargs)
        except (RuntimeError, NotImplementedError, IndexError):
            continue  # eager refuses this dtype
        tolerance = TOLERANCE.get(op, 2e-6)
        program = check_op(op, *args, rtol=tolerance, atol=tolerance, **kwargs)
        assert all(BY_TORCH[t.dtype].loops for t in args if isinstance(t, torch.Tensor))
        assert not externs(program), (args, kwargs)
        lowered += 1
    assert lowered
