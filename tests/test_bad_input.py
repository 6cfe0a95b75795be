"""Bad input and bad machines: a clear error, or one warning and a right result, and nothing broken left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import firebrick
from firebrick import errors

PROGRAM = """
import sys, warnings, torch, firebrick
{before}
def f(x, w):
    return torch.nn.functional.gelu(x @ w).softmax(-1) + {constant}
x, w = torch.randn(8, 16), torch.randn(16, 32)
with torch.no_grad(), warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    ok = torch.allclose(firebrick.compile(f)(x, w), f(x, w), atol=1e-5)
ours = [str(w.message).splitlines()[0] for w in seen if issubclass(w.category, firebrick.report.FirebrickWarning)]
print("RESULT", ok, firebrick.graphs_compiled(), len(ours), *ours)
"""


def start(cache, before="", constant="1.0", **env):
    source = PROGRAM.format(before=before, constant=constant)
    environment = {**os.environ, "FIREBRICK_CACHE_DIR": str(cache), "FIREBRICK_STRICT": "0", **env}
    command = [sys.executable, "-c", source]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def finish(process):
    out, err = process.communicate(timeout=120)
    line = next((line for line in out.splitlines() if line.startswith("RESULT")), None)
    assert line is not None, err
    _, ok, compiled, count, *text = line.split(maxsplit=4)
    return ok == "True", int(compiled), int(count), " ".join(text)


def test_unknown_backend_is_named_with_the_known_ones():
    with pytest.raises(errors.BackendError, match="no_such_backend"):
        firebrick.compile(lambda x: x, backend="no_such_backend")


def test_unknown_mode_is_named_with_the_known_ones():
    with pytest.raises(errors.ConfigError, match="max-autotune"):
        firebrick.compile(lambda x: x, mode="fastest")


def test_unknown_option_is_named():
    with pytest.raises(errors.ConfigError, match="no_such_option"):
        firebrick.compile(lambda x: x, options={"no_such_option": 1})


def test_what_cannot_be_called_is_refused():
    with pytest.raises((errors.FirebrickError, TypeError), match="function or a module, not an object of int"):
        firebrick.compile(42)


def test_backend_that_raises_is_an_error_that_names_it():
    def broken(gm, example_inputs):
        raise ValueError("chip on fire")

    with pytest.raises(errors.BackendError, match="chip on fire"):
        firebrick.compile(lambda x: x + 1, backend=broken)(torch.ones(3))


@pytest.mark.compiler
def test_failure_inside_the_compiler_warns_once_and_runs_on_eager_kernels(tmp_path):
    before = (
        "import firebrick.pipeline as p\ndef fail(*a, **k): raise RuntimeError('planted')\np.scheduling.schedule = fail"
    )
    ok, compiled, warned, text = finish(start(tmp_path, before))
    assert ok
    assert compiled == 0
    assert warned == 1
    assert "planted" in text


@pytest.mark.compiler
def test_cache_folder_that_cannot_be_made_warns_once(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    ok, compiled, warned, _ = finish(start(blocked / "cache"))
    assert ok
    assert compiled == 1
    assert warned == 1


@pytest.mark.compiler
def test_full_disk_warns_once_and_gives_the_right_result(tmp_path):
    before = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))"
    ok, _, warned, _ = finish(start(tmp_path, before))
    assert ok
    assert warned == 1
    ok, compiled, warned, _ = finish(start(tmp_path))
    assert (ok, compiled, warned) == (True, 1, 0)


@pytest.mark.compiler
def test_no_compiler_warns_once_and_gives_the_right_result(tmp_path):
    ok, _, warned, text = finish(start(tmp_path, FIREBRICK_COMPILER="/no/such/compiler"))
    assert ok
    assert warned == 1
    assert "compiler" in text


@pytest.mark.compiler
def test_two_processes_compile_the_same_graph_at_once(tmp_path):
    both = [start(tmp_path), start(tmp_path)]
    for ok, compiled, warned, _ in map(finish, both):
        assert (ok, compiled, warned) == (True, 1, 0)


@pytest.mark.compiler
def test_kill_in_mid_build_leaves_nothing_broken(tmp_path):
    marker = tmp_path / "started"
    slow = tmp_path / "slow-compiler"
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*|*-dumpversion*) exec g++ "$@";; esac\ntouch {marker}\nsleep 60\n'
    )
    slow.chmod(0o755)
    cache = tmp_path / "cache"
    process = start(cache, FIREBRICK_COMPILER=str(slow))
    end = time.monotonic() + 60
    while not marker.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert marker.exists()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    ok, compiled, warned, text = finish(start(cache))
    assert (ok, compiled, warned) == (True, 1, 0), text
    leftovers = [p for p in Path(cache).rglob("*") if p.is_file() and "tmp" in p.name]
    assert not leftovers
