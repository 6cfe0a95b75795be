"""The comparison of all engines for CPUs: its programs, its notes, its page."""

import importlib.util

import pytest
import torch

import firebrick
from bench import cpu, programs
from bench.contender import CONTENDERS, Contender
from firebrick.errors import ConfigError
from firebrick.tools.bench import Figures


def test_unknown_contender_is_named():
    with pytest.raises(Exception, match="unknown contender 'nobody'"):
        cpu.bench(["bert"], ["nobody"])


def test_models_are_looked_up_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(cpu, "Measure", None)
    for name, text in (("berd", "unknown target 'berd'"), ("no_module_here:make", "no module 'no_module_here'")):
        with pytest.raises(ConfigError, match=text):
            cpu.bench(["lstm", name])


def test_default_contenders_are_known():
    assert set(cpu.CONTENDERS) <= set(CONTENDERS)


def rows():
    good = Figures("m", "firebrick", run=0.5, speedup=2.0, cold=1.0, warm=0.1, error=1e-7, peak=100)
    return [Figures("m", "eager", run=1.0, speedup=1.0), good, Figures("m", "x", failed="broke")]


def test_markdown_names_its_command_and_skips_failures_in_the_mean():
    text = cpu.markdown(rows(), "python -m bench.cpu m")
    assert text.startswith("## `python -m bench.cpu m`")
    assert "| geomean | firebrick | | 2.00 |" in text
    assert "- m: x failed: broke" in text


def test_notes_compare_on_what_both_run_and_say_what_compiling_and_memory_cost():
    def row(model, contender, run, cold, **stats):
        return Figures(model, contender, run=run, speedup=1 / run, cold=cold, stats=stats)

    def built(kernels, seconds):
        return {"counts": {"kernels built": kernels}, "seconds": {"build": seconds}}

    copies = {"memory copies": {"there": 0.125, "fresh": 0.5, "bytes": 2**20}}
    results = [
        row("bert", "firebrick", 0.5, 1.0, **built(20, 0.3)),
        row("bert", "torch.compile", 1.0, 8.0),
        row("wide", "firebrick", 0.25, 2.0, **built(30, 0.2), **copies),
        row("wide", "torch.compile", 1.0, 32.0),
        Figures("wide", "onnxruntime", failed="no"),
        row("bert", "onnxruntime", 1.0, 1.0),
    ]
    text = cpu.markdown(results, "c")
    assert "- firebrick 2.83, torch.compile 1.00 on the 2 of all that it runs" in text
    assert "- firebrick 2.00, onnxruntime 1.00 on the 1 of the seven that it runs" in text
    assert "- cold start: 1/11.3 of torch.compile's" in text
    assert "- longest cold start: 2.00 s (wide)" in text
    assert "- C++ compiler: 0.50 s for 50 kernels, 1.00 s per hundred" in text
    assert "takes 2.00 and 0.50 times as long" in text


def test_copies_stand_for_the_bytes_that_a_call_moves():
    with torch.no_grad():  # a contender changes the mode of its whole process
        side = Contender("wide", "eager", {})
        side.first()
        copied = side.copy(0.01)
    assert copied["bytes"] == 3 * 4 * 4096 * 4096
    assert len(copied["there"]) == len(copied["fresh"]) >= 5


@pytest.mark.parametrize("name", ["adam_foreach", "crepe", "pointwise", "unet", "wide", "update", "lstm"])
def test_each_benchmark_program_is_one_graph_in_what_the_user_wrote(name):
    if name == "crepe" and importlib.util.find_spec("torchcrepe") is None:
        pytest.skip("torchcrepe is not installed")
    model, _, inputs = programs.build_model(name)
    with torch.no_grad():
        seen = firebrick.explain(model)(**inputs).to_dict()
    assert len(seen["graphs"]) == 1
    assert not seen["breaks"]


def test_geomean_is_geometric():
    assert cpu.geomean([1.0, 4.0]) == 2.0
