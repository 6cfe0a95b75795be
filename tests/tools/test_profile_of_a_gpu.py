"""On a GPU the time of a row is that of its kernels there, and clocks wait for them."""

from types import SimpleNamespace

import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import DeviceType

from firebrick.tools import profile
from firebrick.tools.costs import Cost
from firebrick.tools.subject import Target


def event(name, kind, host, device):
    return SimpleNamespace(
        name=name,
        device_type=kind,
        cpu_time_total=host,
        device_time_total=device,
        cpu_memory_usage=0,
        device_memory_usage=4096,
        cpu_parent=None,
    )


class Profiler:
    def __init__(self, activities, profile_memory):
        self.activities = activities

    def start(self):
        pass

    stop = start

    def events(self):
        kernel = event("kernel t.py:3", DeviceType.CUDA, 0, 700)
        return [event("kernel t.py:3", DeviceType.CPU, 20, 700), kernel, event("aten::mm", DeviceType.CPU, 9, 300)]


def test_rows_have_the_time_of_kernels(monkeypatch):
    waits = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waits.append)
    monkeypatch.setattr(profile, "profile", Profiler)
    costs = {"kernel t.py:3": Cost(1, 0, 1_400_000), "aten::mm": Cost(1, 3_000_000, 0)}
    rows, whole = profile._trace(lambda: None, 1, costs, None, "cuda:0")
    named = {row.name: row for row in rows}
    assert waits == ["cuda:0"] * 2
    assert (named["kernel"].ms, named["kernel"].where, named["kernel"].calls) == (0.7, "t.py:3", 1)
    assert (round(named["kernel"].gbytes, 6), round(named["aten::mm"].gflops, 6)) == (2.0, 10.0)
    assert named["kernel"].kib == 4
    assert round(sum(row.ms for row in rows), 6) == round(whole, 6)
    assert "the GPU waits" in named


def test_a_clock_waits_for_the_gpu(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.accelerator, "synchronize", seen.append)
    profile._best(lambda: seen.append("call"), 2, "cuda:1")
    assert seen == ["cuda:1", "call", "cuda:1"] * 2


def test_the_gpu_of_a_target():
    with FakeTensorMode():
        x = torch.empty(3, device="cuda")
    assert profile.gpu_of(Target("t", torch.sin, ([x],))) == "cuda:0"
    assert profile.gpu_of(Target("t", torch.sin, (torch.ones(3),))) == ""
