"""Commands and files on a GPU."""

import json

import pytest
import torch

SUBJECT = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256)).cuda().eval()
    return net, (torch.randn(512, 256, device="cuda"),)
"""


@pytest.fixture
def firebrick_command(tmp_path, run_python):
    (tmp_path / "subject_on_gpu.py").write_text(SUBJECT)

    def run(*args, codes=(0,)):
        done = run_python("-m", "firebrick", *args)
        assert done.returncode in codes, done.stdout + done.stderr
        return done.stdout

    return run


def test_explain_and_report(firebrick_command, tmp_path):
    shown = json.loads(firebrick_command("explain", "subject_on_gpu:make", "--json", "--html", "page.html"))
    assert shown["graph_count"] == 1
    assert "layer_norm" in (tmp_path / "page.html").read_text()


def test_profile(firebrick_command):
    shown = json.loads(firebrick_command("profile", "subject_on_gpu:make", "--json"))
    assert shown["ceilings"]["gpu"] == "cuda:0"
    rows = {row["name"]: row for row in shown["compiled_ops"]}
    assert "the GPU waits" in rows
    assert any(row["gflops"] > 0 for row in rows.values())
    assert any(row["gbytes"] > 0 for row in rows.values())


def test_bench(firebrick_command):
    options = [
        "--seconds",
        "0.2",
        "--no-warm",
        "--no-cold",
        "--contender",
        "eager",
        "--contender",
        "firebrick",
        "--json",
    ]
    shown = json.loads(firebrick_command("bench", "--gpu", "subject_on_gpu:make", *options))
    assert shown["gpu"] == f"{torch.cuda.get_device_name()}, float16"
    for row in shown["results"]:
        assert 1e-6 < row["run"] < 0.1 and row["peak"] > 1 and row["error"] < 1e-2 and not row["failed"]


def test_doctor(firebrick_command):
    facts = {row["name"]: row for row in json.loads(firebrick_command("doctor", "--json", codes=(0, 1)))}
    assert facts["GPU"]["value"].startswith(torch.cuda.get_device_name())
    assert facts["GPU"]["ok"]
    assert facts["triton"]["ok"]


WARM = """
import sys, torch, firebrick
run = firebrick.compile(lambda x: (x + 1).softmax(-1) * 2)
run(torch.randn(40, 50, device="cuda"))
print(firebrick.stats()["counts"].get("units built", 0), "triton" in sys.modules)
"""


def test_a_warm_process_does_not_import_triton(run_python, tmp_path):
    for built in ("1", "0"):
        done = run_python("-c", WARM, FIREBRICK_CACHE_DIR=str(tmp_path / "cache"))
        assert done.stdout.split()[-2:] == [built, "False"], done.stdout + done.stderr
