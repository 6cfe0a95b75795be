"""Numbers in the CPU's memory beside tensors on a GPU: kernels get them with their arguments, and nothing waits."""

import pytest
import torch
from interpreted import AVAILABLE, Runner
from stand_in import executable, module, slot
from torch._subclasses import FakeTensorMode

from firebrick import host, pipeline
from firebrick.config import Config
from firebrick.targets.by_device import TARGETS
from firebrick.targets.cuda.cuda_target import CudaTarget
from firebrick.targets.cuda.facts import CARDS


@pytest.fixture
def planned(monkeypatch):
    """The stages of a function whose tensors, but for numbers, would lie on a GPU."""
    target = CudaTarget(CARDS[90])
    monkeypatch.setitem(TARGETS, "cuda", lambda config: target)

    def plan(fn, *tensors):
        with FakeTensorMode():
            fakes = [
                torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda" if t.dim() else "cpu")
                for t in tensors
            ]
        graph = torch.fx.symbolic_trace(fn)
        made = pipeline.inspect_graph(graph, fakes, Config())
        table = host.generate(made.schedule, {"cuda": target, "cpu": TARGETS["cpu"](Config())}, Config()).table
        kernels = {k.name: k for k in made.schedule.kernels}
        taken = [[p.dtype for p in kernels[s[1]].params if p.number] for s in table["steps"] if s[0] == "kernel"]
        return made, target, table["steps"], taken

    return plan


def test_a_number_is_an_argument(planned):
    made, target, steps, taken = planned(
        lambda x, a, n: x * a + n, torch.ones(40, 50), torch.tensor(1.5), torch.tensor(3)
    )
    assert [s[0] for s in steps if s[0] == "call"] == []
    assert sorted(taken[0]) == ["f32", "i64"]
    (kernel,) = made.schedule.kernels
    assert "tl.load" in target.kernel(kernel)
    assert any(flags.flags[3].count(":fp32") == 1 for flags in target.units(made.schedule, Config()))


def test_what_a_cpu_computes_of_it_stays_there(planned):
    made, _, steps, taken = planned(
        lambda x, s: x * (1 - 0.9 ** (s.double() + 1)).sqrt(), torch.ones(40), torch.tensor(2.0)
    )
    assert [k.device for k in made.schedule.kernels] == ["cpu", "cuda"]
    assert taken == [[], ["f64"]]
    assert [s[4] for s in steps if s[0] == "kernel"] == ["cpu", "cuda:0"]


def test_elements_of_vectors_and_other_types_are_moved(planned):
    half = torch.tensor(2.0, dtype=torch.float16)
    _, _, steps, taken = planned(lambda x, h: x * h, torch.ones(40), half)
    assert [s[1] for s in steps if s[0] == "call"] == ["aten::_to_copy"]
    assert taken == [[]]


@pytest.mark.skipif(not AVAILABLE, reason="no triton")
def test_kernels_compute_with_it(planned):
    x, a = torch.randn(40, 50), torch.tensor(1.5)
    made, target, *_ = planned(lambda x, a: (x * a).softmax(-1) + a, x, a)

    run = Runner(made.schedule, [target.kernel(k) for k in made.schedule.kernels])
    torch.testing.assert_close(run([x, a], {})[0], (x * a).softmax(-1) + a)


def test_the_launch_takes_its_value(driver, log):
    table = {
        "slots": [slot("input", 4), ["input", "i64", [], [], 0, "cpu"], slot("fresh", 4)],
        "views": [[2, [4], [1], 0, None]],
        "steps": [["alloc", [2]], ["kernel", "k", [0, 2, 1], [], "cuda:0", [1], [2]]],
        "outputs": [["t", 0]],
    }
    run = executable(table, k=module("add"))
    for n in (4, 2):
        x = torch.randn(4)
        made = run(x, torch.tensor([0, n])[1])[0]  # at an odd place, too
        torch.testing.assert_close(made[:n], x[:n] + 1)
    assert [line.split()[0] for line in log()] == ["launch", "launch"]
