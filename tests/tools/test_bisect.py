"""`firebrick bisect` names what was planted: in the lowering, in a pass, in a guard, in a kernel that crashes."""

import pytest
from tests.sweeps.bisect_bugs import BUGS, HEAD, Bug, checked, minified, named, run
from typer.testing import CliRunner

from firebrick.tools.bisect import Run
from firebrick.tools.cli import app

PLAIN = "x = torch.linspace(0, 1, 8)\nprint(firebrick.compile(lambda x: x.sin() * 2)(x).sum())\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lowering of sin", "pass remove_noops", "guard of a global", "a kernel that crashes"])
def test_a_planted_bug_is_named(name, tmp_path):
    output, _, _ = run(BUGS[name], tmp_path, "bisect", "program.py", "--json")
    assert named(BUGS[name], output)[0], output


@pytest.mark.slow
def test_a_script_that_is_right_has_no_culprit(tmp_path):
    assert run(Bug("", PLAIN, ()), tmp_path, "bisect", "program.py", "--json")[0] == "null\n"


@pytest.mark.slow
def test_minify_writes_a_script_that_shows_the_planted_bug_alone(tmp_path):
    hit, told, _, _ = minified(BUGS["lowering of sin"], tmp_path)
    assert hit, told


@pytest.mark.slow
def test_the_first_graph_that_differs_is_named_as_the_program_runs(tmp_path):
    program = "@firebrick.compile\ndef f(x):\n    y = x.cos()\n    firebrick.graph_break()\n    return y.sin()\n"
    hit, told, _, _ = checked(Bug(BUGS["lowering of sin"].plant, program + "f(torch.rand(9))\n", ()), tmp_path)
    assert hit and told.startswith("graph 1 differs from eager: result 0 (sin)"), told


def test_help_has_an_example_and_a_missing_script_is_an_error():
    shown = CliRunner().invoke(app, ["bisect", "--help"]).output
    assert "firebrick bisect train.py" in shown
    assert CliRunner().invoke(app, ["bisect", "nothing.py"]).exit_code == 2


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        (("", "loss 1.00001\n"), ("", "loss 1.0\n"), ""),
        (("", "loss 1.1\n"), ("", "loss 1.0\n"), "prints 'loss 1.1' instead of 'loss 1.0'"),
        (("", "a nan\n"), ("", "a nan\n"), ""),
        (("", "1\n2\n"), ("", "1\n"), "prints another number of lines"),
        (("ValueError: no", ""), ("", ""), "ValueError: no"),
        (("", ""), ("ValueError: no", ""), "ends well, where plain Python ends with ValueError: no"),
    ],
)
def test_runs_differ_by_more_than_rounding(ours, theirs, text):
    assert Run("", *ours, []).differs(Run("", *theirs, [])) == text


def test_variables_differ_by_value_shape_and_dtype():
    kept = {"x": ["torch.float32", [2], [1.0, 2.0]], "n": 3}

    def differs(**changes):
        return Run("", "", "", [{"variables": {**kept, **changes}}]).differs(Run("", "", "", [{"variables": kept}]))

    assert differs() == differs(x=["torch.float32", [2], [1.0, 2.001]]) == ""
    assert differs(n=4) == "variable n differs"
    assert differs(x=["torch.float32", [2], [1.0, 2.2]]) == "variable x differs"
    assert differs(x=["torch.float64", [2], [1.0, 2.0]]) == "variable x differs"


def test_there_are_bugs_of_each_kind():
    assert len(BUGS) >= 48
    assert HEAD.startswith("import torch")
