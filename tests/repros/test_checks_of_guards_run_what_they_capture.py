"""Under `check=guards` each call is captured anew and runs what was captured; it ran plain Python instead."""

import torch

import firebrick


def test_each_call_runs_its_own_capture(monkeypatch):
    monkeypatch.setenv("FIREBRICK_CHECK", "guards")
    captured, ran = [], []

    def backend(gm, example_inputs):
        captured.append(gm)
        return lambda *inputs: (ran.append(gm), gm.forward(*inputs))[1]

    fn = firebrick.compile(lambda x, k: x * k + torch.compiler.is_compiling(), backend=backend)
    for k in (2.5, 2.5, 3.5):
        assert torch.equal(fn(torch.ones(2), k), torch.full((2,), k + 1))
    assert len(captured) == 3 and captured == ran
