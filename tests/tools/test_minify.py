"""`firebrick minify`: a graph that compiles wrongly is cut down to the op that does it, as a script that shows it."""

import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from firebrick.errors import ConfigError
from firebrick.tools.cli import app
from firebrick.tools.minify import minify
from firebrick.tools.probe import Problem, check
from firebrick.tools.subject import Target, capture

BACKENDS = """
import os, signal, time
import torch


def names(gm):
    return [getattr(n.target, "__name__", str(n.target)) for n in gm.graph.nodes if n.op.startswith("call")]


def raising(gm, inputs):
    if "tanh" in names(gm):
        raise ValueError(f"no tanh among {len(names(gm))} ops")
    return gm.forward


def wrong_for_large(gm, inputs):
    def run(*args):
        large = "tanh" in names(gm) and any(a.abs().max() > 100 for a in args if isinstance(a, torch.Tensor))
        return tuple(out * 1.01 if large else out for out in gm.forward(*args))
    return run


def dying(gm, inputs):
    if "tanh" in names(gm):
        os.kill(os.getpid(), signal.SIGKILL)
    return gm.forward


def hanging(gm, inputs):
    if "tanh" in names(gm):
        time.sleep(600)
    return gm.forward
"""


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        y = torch.relu(self.first(x)) + x
        z = torch.tanh(y * 2.0)
        return self.second(z) - y.mean(), torch.sigmoid(z)


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "buggy_backends.py").write_text(BACKENDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shrink(backend, *args, **limits):
    captured = capture(Target("net", Net().eval(), args or (torch.randn(4, 8),)), stages=False)
    return minify(captured, backend, **{"seconds": 120, "timeout": 60, **limits})


@pytest.mark.slow
def test_an_exception_is_cut_down_to_its_op_and_the_script_shows_it(here):
    found = shrink("buggy_backends:raising")
    assert (found.before, found.after, found.data) == (9, 1, {})
    assert found.problem == Problem("raises", "ValueError: no tanh among 1 ops")
    found.write(here / "repro.py")
    paths = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "repro.py"], capture_output=True, text=True, env=paths, timeout=120)
    assert done.returncode == 1
    assert done.stdout == "raises: ValueError: no tanh among 1 ops\n"
    assert "torch.tanh(" in (here / "repro.py").read_text()


@pytest.mark.slow
def test_a_wrong_result_that_needs_its_data_keeps_them(here):
    found = shrink("buggy_backends:wrong_for_large", torch.full((4, 8), 200.0))
    assert found.problem.kind == "differs" and "off by" in found.problem.text
    assert found.after == 1 and len(found.data) == 1
    found.write(here / "repro.py")
    assert set(torch.load(here / "repro.pt")) == set(found.data)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "problem"), [("dying", "SIGKILL"), ("hanging", "no result after")])
def test_a_process_that_dies_or_hangs_is_a_problem_too(here, backend, problem):
    limits = {"timeout": 8, "seconds": 60} if backend == "hanging" else {}
    found = shrink(f"buggy_backends:{backend}", **limits)
    assert problem in found.problem.text
    assert found.after < found.before
    assert "torch.tanh(" in found.script


def test_what_compiles_right_is_an_error(here):
    with pytest.raises(ConfigError, match=r"net compiles, and its 1 graph do what they do in eager mode"):
        shrink("eager")


def test_problems_are_alike_apart_from_names_and_numbers():
    first = Problem("raises", "LoweringError: mul_3 has 12 axes")
    assert first.is_like(Problem("raises", "LoweringError: mul_71 has 2 axes"))
    assert not first.is_like(Problem("raises", "LoweringError: no rule for mul_3"))
    assert not first.is_like(Problem("differs", first.text))
    assert not first.is_like(None)


class Bad(torch.nn.Module):
    def forward(self, x):
        return x @ x


def test_a_program_that_both_refuse_shows_nothing():
    assert check(Bad(), (torch.ones(2, 3),), "eager") is None


def test_a_result_where_eager_raises_is_a_problem(here):
    (here / "lenient.py").write_text("def compiled(gm, inputs):\n    return lambda x: (x.relu(),)\n")

    class Indexed(torch.nn.Module):
        def forward(self, x):
            return x[torch.tensor([7])]

    found = check(Indexed(), (torch.ones(3),), "lenient:compiled")
    assert found == Problem("accepts", "eager raises IndexError: index 7 is out of bounds for dimension 0 with size 3")


SCRIPT = """
import torch
def f(x):
    return x.sin()[torch.tensor([3])] + 1
f(torch.ones(4))
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        ("f(torch.ones(2))", r"raised.py raises IndexError: .*, compiled or not; what was compiled before, 1 graph"),
        ("try: f(torch.ones(2))\nexcept IndexError: pass", r"do what they do .*, 1 of which raises the same error"),
    ],
    ids=["that ends it", "that it handles"],
)
def test_a_script_in_which_eager_raises_does_not_compute_what_eager_does(here, ending, text):
    (here / "raised.py").write_text(SCRIPT.format(ending=ending))
    captured = capture(Target.load("raised.py"), stages=False, errors=False)
    with pytest.raises(ConfigError, match=text):
        minify(captured, "eager", seconds=60, timeout=60)


def test_a_script_is_cut_down_to_the_op_that_should_raise(here):
    (here / "lenient.py").write_text(
        "def compiled(gm, inputs):\n    return lambda *args: tuple(a * 2 for a in args)[:1]\n"
    )
    (here / "raised.py").write_text(SCRIPT.format(ending="try: f(torch.ones(2))\nexcept IndexError: pass"))
    captured = capture(Target.load("raised.py"), stages=False)
    captured.graphs = captured.graphs[1:]
    found = minify(captured, "lenient:compiled", seconds=60, timeout=60)
    assert (found.problem.kind, found.after) == ("accepts", 1)


@pytest.mark.compiler
@pytest.mark.slow
def test_the_command_works_on_firebrick_itself(here, monkeypatch):
    (here / "minified_target.py").write_text(
        "import torch\ndef f(x):\n    return x.sin() + 1\ndef make():\n    return f, (torch.ones(3),)\n"
    )
    done = CliRunner().invoke(app, ["minify", "minified_target:make"])
    assert isinstance(done.exception, ConfigError)
    done = CliRunner().invoke(app, ["minify", "minified_target:make", "--backend", "buggy_backends:raising", "--json"])
    assert isinstance(done.exception, ConfigError)
    (here / "minified_target.py").write_text(
        "import torch\ndef f(x):\n    return x.sin().tanh() + 1\ndef make():\n    return f, (torch.ones(3),)\n"
    )
    sys.modules.pop("minified_target", None)
    done = CliRunner().invoke(app, ["minify", "minified_target:make", "--backend", "buggy_backends:raising", "--json"])
    assert json.loads(done.stdout)["after"] == 1


def test_graphs_of_functions_that_a_script_compiles_itself_are_captured(here):
    (here / "compiles.py").write_text(
        "import torch, firebrick\nf = firebrick.compile(lambda x: torch.tanh(x) * 2)\n"
        "net = firebrick.compile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()))\nf(torch.ones(3)), net(torch.ones(2, 4))\n"
    )
    captured = capture(Target.load("compiles.py"), stages=False)
    assert any("tanh" in str(graph.gm.graph) for graph in captured.graphs)
    assert len(captured.graphs) >= 2
