"""Dropout in kernels of our own draws what eager's kernel draws on a card, bit by bit."""

import ctypes
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from interpreted import AVAILABLE, Runner
from stand_in import executable, module, slot
from test_recorded_programs import Recording, asked
from torch._subclasses import FakeTensorMode

from firebrick import host, pipeline
from firebrick.config import Config
from firebrick.runtime.cuda_graphs import recorder_of
from firebrick.runtime.load import resolve
from firebrick.runtime.triton_build import build_cubins
from firebrick.targets.by_device import TARGETS
from firebrick.targets.cuda.cuda_target import CudaTarget
from firebrick.targets.cuda.facts import CARDS

needs_triton = pytest.mark.skipif(not AVAILABLE, reason="no triton")
BLOCKS = 8
"""Of a card so small that few elements make its threads draw more than once."""
SEED, OFFSET = (3 << 40) + 12345, 4 * 7


def philox(seed, draw, thread):
    """Philox4x32-10 as curand numbers it: the words of a draw of a thread."""
    c = [np.uint64(x) * np.ones_like(thread, np.uint64) for x in (0, 0, 0, 0)]
    c[0], c[1], c[2] = draw & 0xFFFFFFFF, draw >> np.uint64(32), thread
    k = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> np.uint64(32)) ^ c[1] ^ k[0], b & low, (a >> np.uint64(32)) ^ c[3] ^ k[1], a & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(c, -1)


