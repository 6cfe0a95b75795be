"""numerics="eager": eager's bits for pointwise ops, chains of them, casts and random ops, and within 2 ulp for reductions."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

import firebrick
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.lower import pointwise

pytestmark = pytest.mark.compiler

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 1e30, 88.0, -104.0]
SIZE = 1043  # full vectors, several at once, and a rest
KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool)
SCALARS = (0.1, 3, 0.0)
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def values(dtype, seed, size=SIZE):
    g = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(size, generator=g) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == torch.uint8 else -100, 100, (size,), generator=g).to(dtype)
    x = torch.randn(size, generator=g, dtype=torch.float64) * 3
    x[: size // 4] /= 6
    x[: len(SPECIAL)] = torch.tensor(SPECIAL, dtype=torch.float64)
    return x[torch.randperm(size, generator=g)].to(dtype)


def compiled(fn, *inputs, **options):
    firebrick.reset()
    with torch.no_grad():
        return firebrick.compile(fn, fullgraph=True, options={"numerics": "eager", **options})(*inputs)


def ulps(a, b):
    """Largest distance in units of the last place; NaN and the sign of zero count as in `torch.equal`."""
    assert a.dtype == b.dtype and a.shape == b.shape
    if not a.dtype.is_floating_point:
        return 0 if torch.equal(a, b) else math.inf
    far = ~((a == b) | (a.isnan() & b.isnan()))
    ints = [t.contiguous().view(BITS[t.element_size()]).long()[far] for t in (a, b)]
    if not ints[0].numel():
        return 0
    return math.inf if bool((ints[0].sign() != ints[1].sign()).any()) else int((ints[0] - ints[1]).abs().max())


def same_bits(a, b):
    if not isinstance(a, torch.Tensor):
        return a == b
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    if not a.dtype.is_floating_point or a.dtype != b.dtype or a.shape != b.shape:
        return a.dtype == b.dtype and torch.equal(a, b)
    same = a.contiguous().view(BITS[a.element_size()]) == b.contiguous().view(BITS[b.element_size()])
    return bool((same | (a.isnan() & b.isnan())).all())


def check(cases):
    """cases: (label, function of no arguments); all of them are one graph."""
    with torch.no_grad():
        wanted = [fn() for _, fn in cases]
    got = compiled(lambda: [fn() for _, fn in cases])
    wrong = [label for (label, _), a, b in zip(cases, got, wanted, strict=True) if not same_bits(a, b)]
    assert wrong == []


def runs(fn):
    try:
        with torch.no_grad():
            return isinstance(fn(), torch.Tensor)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return False


def cases_of(op):
    found = []
    count, call = 2 if isinstance(op, BinaryUfuncInfo) else 1, op.op
    for dtype in KINDS:
        if dtype not in op.dtypes:
            continue
        sample = next(iter(op.sample_inputs("cpu", dtype)))
        xs, more, named = [values(dtype, k + 1) for k in range(count)], sample.args[count - 1 :], sample.kwargs
        found.append((f"{dtype}", lambda xs=xs, more=more, named=named: call(*xs, *more, **named)))
        if count == 2:
            found += [(f"{dtype} {c}", lambda x=xs[0], c=c: call(x, c)) for c in SCALARS]
    return [case for case in found if runs(case[1])]


# rrelu has no functional form, the next four compute nothing, frexp gives two tensors, the last are of complex numbers.
LEFT_OUT = ("nn.functional.rrelu", "positive", "conj", "conj_physical", "real", "frexp", "imag")
OPS = [
    op
    for op in database.op_db
    if isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo))
    and op.name not in LEFT_OUT
    and op.variant_test_name != "complex"
    and not getattr(op.op, "__module__", "").startswith("torch.testing")  # the database's own lambdas
    and "jiterator" not in op.name
]


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=lambda op: f"{op.name}{op.variant_test_name}")
def test_operators_have_eagers_bits(op):
    cases = cases_of(op)
    assert cases, "eager has it for some dtype"
    check(cases)


def others(dtype):
    x, y, z = (values(dtype, seed) for seed in (1, 2, 3))
    mask = values(torch.bool, 4)
    return {
        "logaddexp2": lambda: torch.logaddexp2(x, y),
        "add": lambda: torch.add(x, y, alpha=0.3),
        "sub": lambda: torch.sub(x, y, alpha=3),
        "rsub": lambda: torch.rsub(x, 1),
        "rsub2": lambda: torch.rsub(x, y, alpha=0.7),
        "addcmul": lambda: torch.addcmul(x, y, z, value=0.3),
        "addcdiv": lambda: torch.addcdiv(x, y, z, value=0.3),
        "lerp": lambda: torch.lerp(x, y, 0.3),
        "lerp2": lambda: torch.lerp(x, y, z),
        "where": lambda: torch.where(mask, x, y),
        "where2": lambda: torch.where(mask, x, 0.1),
        "masked_fill": lambda: x.masked_fill(mask, 0.1),
        "clamp": lambda: x.clamp(-0.7, 1.3),
        "clamp2": lambda: torch.clamp(x, y, z),
        "clamp3": lambda: x.clamp_min(0.0) + x.clamp_max(0.0),
        "pow": lambda: x**2,
        "pow2": lambda: x**3 + x**-1,
        "pow3": lambda: x**0.5,
        "pow4": lambda: x**-0.5 + x**2.5,
        "gelu": lambda: F.gelu(x),
        "gelu2": lambda: F.gelu(x, approximate="tanh"),
        "elu": lambda: F.elu(x, 0.7),
        "leaky_relu": lambda: F.leaky_relu(x, 0.1),
        "hardtanh": lambda: F.hardtanh(x, -0.3, 0.9),
        "softplus": lambda: F.softplus(x, 0.7, 5),
        "threshold": lambda: F.threshold(x, 0.1, 7.0),
        "nan_to_num": lambda: torch.nan_to_num(x, 1.0, 2.0, -2.0),
        "dropout": lambda: F.dropout(x, 0.3, training=False),
        "copy": lambda: torch.zeros_like(x).copy_(y),
        "sigmoid_backward": lambda: torch.ops.aten.sigmoid_backward(x, y),
        "tanh_backward": lambda: torch.ops.aten.tanh_backward(x, y),
        "threshold_backward": lambda: torch.ops.aten.threshold_backward(x, y, 0.1),
        "gelu_backward": lambda: torch.ops.aten.gelu_backward(x, y),
        "mixed": lambda: x * y.float() + 1,
        "of a half and a scalar tensor": lambda: x + torch.tensor(0.1) * 3,
        "of a half and integers": lambda: x * torch.arange(1000, 1000 + SIZE),
        "comparison": lambda: torch.where(x < 0.1, x, 0.3) + (x == 0.1),
        "prelu": lambda: F.prelu(x, y[:1]),
        "hardshrink": lambda: F.hardshrink(x) + F.softshrink(x),
        "binary_cross_entropy": lambda: F.binary_cross_entropy_with_logits(x, y.clamp(0, 1), reduction="none"),
        "smooth_l1": lambda: F.smooth_l1_loss(x, y, reduction="none") + F.huber_loss(x, y, reduction="none"),
        "quotient": lambda: (x / 3, x * 0.1, x - 0.1, 1 / x)[2] / 7.1,
    }


@pytest.mark.parametrize("dtype", KINDS[:4], ids=str)
def test_operators_with_parameters_have_eagers_bits(dtype):
    check([(name, fn) for name, fn in others(dtype).items() if runs(fn)])


def test_every_rule_of_the_pointwise_table_is_tested():
    names = {op.name.rpartition(".")[2] for op in OPS} | {op.aten_name for op in OPS} | set(others(torch.float32))
    names |= {alias.name for op in OPS for alias in op.aliases}
    elsewhere = {"_to_copy", "convert_element_type", "device_put", "clone", "lift_fresh_copy"}  # casts and copies
    names |= {"native_dropout", "mish", "silu", "hardsigmoid", "hardswish"} | elsewhere
    tables = {str(op).removeprefix("aten.").removeprefix("prims.").partition(".")[0] for op in pointwise.RULES}
    assert sorted(tables - names - {f"{n}_" for n in names}) == []


def test_casts_have_eagers_bits():
    dtypes = [row.torch for row in DTYPES.values() if row.loops]
    cases = []
    for a in dtypes:
        x = values(a, 5)
        if a.is_floating_point:
            x = x.nan_to_num(3.0, 100.0, 100.0).clamp(0, 100)  # what fits into integers: C leaves the rest open
        cases += [(f"{a} to {b}", lambda x=x, b=b: x.to(b)) for b in dtypes if b != a]
    check(cases)


STEPS = (
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: x - y * 0.3,
    lambda x, y: x / (y.abs() + 1),
    lambda x, y: x.relu() + 0.1,
    lambda x, y: torch.where(x > y, x, -y),
    lambda x, y: x.sigmoid() * y,
    lambda x, y: (x * 0.1).exp(),
    lambda x, y: F.gelu(x) - y,
    lambda x, y: x.clamp(-2, 2).sqrt().nan_to_num(0.5),
    lambda x, y: x.bfloat16().to(x.dtype) * y,
    lambda x, y: x.floor() + x.frac(),
    lambda x, y: torch.addcmul(x, y, y, value=0.3),
    lambda x, y: x.tanh() / 3,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_chains_have_eagers_bits(dtype, seed):
    order = random.Random(seed)
    steps = [order.choice(STEPS) for _ in range(12)]

    def chain(x, y):
        for step in steps:
            x = step(x, y)
        return x

    x, y = values(dtype, seed, 40 * 33).reshape(40, 33), values(dtype, seed + 9, 33)
    with torch.no_grad():
        wanted = chain(x, y)
    assert same_bits(compiled(chain, x, y), wanted)


def test_exact_chains_are_still_one_kernel():
    x, y = torch.randn(64, 33), torch.randn(33)
    before = firebrick.stats()["counts"].get("kernels", 0)
    compiled(lambda x, y: ((x + y) * 3 - y).relu() / 7, x, y, cache=False)
    assert firebrick.stats()["counts"]["kernels"] - before == 1


def test_random_ops_have_eagers_bits():
    def draws(x):
        a = torch.rand(33) + torch.randn(33)
        b = F.dropout(x, 0.3) * a
        c = torch.bernoulli(x.sigmoid()) + torch.rand_like(x)
        return a, b, c, torch.randint(0, 9, (7,)), torch.randperm(9), x.clone().uniform_(), x.clone().normal_(1, 2)

    x = torch.randn(5, 33)
    torch.manual_seed(7)
    wanted = draws(x)
    torch.manual_seed(7)
    for got, want in zip(compiled(draws, x), wanted, strict=True):
        assert same_bits(got, want)


def reductions(x):
    w, b, rows = x.new_ones(x.shape[-1]) * 0.3, x.new_ones(x.shape[-1]) * 0.1, x.new_ones(x.shape[0]).abs()
    image = x.reshape(1, 4, 10, -1)
    return {
        "sum": x.sum(),
        "sum rows": x.sum(-1),
        "sum columns": x.sum(0),
        "mean": x.mean((0, 1)),
        "prod": (1 + x * 0.01).prod(-1),
        "var": x.var(-1),
        "std": x.std(0),
        "amax": x.amax(0),
        "argmin": x.argmin(-1),
        "softmax": x.softmax(-1),
        "log_softmax": x.log_softmax(0),
        "logsumexp": x.logsumexp(-1),
        "norm": x.norm(dim=-1),
        "norm 1": torch.linalg.vector_norm(x, 1),
        "layer_norm": F.layer_norm(x, x.shape[-1:], w, b),
        "rms_norm": F.rms_norm(x, x.shape[-1:], w),
        "group_norm": F.group_norm(image, 2),
        "batch_norm": F.batch_norm(x.t(), rows, rows, rows, rows),
        "cumsum": x.cumsum(-1),
        "avg_pool": F.avg_pool2d(image, 3),
        "max_pool": F.max_pool2d(image, 3, 3),
        "interpolate": F.interpolate(image, scale_factor=1.7, mode="bilinear"),
        "nll": F.cross_entropy(x, torch.arange(x.shape[0]) % x.shape[1]),
        "scatter_add": x.scatter_add(1, (x * 7).long() % 5, x),
        "index_put": x.index_put((torch.arange(99) % 7,), x[0, :99, None].expand(99, x.shape[1]), accumulate=True),
        "index_add": torch.zeros(7, x.shape[1], dtype=x.dtype).index_add(0, torch.arange(x.shape[0]) % 7, x),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_reductions_are_within_two_units_in_the_last_place(dtype):
    x = torch.randn(40, 330, generator=torch.Generator().manual_seed(3)).to(dtype)
    with torch.no_grad():
        wanted = reductions(x)
    got = compiled(reductions, x)
    assert {name: d for name, want in wanted.items() if (d := ulps(got[name], want)) > 2} == {}


def test_training_has_eagers_bits():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(33, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 5))
    x = torch.randn(9, 33)
    net(x).softmax(-1).square().sum().backward()
    wanted = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    firebrick.reset()
    firebrick.compile(net, options={"numerics": "eager"})(x).softmax(-1).square().sum().backward()
    for p, want in zip(net.parameters(), wanted, strict=True):
        assert ulps(p.grad, want) <= 2
