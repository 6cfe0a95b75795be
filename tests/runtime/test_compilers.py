"""Building units: compilers that are there, missing, failing and hanging."""

import os
import stat

import pytest
import torch
from tests.runtime.programs import plus_one_artifact

import firebrick
from firebrick.artifact import Artifact, Unit
from firebrick.config import Config
from firebrick.errors import CompileError
from firebrick.runtime import build, find_compiler, load

pytestmark = pytest.mark.compiler


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_built_kernel_runs():
    built = build(plus_one_artifact(), Config())
    assert built.is_built and build(built, Config()) is built
    x = torch.randn(6)
    assert torch.equal(load(built, {})(x)[0], x + 1)


def test_units_are_built_in_parallel_and_none_is_lost():
    units = tuple(Unit(f"u{i}", f'extern "C" int f{i}() {{ return {i}; }}', (f"f{i}",)) for i in range(7))
    built = build(Artifact("many", {}, units), Config(build_workers=3))
    assert sorted(built.code) == [f"u{i}" for i in range(7)]
    assert all(code.startswith(b"\x7fELF") for code in built.code.values())


def test_artifact_without_units_needs_no_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")
    bare = Artifact("calls", {})
    assert build(bare, Config()) is bare


def test_no_compiler_is_an_error_with_a_fix(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CompileError, match=r"firebrick\[cc\]"):
        find_compiler(Config())


def zig_without_others(monkeypatch, tmp_path):
    pytest.importorskip("ziglang", reason="the extra `cc` is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    return find_compiler(Config())


def test_zig_of_the_extra_is_used_when_there_is_no_other(monkeypatch, tmp_path):
    assert zig_without_others(monkeypatch, tmp_path).name == "zig"
    x = torch.randn(6)
    assert torch.equal(load(build(plus_one_artifact(), Config()), {})(x)[0], x + 1)


def test_zig_gives_the_bits_of_gcc(monkeypatch, tmp_path):
    x, w = torch.randn(64, 64), torch.randn(64, 512)

    def call():
        def f(x, w):
            y = torch.nn.functional.gelu(x @ w)
            return y.softmax(-1), y.sum(0), y.bfloat16().tanh(), (y * 7).long() // 3

        with torch.no_grad():
            compiled = firebrick.compile(f, options={"cache": False, "numerics": "eager"})
            return compiled(x, w)

    wanted = call()
    zig_without_others(monkeypatch, tmp_path)
    before = firebrick.stats()["counts"]["units built"]
    for got, want in zip(call(), wanted, strict=True):
        assert torch.equal(got, want)
    assert firebrick.stats()["counts"]["units built"] > before


def test_compiler_that_was_asked_for_must_run(monkeypatch):
    with pytest.raises(CompileError, match="no-such-compiler"):
        find_compiler(Config(compiler="no-such-compiler"))
    monkeypatch.setenv("CXX", "no-such-cxx")
    with pytest.raises(CompileError, match="no-such-cxx"):
        find_compiler(Config())


def test_error_carries_the_compilers_first_lines():
    broken = Artifact("g", {}, (Unit("u0", "void f( {\nint x = 1;", ("f",)),))
    with pytest.raises(CompileError, match=r"u0\.cpp:1") as caught:
        build(broken, Config())
    assert os.sep + "tmp" not in str(caught.value).partition("\n")[2]


def test_compiler_that_hangs_is_ended(tmp_path):
    work = f"echo $$ > {tmp_path}/id; exec sleep 600"
    path = script(tmp_path / "slow", f'case "$1" in --version) echo slow 1;; *) {work};; esac')
    with pytest.raises(CompileError, match="more than 1 s"):
        build(plus_one_artifact(), Config(compiler=path, build_timeout=1))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "id").read_text()), 0)


def test_compiler_that_dies_is_an_error(tmp_path):
    path = script(tmp_path / "dies", 'case "$1" in --version) echo dies 1;; *) kill -9 $$;; esac')
    with pytest.raises(CompileError, match="ended by signal 9"):
        build(plus_one_artifact(), Config(compiler=path))


def test_code_that_is_no_library_is_an_error():
    with pytest.raises(CompileError, match="can't be loaded"):
        load(plus_one_artifact().with_code({"u0": b"not a library"}), {})


def test_unbuilt_artifact_is_an_error():
    with pytest.raises(CompileError, match="not built"):
        load(plus_one_artifact(), {})
