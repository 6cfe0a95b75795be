"""Capture of a sample of the models in docs/models.md; `make models` does all of them."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.models.coverage import cover, page, read_table  # noqa: E402
from tests.models.zoo import ZOO  # noqa: E402

pytestmark = pytest.mark.models
TABLE = read_table((ROOT / "docs" / "models.md").read_text())
SAMPLE = (
    "DebertaV2Model",
    "LlamaForCausalLM",
    "T5ForConditionalGeneration",
    "Qwen2MoeForCausalLM",
    "Mamba2ForCausalLM",
    "SwinModel",
    "WhisperModel",
    "CLIPModel",
    "LongformerModel",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_model_is_captured_as_the_table_says(name):
    found, said = cover(name), TABLE[name]
    assert (found.graphs, found.breaks, found.percent, found.right) == (
        said.graphs,
        said.breaks,
        said.percent,
        said.right,
    ), found.causes


def test_table_holds_every_model_and_all_are_right():
    assert list(TABLE) == list(ZOO)
    assert len(TABLE) >= 60
    assert all(row.right for row in TABLE.values())
    assert sum(row.graphs == 1 and not row.breaks for row in TABLE.values()) >= 0.95 * len(TABLE)
    assert {row.kind for row in ZOO.values()} >= {"audio", "multimodal", "mixture of experts", "state space"}


def test_page_is_read_back():
    assert read_table(page(list(TABLE.values()))) == TABLE
