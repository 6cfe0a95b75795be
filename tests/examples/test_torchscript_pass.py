"""The C++ passes of examples/torchscript_pass, where they have been built: building takes minutes."""

import sys
import warnings
from pathlib import Path

import pytest
import torch

from firebrick.torchscript import ScriptPass, nodes_of, optimize
from firebrick.torchscript.extension import generate_setup, is_built

FOLDER = Path(__file__).parents[2] / "examples" / "torchscript_pass"
sys.path.insert(0, str(FOLDER))
import torchscript_pass_demo as demo  # noqa: E402

INCLUDES = [str(FOLDER / "csrc")]


def test_the_setup_is_complete():
    text = generate_setup("torchscript_pass", ["a.cpp"], include_dirs=["here"], libraries=["m"])
    compile(text, "setup.py", "exec")
    assert "CppExtension" in text
    assert "'a.cpp'" in text


@pytest.fixture(scope="module")
def extension():
    warnings.simplefilter("ignore", DeprecationWarning)
    return demo.load()


built = is_built("torchscript_pass", demo.SOURCES, demo.BUILD, include_dirs=INCLUDES)
needs_build = pytest.mark.slow if not built else pytest.mark.compiler


def kinds(program):
    return [n.kind() for n in nodes_of(program.graph) if n.kind() != "prim::Constant"]


@needs_build
def test_passes(extension):
    x, y = torch.randn(16, 16), torch.randn(16, 16)
    x[0, 0] = float("nan")
    script = torch.jit.script(demo.program)
    steps = [ScriptPass(n, getattr(extension, n)) for n in ("fuse_add_div", "fuse_add_relu", "make_groups")]
    made = optimize(script, steps, samples=[(x, y)], verify=True)
    assert {"opt::add_relu", "aten::addcdiv", "opt::CompilationGroup"} <= set(kinds(made))
    before = extension.compiles(), extension.runs()
    for _ in range(3):
        torch.testing.assert_close(made(x, y), script(x, y), equal_nan=True)
    assert extension.runs() - before[1] == 3
    assert extension.compiles() - before[0] < 3, "compiled at the first run, cached then"


@needs_build
def test_the_switch_puts_them_into_torchscript_itself(extension):
    x, y = torch.randn(16, 16), torch.randn(16, 16)
    wanted = torch.jit.script(demo.program)(x, y)
    runs = extension.runs()
    extension.enable()
    try:
        script = torch.jit.script(lambda_program)
        for _ in range(4):
            torch.testing.assert_close(script(x, y), wanted)
    finally:
        extension.disable()
    assert extension.runs() > runs


def lambda_program(x, y):
    scores = torch.matmul(x, y.transpose(-1, -2)) / 8.0
    return torch.relu(scores + scores) + scores / (scores.abs() + 1.0)
