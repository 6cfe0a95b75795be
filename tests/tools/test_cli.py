"""The command line: help with an example everywhere, JSON where results are printed, clear errors."""

import importlib.util
import io
import json
from dataclasses import fields

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

import firebrick
from firebrick.artifact import Artifact
from firebrick.config import Config
from firebrick.errors import ConfigError, FirebrickError
from firebrick.runtime import DiskCache, make_key
from firebrick.tools import bench as benchmark
from firebrick.tools.cli import app, main
from firebrick.tools.models import build_model

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
    ["cache", "why"],
    ["minify"],
    ["options"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_shows_an_example(command):
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Example:" in result.output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_examples_use_options_that_exist(command):
    told = " ".join(runner.invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).output.split())
    example = told.partition("Example:")[2].partition("firebrick")[2]
    options = {word for word in example.split() if word.startswith("-")}
    found = typer.main.get_command(app)
    for name in command:
        found = found.commands[name]
    known = {name for option in found.params for name in option.opts}
    assert command == ["run"] or options <= known


def test_cache_commands_print_json(tmp_path, monkeypatch):
    monkeypatch.setenv("FIREBRICK_CACHE_DIR", str(tmp_path))
    cache = DiskCache(Config.from_env())
    for graph in ("relu", "tanh"):
        cache.fetch(make_key({"graph": graph}, graph), lambda: Artifact("g", {}))
    assert {row["name"] for row in json.loads(runner.invoke(app, ["cache", "ls", "--json"]).output)} == {"g"}
    rows = json.loads(runner.invoke(app, ["cache", "why", "--json"]).output)
    assert rows[0]["why"] == ["nearest is relu", "op 0 of the graph is tanh, was relu"]
    shown = runner.invoke(app, ["cache", "why"]).output
    assert "op 0 of the graph is tanh, was relu" in shown
    assert json.loads(runner.invoke(app, ["cache", "clear", "--json"]).output) == {"removed": 2}
    assert "0 entries" in runner.invoke(app, ["cache", "ls"]).output


def test_doctor_prints_json_with_versions_and_compiler():
    result = runner.invoke(app, ["doctor", "--json"])
    facts = {fact["name"]: fact for fact in json.loads(result.output)}
    assert facts["torch"]["value"].startswith("2.")
    assert {"python", "C++ compiler", "cpu kernels", "cache writable"} <= set(facts)
    assert facts["C++ compiler"]["value"].partition(":")[0] in ("g++", "clang++", "c++", "zig")


