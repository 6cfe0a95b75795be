"""The command line: help with an example everywhere, JSON where results are printed, clear errors."""

import json
from dataclasses import fields
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

import firebrick
from firebrick.artifact import Artifact
from firebrick.config import Config
from firebrick.errors import ConfigError
from firebrick.runtime import DiskCache, make_key
from firebrick.targets import by_device
from firebrick.tools import doctor
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


@pytest.mark.parametrize("driven", [True, False])
def test_doctor_names_the_card_and_says_whether_its_driver_is_found(monkeypatch, driven):
    card = SimpleNamespace(name="H100", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda: card)
    monkeypatch.setitem(by_device.TARGETS, "cuda", lambda config: card if driven else None)
    (fact,) = (fact for fact in doctor.examine(Config()) if fact.name == "GPU")
    assert (fact.value, fact.ok) == ("H100: sm_90, 132 multiprocessors, 80 GiB", driven)


def test_unknown_model_is_one_clear_message(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["firebrick", "explain", "no_such_model"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "unknown target 'no_such_model'" in capsys.readouterr().err


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


def test_what_follows_a_script_is_passed_to_it(script, tmp_path):
    (tmp_path / "asked.py").write_text("import sys\nassert sys.argv == ['asked.py', '--steps', '2']\n" + SCRIPT)
    done = runner.invoke(app, ["explain", "asked.py", "--steps", "2"])
    assert "frame scripted asked.py:5" in done.stdout, done.output
    other = runner.invoke(app, ["explain", "bert", "--steps", "2"])
    assert isinstance(other.exception, ConfigError)
    assert "bert takes no --steps" in str(other.exception)


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
