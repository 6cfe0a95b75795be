"""Our fake tensor mode says what PyTorch's kernels do: shapes, strides and dtypes, over torch's op samples."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from firebrick.fakes.mode import new_fake_mode
from firebrick.fakes.promotion import promote
from firebrick.fakes.shape_rules import _POINTWISE, RULES, NoRule, Spec, find_rule
from firebrick.fakes.strides import contiguous

SAMPLES = 1
NAMES = {f._opname for f in RULES} | set(_POINTWISE)
NAMES |= {
    "adaptive_avg_pool2d",
    "softmax",
    "log_softmax",
    "conv2d",
    "__getitem__",
    "max_pool2d",
    "interpolate",
    "linear",
}
NAMES |= {"scaled_dot_product_attention", "layer_norm", "batch_norm", "group_norm", "matmul", "pad", "var_mean"}
"""OpInfo names under which the ops with rules are tried."""
ASKED = {"_safe_softmax", "upsample_bicubic2d", "upsample_nearest2d", "_adaptive_avg_pool2d"}
"""Rules that no sample need reach: their ops run below others."""


class Compare(TorchDispatchMode):
    """Asks the rule of each op that runs, and compares its answer with the real result."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: dict[Any, int] = {}
        self.wrong: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = find_rule(func)
        specs = None
        if rule is not None:
            try:
                specs = rule(*args, **kwargs)
            except (NoRule, TypeError):
                specs = None
        before = tuple(args[0].shape) if args and isinstance(args[0], torch.Tensor) else ()
        result = func(*args, **kwargs)
        if specs is None:
            return result
        self.answered[func] = self.answered.get(func, 0) + 1
        if func._schema.is_mutable:
            if specs.shape != before:
                self.wrong.append(f"{func} changes {before} to {specs.shape}")
            return result
        pairs = [(specs, result)] if isinstance(specs, Spec) else list(zip(specs, result, strict=True))
        for spec, real in pairs:
            if spec is None or real is None:
                if spec is not real:
                    self.wrong.append(f"{func}{shapes(args)}: {spec} is {real}")
                continue
            strides = spec.strides if spec.strides is not None else contiguous(spec.shape)
            if (spec.shape, spec.dtype) != (tuple(real.shape), real.dtype):
                self.wrong.append(f"{func}{shapes(args)}: {spec} is {tuple(real.shape)} {real.dtype}")
            elif not same_strides(spec.shape, strides, real.stride()):
                self.wrong.append(f"{func}{shapes(args)}: strides {strides} are {real.stride()}")
        return result


def same_strides(shape: Any, a: Any, b: Any) -> bool:
    if 0 in shape:
        return True
    return all(x == y for n, x, y in zip(shape, a, b, strict=True) if n != 1)


def shapes(args: Any) -> str:
    return str([(tuple(a.shape), a.stride(), a.dtype) if isinstance(a, torch.Tensor) else a for a in args])


def layouts(tensor: Any) -> list[Any]:
    """The tensor as it is, transposed in memory, and with gaps."""
    if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2:
        return [tensor]
    turned = tensor.transpose(0, 1).contiguous().transpose(0, 1)
    gaps = torch.stack([tensor, tensor], -1)[..., 0]
    return [tensor, turned, gaps]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_rules_agree_with_the_kernels() -> None:
    compare = Compare()
    for info in op_db:
        if torch.float32 not in info.dtypes or not NAMES & {info.name, info.aten_name, info.name.rpartition(".")[2]}:
            continue
        for i, sample in enumerate(info.sample_inputs("cpu", torch.float32, requires_grad=False)):
            if i >= SAMPLES or (isinstance(sample.input, torch.Tensor) and sample.input.layout != torch.strided):
                break
            for first in layouts(sample.input):
                with torch.no_grad(), compare:
                    try:
                        info(first, *sample.args, **sample.kwargs)
                    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
                        continue
    image, heads, whole = torch.randn(1, 2, 8, 8), torch.randn(1, 2, 8, 4), torch.arange(6).view(2, 3)
    with torch.no_grad(), compare:
        _ = whole << whole, whole >> 1
        image.index_select(1, torch.tensor([1]))
        image.clone().lerp_(image, 0.1)
        F.max_pool2d(image, 2)
        F.avg_pool2d(image, 3, 2, 1)
        F.scaled_dot_product_attention(heads, heads, heads)
        rows = torch.randn(2, 3, 4)
        weights = torch.randn(12, 4), torch.randn(12), torch.randn(4, 4), torch.randn(4)
        for asked, average in ((True, True), (True, False), (False, True)):
            torch._native_multi_head_attention(rows, rows, rows, 4, 2, *weights, None, asked, average)
        torch.ops.aten.select_backward(rows[:, 0], [2, 3, 4], 1, 0)
        torch.ops.aten.slice_backward(rows[:, 1:], [2, 3, 4], 1, 1, 3, 1)
        torch.ops.aten.diagonal_backward(rows.diagonal(0, 1, 2), [2, 3, 4], 0, 1, 2)
        torch.ops.aten._unsafe_index.Tensor(image, [None, None, torch.tensor([[1], [0]]), torch.tensor([2, 1])])
    assert not compare.wrong, "\n".join(sorted(set(compare.wrong))[:20])
    unasked = {f._opname for f in RULES} - {f._opname for f in compare.answered} - ASKED
    assert not unasked


