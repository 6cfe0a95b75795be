"""The catalogue of graph breaks and its page: every row is used, documented, and has an example that breaks there."""

import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from compiling import Compiled, outcome

import firebrick
from firebrick.capture.breaks.catalogue import CATALOGUE

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.graph_breaks import EXAMPLES, KINDS, PAGE, page  # noqa: E402


def test_the_page_is_current():
    assert PAGE.read_text() == page(), "run python tools/graph_breaks.py"


def test_every_row_is_raised_somewhere_and_no_other():
    texts = [path.read_text() for path in (ROOT / "src" / "firebrick" / "capture").rglob("*.py")]
    raised = {name for text in texts for name in re.findall(r"Break\(\s*\"([a-z-]+)\"", text)}
    assert raised == set(CATALOGUE) == set(EXAMPLES)
    assert [kind.number for kind in CATALOGUE.values()] == list(range(1, len(CATALOGUE) + 1))


@pytest.mark.parametrize("name", CATALOGUE)
def test_example(name, tmp_path):
    text = "import firebrick\nimport torch\n\n" + EXAMPLES[name].strip() + "\n"
    file = tmp_path / "example.py"
    file.write_text(text)
    scope = {"__name__": "example"}
    exec(compile(text, str(file), "exec"), scope)
    x = torch.arange(3.0)
    plain = outcome(scope["f"], (x,))
    compiled = Compiled(scope["f"])
    for _ in range(2):
        assert ADDRESS.sub("", repr(outcome(compiled, (x,)))) == ADDRESS.sub("", repr(plain))
    marked = 1 + next(i for i, line in enumerate(text.splitlines()) if line.endswith("# here"))
    places = [(f.break_.kind.name, [place.line for place in f.break_.stack]) for f in compiled.frames if f.break_]
    assert any(kind == name and marked in lines for kind, lines in places), places


@pytest.mark.parametrize("name", ["data-dependent-branch", "unsupported-call"])
def test_fullgraph_says_number_place_and_fix(name, tmp_path):
    text = "import firebrick\nimport torch\n\n" + EXAMPLES[name].strip() + "\n"
    file = tmp_path / "example.py"
    file.write_text(text)
    scope = {"__name__": "example"}
    exec(compile(text, str(file), "exec"), scope)
    with pytest.raises(firebrick.errors.Unsupported) as caught:
        firebrick.compile(scope["f"], backend="eager", fullgraph=True)(torch.arange(3.0))
    said = str(caught.value)
    kind = CATALOGUE[name]
    marked = 1 + next(i for i, line in enumerate(text.splitlines()) if line.endswith("# here"))
    assert f"break {kind.number} ({name})" in said
    assert f"example.py:{marked}" in said
    assert kind.fix in said


@pytest.mark.parametrize(("name", "program"), [row[1::2] for row in KINDS], ids=[row[0] for row in KINDS])
def test_each_kind_that_is_listed_breaks_for_the_reason_given(name, program):
    scope = {"torch": torch}
    exec("def f(x):\n    z = x + 1\n" + textwrap.indent(program, "    ") + "\n    return y, z * 2\n", scope)
    with pytest.raises(firebrick.errors.Unsupported) as caught:
        firebrick.compile(scope["f"], fullgraph=True)(torch.arange(3.0))
    kind = CATALOGUE[name]
    assert f"graph break {kind.number} ({name})" in str(caught.value)
