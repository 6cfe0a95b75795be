"""The command line: help with an example everywhere, JSON where results are printed, clear errors."""

import json

import pytest
from typer.testing import CliRunner

from firebrick.tools import bench as benchmark
from firebrick.tools.cli import app, main

runner = CliRunner()
COMMANDS = [
    ["bench"],
    ["explain"],
    ["doctor"],
    ["profile"],
    ["graph"],
    ["report"],
    ["run"],
    ["cache", "ls"],
    ["cache", "clear"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_shows_an_example(command):
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Example:" in result.output


def test_doctor_prints_json_with_versions_and_compiler():
    result = runner.invoke(app, ["doctor", "--json"])
    facts = {fact["name"]: fact for fact in json.loads(result.output)}
    assert facts["torch"]["value"].startswith("2.")
    assert {"python", "C++ compiler", "SIMD", "cache writable"} <= set(facts)


def test_unknown_model_is_one_clear_message(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["firebrick", "explain", "no_such_model"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "unknown model 'no_such_model'" in capsys.readouterr().err


def test_unknown_contender_is_named():
    with pytest.raises(Exception, match="unknown contender 'nobody'"):
        benchmark.bench(["bert"], ["nobody"])


def rows():
    good = benchmark.Figures("m", "firebrick", run=0.5, speedup=2.0, cold=1.0, warm=0.1, error=1e-7, peak=100, graphs=1)
    return [benchmark.Figures("m", "eager", run=1.0, speedup=1.0), good, benchmark.Figures("m", "x", failed="broke")]


def test_json_of_results_has_null_for_what_was_not_measured():
    data = json.loads(benchmark.as_json(rows()))["results"]
    assert data[0]["cold"] is None
    assert data[1]["speedup"] == 2.0
    assert data[2]["failed"] == "broke"


def test_markdown_names_its_command_and_skips_failures_in_the_mean():
    text = benchmark.markdown(rows(), "firebrick bench m")
    assert text.startswith("## `firebrick bench m`")
    assert "| geomean | firebrick | | 2.00 |" in text


def test_geomean_is_geometric():
    assert benchmark.geomean([1.0, 4.0]) == 2.0
