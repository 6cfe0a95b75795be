"""Generation gives eager's tokens, compiles a bounded number of graphs, and nothing in the second run."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.models.generation import MODES, NEW, generate  # noqa: E402

pytestmark = pytest.mark.models


@pytest.mark.parametrize("mode", MODES)
def test_generation(mode):
    found = generate("LlamaForCausalLM", mode)
    assert found.right
    assert found.again == 0
    assert found.graphs <= (2 if "static" in mode else NEW)


def test_generation_of_an_encoder_and_decoder():
    found = generate("T5ForConditionalGeneration", "greedy")
    assert found.right
    assert found.again == 0
