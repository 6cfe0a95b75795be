"""Calls of torch's and Python's own helpers: settings, TorchScript, warnings, compiled functions, one program each."""

from __future__ import annotations

import collections
import functools
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from naming import Table, X, check_row, check_whole
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import firebrick

TABLE = Table()
row = TABLE.row
Q = torch.arange(64.0).reshape(1, 2, 4, 8) / 64
LINEAR = nn.Linear(3, 3)
KEY = Exception("any object")
attention = nn.functional.scaled_dot_product_attention


# -- TorchScript and old constructors ---------------------------------------------------------


@torch.jit.script_if_tracing
def scripted_if_tracing(x: torch.Tensor, n: int):
    return x * n


SCRIPTED = torch.jit.script(torch.nn.functional.hardtanh)


@row()
def annotate(x):
    rows = torch.jit.annotate(list[torch.Tensor], [])
    rows.append(x + 1)
    return rows


@row()
def script_if_tracing(x):
    return scripted_if_tracing(x + 1, 3)


@row()
def script_function(x):
    return SCRIPTED(x) + 1


@row()
def versions_made(x):
    made = torch.torch_version.TorchVersion("2.3.1")
    return x + 1, made >= (2, 1), made < torch.torch_version.TorchVersion("2.10"), str(made)


@row()
def numpy_wrapped_inside(x):
    return torch.compiler.wrap_numpy(lambda a, b: np.sum(a * b))(x, x + 1)


@row()
def settings_asked_behind_changes(x):
    with torch.autograd.set_multithreading_enabled(False):
        y = x + 1
    with torch.autograd.set_multithreading_enabled(False), torch.autograd.set_multithreading_enabled(True):
        y = y * 2
    torch.backends.cuda.enable_flash_sdp(False)
    off = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(True)
    return y, off, torch.backends.cuda.flash_sdp_enabled()


@row()
def version_of_torch(x):
    version = torch.__version__
    parts = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    return x + 1, version >= (2, 0), version > "1.9", version == "0.1", parts > (1, 9), f"{version}"


@row()
def error_on_graph_break(x):
    with torch._dynamo.error_on_graph_break(True):
        return x + 1


@row(torch.ones(3, requires_grad=True))
def engine_in_one_thread(x):
    with torch.autograd.set_multithreading_enabled(False):
        return (x * 2).sum()


@row()
def annotate_for_an_exporter(x):
    with torch.fx.traceback.annotate({"stage": 0}):
        return x + 1


@row()
def old_constructors(x):
    sizes = torch.FloatTensor(2, 3).zero_() + torch.Tensor(2, 3).fill_(1) + torch.Tensor(x.size()).zero_()
    data = torch.LongTensor([1, 2, 3]), torch.BoolTensor([True, False]), torch.Tensor([x.shape[0]]), torch.LongTensor()
    return x + sizes, data, torch.FloatTensor(x + 1)


@row()
def old_constructor_shares_memory(x):
    y = torch.Tensor(x)
    y.add_(1)
    return x + y


@row()
def type_of_a_tensor(x):
    return (
        x.type(torch.LongTensor),
        x.type(),
        x.type("torch.DoubleTensor"),
        x.type(torch.int32),
        x.type(dtype=torch.int8),
    )


# -- settings ----------------------------------------------------------------------------------