def eager_keeps(n, p, size, offset=OFFSET, seed=SEED, address=0):
    """What eager's kernel keeps of n elements of `size` bytes: `bench/GPU.md`, "Dropout's numbers"."""
    together = 16 // size
    while together > 1 and (address % (together * size) or n % together):
        together //= 2
    threads = 256 * min(BLOCKS, -(-n // 256))
    e = np.arange(n, dtype=np.uint64)
    if together == 1:
        thread, draw, word = e % threads, e // threads // 4, e // threads % 4
    else:
        part = e // together
        thread, word = part % threads, e % together % 4
        draw = part // threads * max(1, together // 4) + e % together // 4
    words = np.take_along_axis(philox(seed, draw + np.uint64(offset // 4), thread), word[:, None].astype(int), 1)[:, 0]
    u = words.astype(np.float32) * np.float32(2**-32) + np.float32(2**-33)
    return torch.from_numpy(u < np.float32(1 - p)), 4 * ((n - 1) // (4 * threads) + 1)


def eager(x, p, **state):
    keep, _ = eager_keeps(x.numel(), p, x.element_size(), **state)
    keep = keep.reshape(x.shape)
    scale = torch.tensor(1.0) / torch.tensor(1 - p, dtype=torch.float32)
    return (x.float() * keep * scale).to(x.dtype), keep


class State:
    """A generator, which our kernels and the library's draw from."""

    def __init__(self):
        self.offset, self.address, self.memory, self.taken = OFFSET, 0, None, []

    def __call__(self, x, size, count, blocks, device):
        assert (blocks, device) == (BLOCKS, 0)
        together = 16 // size
        while together > 1 and (self.address % (together * size) or count % together):
            together //= 2
        threads = 256 * min(blocks, -(-count // 256))
        state = SEED, self.offset, -1
        if self.memory is not None:
            self.memory[:] = torch.tensor([SEED, self.offset - 8])
            state = self.memory.data_ptr(), self.memory.data_ptr() + 8, 8
        self.taken.append(x is not None)
        self.offset += 4 * ((count - 1) // (4 * threads) + 1)
        return tuple(torch.tensor(n) for n in (*state, together, threads))


@pytest.fixture
def state():
    library, made = torch.library.Library("firebrick", "IMPL"), State()
    library.impl("draw", made, "CompositeExplicitAutograd")
    yield made
    library._destroy()


@pytest.fixture
def planned(monkeypatch):
    target = CudaTarget(CARDS[90], draws=BLOCKS)
    monkeypatch.setitem(TARGETS, "cuda", lambda config: target)

    def plan(fn, *tensors, dynamic=False):
        with FakeTensorMode():
            fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in tensors]
        made = pipeline.inspect_graph(torch.fx.symbolic_trace(fn), fakes, Config())
        return made.schedule, target

    return plan


def run(planned, fn, *tensors):
    schedule, target = planned(fn, *tensors)
    return Runner(schedule, [target.kernel(k) for k in schedule.kernels])(tensors, {}), schedule


SHAPES = [(40, 64), (3, 7, 5), (6, 11), (2, 2, 9000), (1,), (4, 4098)]


@needs_triton
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_results_and_masks_are_eagers(shape, dtype, planned, state):
    x = torch.randn(shape).to(dtype)
    (y, mask), schedule = run(planned, lambda x: torch.ops.aten.native_dropout(x, 0.3, True), x)
    want, keep = eager(x, 0.3)
    assert torch.equal(mask, keep)
    assert torch.equal(y, want)
    assert [s.op for s in schedule.steps if hasattr(s, "op")] == ["firebrick::draw"]
    assert state.offset == OFFSET + eager_keeps(x.numel(), 0.3, x.element_size())[1]


@needs_triton
@pytest.mark.parametrize("memory", [False, True])
def test_neighbours_are_in_its_kernel(memory, planned, state):
    state.memory = torch.zeros(2, dtype=torch.int64) if memory else None
    x, r, w = torch.randn(33, 96), torch.randn(33, 96), torch.randn(96)
    (y,), schedule = run(planned, lambda x, r, w: F.dropout(torch.tanh(x), 0.1, True) * w + r, x, r, w)
    assert torch.equal(y, eager(torch.tanh(x), 0.1)[0] * w + r)
    assert len(schedule.kernels) == 1
    (y,), schedule = run(planned, lambda x, r, w: F.layer_norm(F.dropout(x + w, 0.1, True) + r, (96,)), x, r, w)
    offset = state.offset - 4
    torch.testing.assert_close(y, F.layer_norm(eager(x + w, 0.1, offset=offset)[0] + r, (96,)))
    assert len(schedule.kernels) == 1


@needs_triton
def test_one_draw_has_four_elements(planned):
    schedule, target = planned(lambda x, r: F.dropout(x, 0.1, True) + r, *[torch.randn(64, 768)] * 2)
    (kernel,) = schedule.kernels
    assert target.kernel(kernel).count("draw_four(") == 1


@needs_triton
def test_elements_in_another_order(planned, state):
    x, r = torch.randn(40, 66), torch.randn(66, 40)
    (y,), schedule = run(planned, lambda x, r: (F.dropout(x * 2, 0.5, True).t() + r).relu(), x, r)
    assert torch.equal(y, (eager(x * 2, 0.5)[0].t() + r).relu())
    assert len(schedule.kernels) == 1


@needs_triton
@pytest.mark.parametrize("bytes_off", [4, 8, 16])
def test_memory_that_begins_at_odd_places(bytes_off, planned, state):
    """There eager reads fewer elements at once, which numbers its threads otherwise."""
    x, state.address = torch.randn(8192), bytes_off
    (y,), _ = run(planned, lambda x: F.dropout(x, 0.5, True), x)
    assert state.taken == [True]
    assert torch.equal(y, eager(x, 0.5, address=bytes_off)[0])


@needs_triton
def test_the_order_among_other_calls_stays(planned, state):
    def fn(x):
        return F.dropout(x, 0.5, True) + torch.rand_like(x) + F.dropout(x * 2, 0.5, True)

    schedule, _ = planned(fn, torch.randn(64, 64))
    calls = [s.op.partition(".")[0] for s in schedule.steps if hasattr(s, "op")]
    assert calls == ["firebrick::draw", "aten::rand_like", "firebrick::draw"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_stays_with_the_library(dtype, planned):
    """Elements that don't lie one after the other, and float64, whose numbers eager compares otherwise."""
    x = torch.randn(64, 32, dtype=dtype)
    schedule, _ = planned(lambda x: F.dropout(x, 0.5, True), x if dtype == torch.float64 else x.t())
    assert [s.op.partition(".")[0] for s in schedule.steps if hasattr(s, "op")] == ["aten::native_dropout"]


# ---- the host program, on a driver that stands in for a card

NUMBER = ["call", "i64", [], [], 0, "cpu"]


def draw(first, count, view=None, blocks=2):
    outs = [first + k for k in range(5)]
    args = [["n"] if view is None else ["t", view], ["i", 4], ["i", count], ["i", blocks], ["i", 0]]
    types = ["T?", "i", "i", "i", "i"]
    return [
        ["call", "firebrick::draw", args, types, 5, [], outs, False, True],
        ["kernel", "k", [*outs, first + 5], [], "cuda:0", [1], [0, 1, 2, 3, 4]],
    ]


def two_draws(view=None):
    """Of an input of 1,001 elements, 4,100 and then 2 of them: each result is what its kernel was given."""
    slots = [["input", "f32", [1001], [1], 0, "cpu"], *[NUMBER] * 5, slot("fresh", 4), *[NUMBER] * 5, slot("fresh", 4)]
    steps = [["alloc", [6, 12]], *draw(1, 4100, view), *draw(7, 2, view)]
    views = [[0, [1001], [1], 0, None], [6, [4], [1], 0, None], [12, [4], [1], 0, None]]
    return {"slots": slots, "views": views, "steps": steps, "outputs": [["t", 1], ["t", 2]]}


def seen(results):
    return [y.int().tolist() for y in results]


def test_a_call_takes_what_eager_would(driver, log):
    run = executable(two_draws(), k=module("state"))
    driver.fake_offset(40)
    x = torch.randn(1001)
    assert seen(run(x)) == [[7, 40, 4, 512], [7, 52, 2, 256]]
    assert seen(run(x)) == [[7, 56, 4, 512], [7, 68, 2, 256]]


def test_torch_is_asked_by_python_outside_of_captures(driver, log, monkeypatch):
    """What it throws from C++, as while another thread captures, would end the process."""

    class Generator:
        offset, broken = 40, False

        def initial_seed(self):
            return 9

        def get_offset(self):
            if self.broken:
                raise RuntimeError("while a stream captures")
            return self.offset

        def set_offset(self, offset):
            self.offset = offset

    made = Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", (made,))
    run = executable(two_draws(), k=module("state"))
    x = torch.randn(1001)
    assert seen(run(x)) == [[9, 40, 4, 512], [9, 52, 2, 256]]
    assert made.offset == 56
    made.broken = True
    with pytest.raises(RuntimeError, match="while a stream captures"):
        run(x)
    assert made.offset == 56


def test_an_input_at_an_odd_place(driver, log):
    run = executable(two_draws(0), Recording(driver, session=object()), True, k=module("state"))
    driver.fake_offset(0)
    room = torch.randn(1010)
    for first, together in ((0, 4), (2, 2), (1, 1), (4, 4), (1, 1)):
        made = seen(run(room[first : first + 1001]))
        assert [m[2] for m in made] == [together, min(together, 2)]
    assert "graph" not in log()


def test_replays_go_on_with_new_numbers(driver, log):
    class Session:
        graph = None

        def replay(self):
            driver.fake_replay(ctypes.c_void_p(self.graph))

    recording = Recording(driver, session=Session())
    run = executable(two_draws(), recording, True, k=module("state"))
    driver.fake_offset(0)
    x = torch.randn(1001)
    made = [run(x) for _ in range(6)]
    assert recording.said == ["recorded"]
    assert [seen(m) for m in made] == [[[7, 16 * k, 4, 512], [7, 16 * k + 12, 2, 256]] for k in range(6)]
    assert asked(driver, log, run, x)[1] == ["set kernel", "set kernel", "graph"]


def test_a_users_graph_goes_on_with_new_numbers(driver, log):
    run = executable(two_draws(), k=module("state"))
    driver.fake_offset(8)
    driver.fake_begin()
    made = run(torch.randn(1001))
    graph = driver.fake_end()
    for k in range(3):
        driver.fake_replay(ctypes.c_void_p(graph))
        assert seen(made) == [[7, 8 + 16 * k, 4, 512], [7, 20 + 16 * k, 2, 256]]


def test_programs_that_draw_are_recorded_by_torch(planned):
    x = torch.randn(64, 768)
    schedule, target = planned(lambda x, r: (F.dropout(x, 0.1, True) + r).softmax(-1) @ r.t(), x, x)
    table = host.generate(schedule, {"cuda": target, "cpu": TARGETS["cpu"](Config())}, Config()).table
    made = recorder_of("g", table, resolve, True)
    assert made is not None
    assert made.random


PTX = """
import importlib.util, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
spec = importlib.util.spec_from_file_location("kernels", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
kinds = dict(item.split(":") for item in sys.argv[3].split(","))
source = ASTSource(fn=getattr(module, sys.argv[2]), signature=kinds, constexprs={}, attrs={})
print(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"])
"""


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("shape", [(64, 768), (2, 50257), (7, 9)], ids=str)
def test_no_load_clears_its_own_address(shape, planned, tmp_path):
    """Triton's load sets its result's register first, which may be the one that the address is in."""
    x = torch.randn(shape)
    schedule, target = planned(lambda x, r: F.dropout(x, 0.1, True) * 3 + F.dropout(r * 2, 0.5, True), x, x)
    (unit,) = target.units(schedule, Config())
    path, env = tmp_path / "kernels.py", {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    path.write_text(unit.text)
    command = [sys.executable, "-c", PTX, str(path), *unit.flags[2:4]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    load = r"mov\.u64 (%rd\d+), (\S+);\s+(?:@%p\d+ )?ld\.global\.b64 \{ (%rd\d+) \}, \[ (%rd\d+) "
    loads = re.findall(load, done.stdout)
    assert len(loads) >= 4
    for cleared, value, result, address in loads:
        assert cleared == result
        assert value == address or result != address


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
def test_kernels_are_built(arch, planned, tmp_path):
    for shape, fn in (
        ((64, 768), lambda x, r: torch.ops.aten.native_dropout(x + r, 0.1, True)),
        ((7, 9), lambda x, r: F.layer_norm(F.dropout(x, 0.1, True) + r, (9,))),
    ):
        schedule, _ = planned(fn, *[torch.randn(shape).bfloat16()] * 2)
        units = CudaTarget(CARDS[arch], draws=BLOCKS).units(schedule, Config())
        assert len(build_cubins(units, tmp_path, 1, 120)) == len(units)
