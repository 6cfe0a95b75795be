"""A worker whose GPU is gone says so and ends; the next program runs in a fresh one."""

import subprocess
import sys
from types import SimpleNamespace

import torch
from tests.fuzz import __main__ as fuzz

SCRIPT = """
import json, sys
for line in sys.stdin:
    seed = json.loads(line)["seed"]
    print(json.dumps({"seed": seed, "status": "broken" if seed == 2 else "same", **({"lost": True} if seed == 2 else {})}), flush=True)
    if seed == 2:
        break
"""


class Worker(fuzz.Worker):
    started = 0

    def start(self):
        self.started += 1
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )


def test_the_next_program_runs_in_a_fresh_worker():
    worker = Worker(SimpleNamespace())
    assert [worker.run({"seed": k})["status"] for k in (1, 2, 3, 4)] == ["same", "broken", "same", "same"]
    assert worker.started == 2
    worker.stop()


def test_a_gpu_is_lost_where_it_can_not_be_waited_for(monkeypatch):
    def fails():
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.accelerator, "synchronize", fails)
    assert fuzz.is_lost("cuda")
    assert not fuzz.is_lost("cpu")