@row(Q)
def kernels_of_attention(q):
    with sdpa_kernel(SDPBackend.MATH):
        y = attention(q, q, q)
    with sdpa_kernel(backends=[SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        return attention(y, q, q)


@row()
def flags_of_backends(x):
    read = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.matmul.allow_tf32
    with torch.backends.cudnn.flags(enabled=False), torch.backends.mkldnn.flags(enabled=False):
        x = x @ x.T
    with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
        return x * 2, read


@row()
def switches_and_back(x):
    torch.set_default_dtype(torch.float64)
    ones = torch.ones(3)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True, warn_only=True)
    known = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    torch.set_float32_matmul_precision(before)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_flash_sdp(True)
    return ones + x, known


@row()
def autocast_set_by_hand(x):
    torch.set_autocast_enabled("cpu", True)
    y = x @ x.T
    torch.set_autocast_enabled("cpu", False)
    return y, x @ x.T


@row()
def autocast_of_every_form(x):
    with torch.cpu.amp.autocast():
        y = x @ x.T
    with torch.amp.autocast("cpu", torch.bfloat16, cache_enabled=False):
        z = x @ x.T
    with torch.autocast(device_type="cuda", dtype=torch.float16):
        return y, z, x @ x.T, torch.is_autocast_cpu_enabled()


# -- Python's own ----------------------------------------------------------------------------------


@row()
def filters_of_warnings(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("ignore", category=UserWarning)
        warnings.warn("quiet", stacklevel=1)
        y = x + 1
    warnings.warn("loud", stacklevel=1)
    return y


class Cached:
    """With a cached method."""

    @functools.lru_cache  # noqa: B019
    def twice(self, n):
        return n * 2


@row(make=lambda: (X.clone(), Cached()))
def cached_method(x, obj):
    return x * obj.twice(3)


@row()
def matches_of_a_pattern(x):
    found = re.finditer(r"(\w+)\.(\d+)", "a.1 b.2")
    return x + sum(int(match.group(2)) for match in found)


@row()
def classes_made_by_calls(x):
    Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024
    Plain = type("Plain", (), {"scale": 3})
    return Pair(x, 1).a * Plain.scale, Pair._fields, Pair.__module__


@row()
def hashes(x):
    return x + (hash(LINEAR) == hash(LINEAR)) + (hash(KEY) == hash(KEY)) + (hash(object) == hash(object))


# -- what was compiled on its own --------------------------------------------------------------------


@firebrick.compile
def compiled_here(x):
    return x * 2


@torch.compile(backend="eager")
def compiled_by_torch(x):
    return x * 2


COMPILED = firebrick.compile(nn.Linear(3, 3))
BY_TORCH = torch.compile(nn.Linear(3, 3), backend="eager")


@row()
def compiled_inside(x):
    return compiled_here(x) + compiled_by_torch(x) + COMPILED(x) + BY_TORCH(x)


@pytest.mark.parametrize("program", TABLE.rows, ids=lambda program: program.name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_row(program: Any) -> None:
    check_row(program)
    check_whole(program)


def test_settings_outlive_the_function_that_made_them() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.set_float32_matmul_precision("high")
        y = x @ x.T
        firebrick.graph_break()
        return y + 1

    before = torch.get_float32_matmul_precision()
    try:
        firebrick.compile(f, backend="eager")(X)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_settings_are_put_back_where_the_graph_raises() -> None:
    def f(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return x[index]

    compiled = firebrick.compile(f, backend="eager")
    with pytest.raises(IndexError):
        compiled(X, torch.tensor([7]))
    assert torch.backends.cuda.flash_sdp_enabled()


def test_a_flag_that_is_read_is_guarded() -> None:
    compiled = firebrick.compile(lambda x: x + torch.backends.cuda.flash_sdp_enabled(), backend="eager")
    first = compiled(X)
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        assert torch.equal(compiled(X), first - 1)
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def test_a_function_of_torch_compile_in_plain_python_stays_with_it() -> None:
    @firebrick.disable
    def plain(x: torch.Tensor) -> torch.Tensor:
        return compiled_by_torch(x)

    compiled = firebrick.compile(lambda x: torch.compile(lambda y: y * 3, backend="eager")(x + 1) + plain(x))
    assert torch.equal(compiled(X), (X + 1) * 3 + X * 2)


def test_a_cached_function_with_effects_runs_in_python() -> None:
    log: list[int] = []

    @functools.lru_cache(None)
    def told(key: object) -> int:
        log.append(1)
        return 3

    key = object()
    compiled = firebrick.compile(lambda x, key: x * told(key), backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(X, key), X * 3)
    assert log == [1]