NUMBERS = [
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


@pytest.mark.parametrize("a", NUMBERS, ids=str)
def test_promotion(a: torch.dtype) -> None:
    for x in (torch.zeros(2, dtype=a), torch.zeros((), dtype=a)):
        for other in (*(torch.zeros(s, dtype=b) for b in NUMBERS for s in ((2,), ())), True, 3, 2.5):
            assert promote([x, other]) == torch.result_type(x, other)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, 3),
        lambda: torch.ones((4,), dtype=torch.int32),
        lambda: torch.rand(2),
        lambda: torch.randint(3, (2, 2)),
        lambda: torch.randint(1, 3, (2, 2)),
        lambda: torch.full((2,), 3),
        lambda: torch.full((2,), 3.0),
        lambda: torch.full((2,), True),
        lambda: torch.arange(5),
        lambda: torch.arange(1, 5.0),
        lambda: torch.arange(1, 6, 2),
        lambda: torch.arange(5, -1, -2, dtype=torch.float64),
        lambda: torch.arange(0, 1, 0.3),
        lambda: torch.arange(3, 3),
        lambda: torch.linspace(0, 1, 5),
    ],
)
def test_constructors(make: Any) -> None:
    with new_fake_mode():
        fake = make()
    real = make()
    assert (fake.shape, fake.dtype, fake.stride(), fake.device) == (real.shape, real.dtype, real.stride(), real.device)


def test_mode_has_the_attributes_of_torch() -> None:
    ours, theirs = new_fake_mode(), FakeTensorMode()
    assert vars(theirs).keys() <= vars(ours).keys()


@pytest.mark.parametrize("grad", [False, True])
def test_mode_follows_views_writes_and_gradients(grad: bool) -> None:
    mode = new_fake_mode()
    weight = nn.Parameter(torch.randn(4, 3))
    with mode, torch.set_grad_enabled(grad):
        w = mode.from_tensor(weight)
        assert isinstance(w, nn.Parameter)
        assert mode.from_tensor(weight) is w
        y = (w * 2).t()[1:]
        assert (tuple(y.shape), y.stride(), y.storage_offset(), y.requires_grad) == ((2, 4), (1, 3), 1, grad)
        base = torch.zeros(6)
        version = base._version
        base.view(2, 3)[0].add_(1)
        assert base._version > version
        assert torch.tensor(3).item() == 3
        assert base.t_().shape == (6,)
        with pytest.raises(RuntimeError):
            base + torch.zeros(5)


