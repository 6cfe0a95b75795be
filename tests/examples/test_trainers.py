"""Scripts that train with others' trainers: compiled as in plain Python, by one line."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import firebrick

pytestmark = [pytest.mark.compiler, pytest.mark.slow]
FOLDER = Path(__file__).parents[2] / "examples" / "trainers"
NEEDS = {
    "hf_trainer": ("transformers", "accelerate"),
    "lightning_trainer": ("lightning",),
    "accelerate_loop": ("accelerate",),
    "peft_lora": ("transformers", "peft"),
}


@pytest.fixture
def script(request, monkeypatch):
    """The module of a script; it is skipped only where a package is not there at all."""
    name = request.param
    for package in NEEDS[name]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module(name)
    sys.modules.pop(name)


def test_every_script_is_run_and_small():
    scripts = {path.stem: path.read_text().splitlines() for path in FOLDER.glob("*.py")}
    assert scripts.keys() == NEEDS.keys()
    assert all(len(lines) <= 40 for lines in scripts.values())


@pytest.mark.parametrize("script", NEEDS, indirect=True)
def test_losses_and_parameters_are_those_of_plain_python(script):
    losses, plain = script.train(compiled=False)
    before = firebrick.graphs_compiled()
    compiled_losses, compiled = script.train(compiled=True)
    assert firebrick.graphs_compiled() > before
    assert len(set(losses)) > 3
    torch.testing.assert_close(compiled_losses, losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(compiled.state_dict()), dict(plain.state_dict()), rtol=1e-4, atol=1e-5)
