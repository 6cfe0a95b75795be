"""`firebrick report`: everything about a compile in one place, also when a part of it failed."""

import html
import json
import re

import pytest
import torch
from typer.testing import CliRunner

import firebrick
from firebrick import lower
from firebrick.config import Config
from firebrick.errors import LoweringError
from firebrick.tools.cli import app
from firebrick.tools.report_page import make_report
from firebrick.tools.subject import Target, capture

pytestmark = pytest.mark.compiler


def sections(report):
    return {section.title: section for section in report.sections}


def rows(report, title):
    return [dict(zip(sections(report)[title].head, row)) for row in sections(report)[title].rows]


def summary(report):
    return {row["what"]: row["value"] for row in rows(report, "Summary")}


def normed(x):
    y = torch.nn.functional.layer_norm(torch.relu(x) + 1.0, (64,))
    return y @ y.t()


@pytest.fixture(scope="module")
def report():
    return make_report(Target("normed", normed, (torch.randn(8, 64),)), Config.from_env())


def test_the_summary_counts_graphs_and_cache_hits(report):
    found = summary(report)
    assert (found["graphs"], found["graph breaks"], found["graphs compiled"]) == ("1", "0", "1")
    assert found["cache hits, second time"] == "1 of 1"
    assert found["ops captured"].endswith("(100 %)")


def test_a_filled_cache_skips_the_stages_behind_capture(report):
    stages = {row["stage"]: row for row in rows(report, "Milliseconds by stage")}
    for name in ("autodiff", "lowering", "scheduling", "codegen", "build"):
        assert float(stages[name]["filled cache"]) == 0
        assert float(stages[name]["empty cache"]) > 0
    assert float(stages["capture"]["empty cache"]) > 0  # what it did itself, without the compile inside of it


def test_kernels_have_names_and_loops(report):
    (kernel,) = [row for row in rows(report, "Kernels and library calls") if row["kind"] == "kernel"]
    assert kernel["what"].startswith("fused_relu_add_layer_norm tools/test_report.py:")
    assert kernel["loops"] == "[8, 64]"


def test_a_scripts_prints_are_shown_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "printing.py").write_text("import torch\nprint('hello')\n(lambda x: x.sin())(torch.ones(3))\n")
    monkeypatch.chdir(tmp_path)
    make_report(Target.load("printing.py"), Config.from_env())
    assert capsys.readouterr().err.count("hello") == 1


def test_counts_are_those_of_the_tables(report):
    found = summary(report)
    (graph,) = rows(report, "Graphs")
    assert (found["kernels, each call"], found["library calls, each call"]) == (
        graph["kernels"],
        graph["library calls"],
    )


def broken(x):
    y = torch.sin(x)
    print(end="")
    return y.cos() if y.sum().item() > 0 else y


def test_breaks_have_a_place_and_a_fix():
    found = rows(make_report(Target("broken", broken, (torch.ones(3),)), Config.from_env()), "Graph breaks")
    assert found and all("test_report.py" in row["place"] and row["fix"] for row in found)


def test_a_graph_that_can_not_be_compiled_is_in_the_report(monkeypatch):
    def fail(*args):
        raise LoweringError("no way to lower it")

    monkeypatch.setattr(lower, "lower", fail)
    made = make_report(Target("normed", normed, (torch.randn(8, 64),)), Config.from_env())
    assert "no way to lower it" in rows(made, "Graphs")[0]["state"]
    assert any("runs on eager kernels" in row["value"] for row in rows(made, "Summary") if row["what"] == "warning")
    assert summary(made)["graphs compiled"] == "0"


def test_parts_of_a_graph_with_a_branch_are_shown():
    def branch(x):
        y = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        return y * 2

    assert len(capture(Target("branch", branch, (torch.ones(3),))).graphs) == 4


def test_the_page_and_the_json_hold_every_section(report, tmp_path):
    page = report.to_html()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|src=", page)
    assert all(html.escape(section.title) in page for section in report.sections)
    data = json.loads(json.dumps(report.to_dict()))
    assert [s["title"] for s in data["sections"]] == [s.title for s in report.sections]


def test_the_command_writes_a_page(tmp_path, monkeypatch):
    (tmp_path / "reported2.py").write_text(
        "import torch\ndef f(x):\n    return x.sin()\ndef make():\n    return f, (torch.ones(3),)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    done = CliRunner().invoke(app, ["report", "reported2:make", "-o", str(tmp_path / "r.html")])
    assert done.exit_code == 0, done.output
    assert "<h1>reported2:make</h1>" in (tmp_path / "r.html").read_text()
    assert "sin" in CliRunner().invoke(app, ["report", "reported2:make"]).stdout


def test_the_page_draws_stages_and_graphs_and_shows_breaks_in_the_source():
    def broken(x):
        for scale in (2, 3):
            x = scaled(x, scale)
        firebrick.graph_break()  # HERE
        return x + 1

    def scaled(x, scale):
        return torch.relu(x) * scale

    def program(x):
        return broken(x), [scaled(torch.sin(x) * n, n) for n in (4, 5) if print(n) is None]

    made = make_report(Target("broken", program, (torch.ones(4),)), Config.from_env())
    page = made.to_html()
    assert [title for title, _ in made.figures[:2]] == ["Timeline", "Breaks in your source"]
    assert re.search(r"<mark>\s+\d+ +firebrick.graph_break\(\)  # HERE</mark>", page)
    assert page.count("<svg") >= 2 and "<rect" in page
    assert any(row["frame"].endswith("broken") for row in rows(made, "Guards"))
    assert "figures" not in made.to_dict()


def test_kernels_stand_beside_their_lines_recompiles_are_a_diff_and_bars_where_their_stage_ran():
    def scaled(x):
        return torch.relu(x) * 2  # HERE

    def program(*tensors):
        results = []
        for x in tensors:
            firebrick.graph_break()
            results.append(scaled(x))
        return results

    made = make_report(Target("scaled", program, (torch.ones(3), torch.ones(4))), Config.from_env())
    page = made.to_html()
    assert re.search(r"<pre>test_report.py:\d+  return torch.relu\(x\) \* 2  # HERE</pre>", page)
    assert re.search(r"<del>- (\w+): f32\[3\] cpu</del>\n<ins>\+ \1: f32\[\?\] cpu</ins>", page)
    assert all("program" in row["graph"] for row in rows(made, "Graphs"))
    bars = re.findall(r'<rect x="([\d.]+)" y="(\d+)".*?<title>(\w+)', dict(made.figures)["Timeline"])
    places = {stage: (float(x), int(y)) for x, y, stage in bars if int(y) < 40}
    assert places["autodiff"][0] < places["codegen"][0] and places["capture"][1] < places["codegen"][1]