def test_mode_starts_and_traces_without_the_peers() -> None:
    program = """
import sys, torch
from firebrick.fakes.mode import new_fake_mode
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention as attention
mode = new_fake_mode()
with mode, torch.no_grad():
    x, w = torch.randn(2, 4, 8, 16), torch.randn(16, 16)
    y = gelu(linear(attention(x, x, x), w)).transpose(1, 2).reshape(2, 8, -1)
    z = layer_norm(y, (64,)).softmax(-1) + torch.cat([y[..., 32:], -y[..., :32]], -1)
    z = z.to(torch.bfloat16).float() + torch.ones(64)
    z[:, 0] = 1.0
found = {"torch._dynamo", "torch._inductor", "sympy"} & sys.modules.keys()
assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def convolution_samples() -> Any:
    """(input, weight, arguments after the bias) of convolutions of each rank, layout and library."""
    turned = {4: torch.channels_last, 5: torch.channels_last_3d}
    for rank, batch, groups, dtype in itertools.product((3, 4, 5), (0, 2), (1, 4), (torch.float32, torch.bfloat16)):
        space = rank - 2
        for transposed, window, stride in itertools.product((False, True), (1, 3), (1, 2)):
            x = torch.randn(batch, 8, *[7] * space).to(dtype)
            w = torch.randn(8, 8 // groups, *[window] * space).to(dtype)
            rest = ([stride] * space, [window // 2] * space, [1] * space, transposed, [0] * space, groups)
            yield x, w, rest
            if batch and rank in turned:
                yield x.contiguous(memory_format=turned[rank]), w, rest
                yield x, w.contiguous(memory_format=turned[rank]), rest
            elif batch:
                yield x.transpose(1, 2).contiguous().transpose(1, 2), w, rest


def metadata(tensors: Any) -> list[Any]:
    return [None if t is None else (tuple(t.shape), t.stride() if t.numel() else 0, t.dtype) for t in tensors]


def test_convolutions_lie_as_those_of_eager() -> None:
    convolution, wrong = torch.ops.aten.convolution.default, []
    for x, w, rest in convolution_samples():
        mode = new_fake_mode()
        fake_x, fake_w = mode.from_tensor(x), mode.from_tensor(w)
        with mode:
            found = convolution(fake_x, fake_w, None, *rest)
        if metadata([found]) != metadata([convolution(x, w, None, *rest)]):
            wrong.append((x.shape, x.stride(), w.shape, w.stride(), rest))
    assert not wrong, (len(wrong), wrong[:4])


def test_gradients_of_convolutions_lie_as_pytorch_says() -> None:
    backward, wrong = torch.ops.aten.convolution_backward.default, []
    for x, w, rest in convolution_samples():
        out = torch.ops.aten.convolution.default(x, w, None, *rest)
        answers = []
        for mode in (new_fake_mode(), FakeTensorMode()):
            fakes = [mode.from_tensor(t) for t in (out, x, w)]
            with mode:
                answers.append(metadata(backward(*fakes, [8], *rest, [True, True, bool(x.numel())])))
        if answers[0] != answers[1]:
            wrong.append((x.shape, x.stride(), w.shape, w.stride(), rest, answers))
    assert not wrong, (len(wrong), wrong[:2])


@pytest.mark.parametrize("channels", [1, 8])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.max_pool2d(x, 2, return_indices=True),
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda x: torch.cat([x, x.relu()], 1),
        lambda x: torch.cat([x, x[:, :, :2]], 2),
        lambda x: torch.cat([x, x.contiguous()]),
        lambda x: torch.cat([x.contiguous(), x, x.transpose(0, 1).contiguous().transpose(0, 1)]),
    ],
)
def test_images_keep_their_layout(call: Any, channels: int) -> None:
    image = torch.randn(2, channels, 8, 6).contiguous(memory_format=torch.channels_last)
    for x in (image, image[:1], image.contiguous(), image.transpose(2, 3)):
        mode = new_fake_mode()
        fake = mode.from_tensor(x)
        with mode:
            found = call(fake)
        wanted = call(x)
        pairs = [(found, wanted)] if isinstance(found, torch.Tensor) else list(zip(found, wanted, strict=True))
        assert all(a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype for a, b in pairs)


def test_lookups_lie_as_in_eager_mode() -> None:
    """Results of integer indices next to each other, of tensors and indices in any order."""
    sizes = [(2, 3, 4), (1, 3, 4), (1, 4, 4, 1), (2, 1, 3, 2), (1, 2, 1, 3, 1)]
    one, row, column, matrix = (torch.zeros(n, dtype=torch.int64) for n in ((), (2,), (3, 1), (2, 3)))
    indices = [(one,), (row,), (column,), (matrix.t(),), (row, column), (column, matrix.t()), (matrix, one)]
    mode, wrong = new_fake_mode(), []
    for size in sizes:
        for order in itertools.permutations(range(len(size))):
            x = torch.randn([size[d] for d in order]).permute([order.index(d) for d in range(len(size))])
            for start, given in itertools.product(range(len(size) - 1), indices):
                wanted = torch.ops.aten.index.Tensor(x, [None] * start + [*given])
                fake, places = mode.from_tensor(x), [mode.from_tensor(t) for t in given]
                with mode:
                    found = torch.ops.aten.index.Tensor(fake, [None] * start + places)
                if (found.shape, found.stride()) != (wanted.shape, wanted.stride()):
                    wrong.append((x.shape, x.stride(), start, [t.shape for t in given]))
    assert not wrong, (len(wrong), wrong[:2])


def test_networks_compile_without_the_peers() -> None:
    program = """
import sys, torch, firebrick
from torch import nn
network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
    nn.ConvTranspose2d(8, 4, 2, 2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
with torch.no_grad():
    firebrick.compile(network.eval())(torch.randn(2, 3, 16, 16))
    packed = nn.Sequential(nn.Conv2d(8, 48, 3), nn.BatchNorm2d(48), nn.Conv2d(48, 64, 1),
        nn.Upsample(scale_factor=2, mode="bilinear"))
    firebrick.compile(packed.eval())(torch.randn(1, 8, 34, 34))
    firebrick.compile(nn.LSTM(8, 8).eval())(torch.randn(2, 4, 8))
    firebrick.compile(lambda t: torch.stack([t, t.new_zeros(4), torch.ones_like(t)]).softmax(0))(torch.randn(4))
found = {"torch._dynamo", "torch._inductor", "sympy"} & sys.modules.keys()
assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