def test_unknown_model_is_one_clear_message(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["firebrick", "explain", "no_such_model"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "unknown target 'no_such_model'" in capsys.readouterr().err


def test_unknown_contender_is_named():
    with pytest.raises(Exception, match="unknown contender 'nobody'"):
        benchmark.bench(["bert"], ["nobody"])


def test_models_are_looked_up_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(benchmark, "_Process", None)
    for name, text in (("berd", "unknown model 'berd'"), ("no_module_here:make", "no module 'no_module_here'")):
        with pytest.raises(ConfigError, match=text):
            benchmark.bench(["lstm", name])


class Answering:
    """Stands for a contender's process."""

    started = []  # noqa: RUF012

    def __init__(self, contender, caches):
        self.contender = contender
        Answering.started.append((contender, caches))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def ask(self, do, **request):
        Answering.started.append(do)
        if self.contender == "torch.compile":
            raise FirebrickError("it broke")
        times = {"times": [0.5 if self.contender == "firebrick" else 1.0], "peak_mb": 1.0}
        return {"first": {"seconds": 2.0, "stats": {"counts": {}, "seconds": {}}}, "time": times}.get(do, {})


@pytest.fixture
def answering(monkeypatch):
    monkeypatch.setattr(Answering, "started", [])
    monkeypatch.setattr(benchmark, "_Process", Answering)
    return Answering.started


def test_a_line_is_printed_as_each_contender_is_compiled_and_measured(answering):
    out = io.StringIO()
    benchmark.bench(["lstm"], seconds=0.1, console=Console(file=out))
    assert out.getvalue().rstrip().splitlines() == [
        "lstm  eager: first call 2.00 s",
        "lstm  firebrick: first call 2.00 s, warm start 2.00 s",
        "lstm  torch.compile: failed: it broke",
        "lstm  eager: 1000 ms, 1.00 x eager, error -",
        "lstm  firebrick: 500 ms, 2.00 x eager, error -",
    ]


def test_cold_starts_can_be_left_out(answering):
    (eager, ours, _) = benchmark.bench(["lstm"], seconds=0.1, cold=False, console=Console(file=io.StringIO()))
    assert ours.cold != ours.cold and ours.warm == 2.0 and ours.run == 0.5
    assert ("firebrick", None) in answering, "the caches that there are"
    assert all("-" in line for line in [benchmark._cells(ours)])


def test_the_version_is_printed():
    assert runner.invoke(app, ["--version"]).output == f"firebrick {firebrick.__version__}\n"


def test_options_lists_every_setting_with_its_value(monkeypatch):
    monkeypatch.setenv("FIREBRICK_FUSE", "0")
    monkeypatch.setenv("FIREBRICK_REMOTE_CACHE_KEY", "very secret")
    monkeypatch.setenv("FIREBRICK_FUS", "0")
    done = runner.invoke(app, ["options"], env={"COLUMNS": "200"})
    names = [field.name for field in fields(Config)]
    assert set(names) <= set(done.stdout.split())
    assert "mode='reduce-overhead': graphs=True" in done.stdout
    assert "did you mean FIREBRICK_FUSE?" in done.stderr
    rows = {row["name"]: row for row in json.loads(runner.invoke(app, ["options", "--json"]).stdout)}
    assert list(rows) == names
    assert (rows["fuse"]["value"], rows["fuse"]["default"]) == ("False", "True")
    assert "very secret" not in done.stdout + str(rows)


SCRIPT = """
import torch
def scripted(x):
    return x.sin() + 1
scripted(torch.ones(3))
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / "scripted.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return "scripted.py"


def test_a_script_is_explained(script):
    assert "frame scripted scripted.py:3" in runner.invoke(app, ["explain", script]).stdout


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("command", "option", "file"),
    [
        ("explain", "--html", "e.html"),
        ("graph", "-o", "g.html"),
        ("report", "-o", "r.html"),
        ("profile", "--trace", "t.json"),
    ],
)
def test_missing_folders_of_results_are_made(script, tmp_path, command, option, file):
    done = runner.invoke(app, [command, script, option, f"new/folder/{file}"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new" / "folder" / file).exists()


def test_a_folder_that_can_not_be_made_is_an_error_at_once(script, tmp_path):
    (tmp_path / "file").write_text("")
    done = runner.invoke(app, ["graph", script, "-o", "file/g.html"])
    assert isinstance(done.exception, ConfigError) and "can't write file/g.html" in str(done.exception)


def test_what_a_script_raises_is_one_message_with_its_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "raising.py").write_text("import torch\n\nprint(torch.ones(3)[7])\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["firebrick", "explain", "raising.py"])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr().err
    assert "raising.py raises IndexError: index 7 is out of bounds" in shown
    assert "at raising.py:3" in shown and "Traceback" not in shown


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


def test_table_fits_80_columns_with_names_whole():
    figures = {"run": 0.12345, "speedup": 12.34, "cold": 123.45, "warm": 12.34, "error": 1.2e-7, "peak": 12345.0}
    results = [benchmark.Figures("segformer", name, **figures) for name in benchmark.CONTENDERS]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(benchmark.table(results))
    text = console.export_text()
    assert "…" not in text
    for word in (*benchmark.CONTENDERS, "segformer", "123.5", "12.34", "123.45", "1.2e-07", "12345", "contender"):
        assert word in text


def test_a_machine_that_slows_down_between_rounds_changes_no_ratio():
    eager = [[2.0, 2.0], [4.0, 4.0], [8.0, 80.0, 8.0]]
    ours = [[1.0], [2.0, 2.0, 20.0], [4.0]]
    assert benchmark.ratio(eager, ours) == 2.0


def test_notes_compare_on_what_both_run_and_say_what_compiling_and_memory_cost():
    def row(model, contender, run, cold, **more):
        return benchmark.Figures(model, contender, run=run, speedup=1 / run, cold=cold, **more)

    results = [
        row("bert", "firebrick", 0.5, 1.0, kernels=20, stages={"build": 0.3}),
        row("bert", "torch.compile", 1.0, 8.0),
        row("wide", "firebrick", 0.25, 2.0, kernels=30, stages={"build": 0.2}, traffic=2**20, copy=0.125, fresh=0.5),
        row("wide", "torch.compile", 1.0, 32.0),
        benchmark.Figures("wide", "onnxruntime", failed="no"),
        row("bert", "onnxruntime", 1.0, 1.0),
    ]
    text = benchmark.markdown(results, "c")
    assert "- firebrick 2.83, torch.compile 1.00 on the 2 of all that it runs" in text
    assert "- firebrick 2.00, onnxruntime 1.00 on the 1 of the seven that it runs" in text
    assert "- cold start: 1/11.3 of torch.compile's" in text
    assert "- longest cold start: 2.00 s (wide)" in text
    assert "- C++ compiler: 0.50 s for 50 kernels, 1.00 s per hundred" in text
    assert "takes 2.00 and 0.50 times as long" in text


@pytest.mark.parametrize("name", ["adam_foreach", "crepe", "pointwise", "unet", "wide", "update", "lstm"])
def test_each_benchmark_program_is_one_graph_in_what_the_user_wrote(name):
    if name == "crepe" and importlib.util.find_spec("torchcrepe") is None:
        pytest.skip("torchcrepe is not installed")
    model, inputs = build_model(name)
    with torch.no_grad():
        seen = firebrick.explain(model)(**inputs).to_dict()
    assert len(seen["graphs"]) == 1
    assert not seen["breaks"]


def test_geomean_is_geometric():
    assert benchmark.geomean([1.0, 4.0]) == 2.0


def test_an_interrupted_bench_keeps_the_models_before(monkeypatch):
    def measure(self, *args):
        if self.model == "b":
            raise KeyboardInterrupt
        for row in self.rows:
            row.run = 1.0

    monkeypatch.setattr(benchmark, "check_name", lambda name: None)
    monkeypatch.setattr(benchmark._Measure, "run", measure)
    console = Console(file=io.StringIO())
    results = benchmark.bench(["a", "b", "c"], ["eager", "firebrick"], console=console)
    assert [(row.model, row.contender) for row in results] == [("a", "eager"), ("a", "firebrick")]
    assert "interrupted while measuring b" in console.file.getvalue()
    with pytest.raises(KeyboardInterrupt):
        benchmark.bench(["b", "c"], ["eager"], console=console)
