"""What a GPU can't do ends in torch's own error or in one that says where; nothing is wrong in silence."""

import importlib

import pytest
import torch
from interpreted import AVAILABLE
from stand_in import executable, module, slot
from torch._subclasses import FakeTensorMode

from firebrick import host, pipeline
from firebrick.artifact import Unit
from firebrick.config import Config
from firebrick.errors import CompileError
from firebrick.runtime import triton_build
from firebrick.targets.by_device import TARGETS
from firebrick.targets.cuda.cuda_target import CudaTarget
from firebrick.targets.cuda.facts import CARDS

load = importlib.import_module("firebrick.runtime.load")

ADD = {
    "slots": [slot("input", 4), slot("fresh", 4)],
    "views": [[1, [4], [1], 0, None]],
    "steps": [["alloc", [1]], ["kernel", "k", [0, 1], [4], "cuda:0", [1]]],
    "outputs": [["t", 0]],
}
UNIT = Unit(
    "cuda_k", "import triton\n\n@triton.jit\ndef map(a0):\n    pass\n", ("k",), ("90", "4", "map", "a0:*fp32"), "triton"
)


def artifact(fn, *shapes, device="cuda"):
    """What a function of tensors on a GPU is generated as."""
    target = CudaTarget(CARDS[90])
    with FakeTensorMode():
        fakes = [torch.empty(s, device=device) for s in shapes]
    made = pipeline.inspect_graph(torch.fx.symbolic_trace(fn), fakes, Config())
    return host.generate(made.schedule, {"cuda": target, "cpu": TARGETS["cpu"](Config())}, Config()), made, target


@pytest.fixture
def card(monkeypatch):
    monkeypatch.setitem(TARGETS, "cuda", lambda config: CudaTarget(CARDS[90]))


def huge(kind):
    table = {**ADD, "slots": [slot("input", [0]), slot(kind, [1])], "registers": [["s", 0, 0], ["*", [0], 1 << 50]]}
    return {**table, "views": [[1, [[1]], [1], 0, None]], "arena": [[1] if kind == "scratch" else 0, "cpu"]}


def test_memory_that_there_is_not(driver, log, monkeypatch):
    run = executable(huge("fresh"), k=module("add"))
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        run(torch.randn(4))

    def storage(size, device):
        raise torch.OutOfMemoryError(f"no {size} bytes on {device}")

    monkeypatch.setattr(torch, "UntypedStorage", storage)
    with pytest.raises(torch.OutOfMemoryError, match=r"no \d{16,} bytes on cpu:0"):
        run(torch.randn(4))
    assert log() == []


def test_a_kernel_that_fails_is_named(driver, log):
    run = executable(ADD, k=module("add"), labels=["map t.py:3"])
    driver.fake_fail(700)
    with pytest.raises(RuntimeError, match=r"CUDA error: no such thing \(launch\), at map t.py:3"):
        run(torch.randn(4))
    driver.fake_fail(0)
    run(torch.randn(4))


def test_each_gpu_runs_its_kernels_in_its_own_context(driver, log):
    steps = [["alloc", [1]], ["kernel", "k", [0, 1], [4], "cuda:0", [1]], ["kernel", "t", [1], [], "cuda:1", [1]]]
    run = executable({**ADD, "steps": [*steps, steps[1]]}, k=module("add"), t=module("twice", device=1))
    run(torch.randn(4))
    assert driver.fake_contexts() == b"121"


def test_empty_tensors_at_odd_places(driver, log):
    table = {**ADD, "slots": [slot("input", [0]), slot("fresh", [0])], "registers": [["s", 0, 0]]}
    table["steps"] = [["alloc", [1]], ["kernel", "k", [0, 1], [[0]], "cuda:0", [1]]]
    run = executable({**table, "views": [[1, [[0]], [1], 0, None]]}, k=module("add"))
    x = torch.randn(5)
    assert run(x[1:1])[0].shape == (0,)


def test_kernels_are_loaded_on_each_gpu(card, monkeypatch):
    made, *_ = artifact(lambda x: x + 1, (40, 50))
    rows = [[*row[:5], device] for row, device in zip(made.table["slots"], ("cuda:0", "cuda:1"), strict=True)]
    (step,) = [s for s in made.table["steps"] if s[0] == "kernel"]
    table = {**made.table, "slots": rows, "steps": [step, [*step[:4], "cuda:1", *step[5:]]]}
    loaded, seen = [], {}

    class Module:
        def kernel(self):
            return len(loaded)

    def cuda_module(code, device):
        loaded.append(device)
        return Module()

    monkeypatch.setattr(load, "cuda_module", cuda_module)
    monkeypatch.setattr(load, "_open_driver", lambda: None)
    monkeypatch.setattr(load._native, "Executable", lambda **given: seen.update(given))
    both = type(made)(**{**vars_of(made), "table": table}).with_code({u.name: b"" for u in made.units})
    load.load(both, {})
    assert loaded == [0, 1]
    assert [seen["kernels"][s[1]] for s in seen["table"]["steps"]] == [1, 2]


def vars_of(made):
    return {name: getattr(made, name) for name in made.__dataclass_fields__}


def test_without_a_driver(card, monkeypatch):
    def none():
        raise OSError("no CUDA driver: libcuda.so.1")

    made, *_ = artifact(lambda x: x + 1, (40, 50))
    monkeypatch.setattr(load, "_open_driver", none)
    with pytest.raises(CompileError, match="needs a GPU: no CUDA driver"):
        load.load(made, {})


def test_without_triton(tmp_path, monkeypatch):
    monkeypatch.setattr(triton_build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CompileError, match="need Triton") as raised:
        triton_build.build_cubins([UNIT], tmp_path, 1, 60)
    assert raised.value.fix == "pip install triton"


@pytest.mark.skipif(not AVAILABLE, reason="no triton")
def test_no_toolkit_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(triton_build, "_idle", [])
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH", "TRITON_PTXAS_PATH"):
        monkeypatch.delenv(name, raising=False)
    head, cubin = triton_build.open_cubin(triton_build.build_cubins([UNIT], tmp_path, 1, 60)["cuda_k"])
    assert head["threads"] == 128
    assert cubin[:4] == b"\x7fELF"
    text = UNIT.text.replace("pass", "tl_missing.load(a0)")
    with pytest.raises(CompileError, match=r"Triton refused k: (.|\n)*tl_missing"):
        triton_build.build_cubins(
            [Unit("cuda_k", text, *[getattr(UNIT, n) for n in ("kernels", "flags", "builder")])], tmp_path, 1, 60
        )


@pytest.mark.parametrize(("rows", "wide"), [(1 << 15, False), (1 << 17, True)])
def test_sizes_beyond_32_bits(card, rows, wide):
    _, made, target = artifact(lambda x: (x + 1).relu(), (rows, 1 << 15))
    (kernel,) = made.schedule.kernels
    assert ("tl.int64" in target.kernel(kernel)) == wide


def test_tensors_on_two_gpus_are_eagers_error(card):
    with FakeTensorMode():
        x, y = (torch.empty(4, device=f"cuda:{k}") for k in range(2))
    graph = torch.fx.symbolic_trace(lambda x, y: x + y)
    with pytest.raises(Exception, match="two different devices|same device"):
        pipeline.inspect_graph(graph, [x, y], Config())
