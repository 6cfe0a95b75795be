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
    before = "import firebrick.pipeline as p\ndef fail(*a, **k): raise RuntimeError('planted')\np.fuse.schedule = fail"
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


def entries(cache):
    return [p for p in Path(cache).rglob("*.fb") if p.is_file()]


@pytest.mark.compiler
@pytest.mark.parametrize("damage", ["truncated", "changed", "foreign", "future", "empty", "a folder", "of others"])
def test_broken_cache_entry_warns_once_and_is_replaced(tmp_path, damage):
    assert finish(start(tmp_path))[:3] == (True, 1, 0)
    (entry,) = entries(tmp_path)
    data = entry.read_bytes()
    if damage == "a folder":
        entry.unlink()
        entry.mkdir()
    elif damage == "of others":
        entry.chmod(0o666)
    else:
        changes = {
            "truncated": data[: len(data) // 2],
            "changed": data[:-9] + b"!" + data[-8:],
            "foreign": b"#!/bin/sh\nexit 1\n",
            "future": data.replace(b"FIREBRICK ", b"FIREBRICK 9", 1),
            "empty": b"",
        }
        entry.write_bytes(changes[damage])
    ok, compiled, warned, text = finish(start(tmp_path))
    assert (ok, compiled, warned) == (True, 1, 1), text
    assert "cache" in text
    if damage != "a folder":  # which is not ours to remove
        assert finish(start(tmp_path))[:3] == (True, 1, 0)


@pytest.mark.compiler
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_no_write_permission_warns_once(tmp_path):
    tmp_path.chmod(0o755)
    before = "import os; os.setegid(65534); os.seteuid(65534)"
    for cache in (tmp_path, tmp_path / "cache"):  # there, and to be made
        ok, compiled, warned, text = finish(start(cache, before))
        assert (ok, compiled, warned) == (True, 1, 1), text
        assert "FIREBRICK_CACHE_DIR" in text
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 16 KiB."""
    place = tmp_path / "tiny"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system can't be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.compiler
@pytest.mark.parametrize("full", ["cache", "temporary files", "both"])
def test_disk_that_is_full_warns_once(tmp_path, tiny_disk, full):
    cache = tmp_path / "cache" if full == "temporary files" else tiny_disk / "cache"
    env = {} if full == "cache" else {"TMPDIR": str(tiny_disk)}
    (tiny_disk / "filler").write_bytes(b"x" * 3000)
    ok, _, warned, text = finish(start(cache, **env))
    assert (ok, warned) == (True, 1), text
    assert "space" in text or (full != "cache" and "could not be compiled" in text)  # the compiler says why
    assert not entries(cache)
    assert not list(tiny_disk.glob("firebrick-build-*"))
    assert finish(start(tmp_path / "other"))[:3] == (True, 1, 0)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("does", "text"),
    [
        ("echo no >&2; exit 1", "failed with status 1"),
        ("sleep 600 & sleep 600", "took more than 1 s"),
        ("kill -9 $$", "ended by signal 9"),  # as when memory runs out
        ("exit 0", "could not be built"),  # and wrote nothing
        ("for o; do :; done; echo junk > $o", "can't be loaded"),
    ],
)
def test_compiler_that_fails_warns_once_and_leaves_nothing(tmp_path, does, text):
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\ncase "$1" in --version) echo broken 1; exit 0;; esac\n{does}\n')
    compiler.chmod(0o755)
    temporary, cache = tmp_path / "tmp", tmp_path / "cache"
    temporary.mkdir()
    env = {"FIREBRICK_COMPILER": str(compiler), "TMPDIR": str(temporary)}
    env["FIREBRICK_BUILD_TIMEOUT"] = "1" if "sleep" in does else "60"
    ok, compiled, warned, told = finish(start(cache, **env))
    assert (ok, compiled, warned) == (True, 0, 1), told
    assert text in told
    assert list(temporary.iterdir()) == []
    assert finish(start(cache))[:3] == (True, 1, 0)


@pytest.mark.compiler
def test_out_of_memory_in_the_compiler_warns_once(tmp_path):
    before = "import firebrick.pipeline as p\ndef fail(*a, **k): raise MemoryError()\np.lower.lower = fail"
    ok, compiled, warned, text = finish(start(tmp_path, before))
    assert (ok, compiled, warned) == (True, 0, 1)
    assert "MemoryError" in text


@pytest.mark.compiler
def test_out_of_memory_in_a_call_is_eagers_error_and_the_next_call_works():
    def f(x, y):
        return (x * y + 1).relu()

    compiled = firebrick.compile(f, dynamic=False)
    x = torch.ones(1)
    with torch.no_grad():
        for _ in range(2):
            for call in (f, compiled):
                with pytest.raises(RuntimeError, match="allocate"):
                    call(x, x.expand(1 << 44))
            assert torch.equal(compiled(x, x.expand(8)), f(x, x.expand(8)))
