"""The snippets of the documentation run."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from firebrick.tools.cli import app

ROOT = Path(__file__).parent.parent
PAGES = ["tutorial", "look-first", "training", *(p.stem for p in sorted((ROOT / "docs").glob("extend-*.md")))]
LONGEST_PASS = 20
COMMANDS = re.findall(r"^firebrick .*", (ROOT / "docs" / "look-first.md").read_text(), re.M)


def snippets(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / f"{page}.md").read_text(), re.M | re.S)


@pytest.mark.compiler
@pytest.mark.parametrize("page", PAGES)
def test_snippets_run(page, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(ROOT)
    scope = {"__name__": f"docs_{page.replace('-', '_')}"}
    for i, text in enumerate(snippets(page)):
        file = tmp_path / f"{page}_{i}.py"  # a file, because torch.jit.script reads the source
        file.write_text(text)
        exec(compile(text, str(file), "exec"), scope)


@pytest.mark.compiler
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_first_look_run(command, monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    if ".onnx" in command:
        pytest.importorskip("onnx")
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output


def test_the_smallest_pass_is_short():
    first = snippets("extend-pass")[0]
    body = first[first.index("@graph_pass") : first.index("\n\n\nf = ")]
    assert len(body.splitlines()) <= LONGEST_PASS
