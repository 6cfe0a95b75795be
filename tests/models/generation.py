"""`model.generate` compiled and plain: tokens, and how many graphs it takes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from tests.models.zoo import build

import firebrick

__all__ = ["MODES", "MODELS", "Generated", "generate"]

NEW = 24
MODELS = ("LlamaForCausalLM", "GPT2LMHeadModel", "T5ForConditionalGeneration")
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 10, "temperature": 0.8},
    "beams": {"do_sample": False, "num_beams": 3},
    "greedy, static cache": {"do_sample": False, "cache_implementation": "static"},
}


@dataclass(frozen=True)
class Generated:
    """What became of one way to generate."""

    model: str
    mode: str
    right: bool
    graphs: int
    again: int

    def row(self) -> str:
        """A line of the table."""
        right = "as eager" if self.right else "WRONG"
        return f"| {self.model} | {self.mode} | {right} | {self.graphs} | {self.again} |"


def generate(name: str, mode: str) -> Generated:
    """Generate plainly and twice compiled, from equal models and seeds."""
    model, inputs = build(name)
    inputs = {key: inputs[key] for key in ("input_ids", "attention_mask") if key in inputs}
    model.generation_config.pad_token_id = 0
    model.generation_config.decoder_start_token_id = 0

    def run(any_model: Any) -> torch.Tensor:
        torch.manual_seed(3)
        found: torch.Tensor = any_model.generate(**inputs, max_new_tokens=NEW, min_new_tokens=NEW, **MODES[mode])
        return found

    expected = run(model)
    firebrick.reset()
    compiled = firebrick.compile(model, backend="eager")
    counts, right = [_graphs()], True
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", firebrick.report.FirebrickWarning)
            right &= torch.equal(run(compiled), expected)
        counts.append(_graphs())
    return Generated(name, mode, right, counts[1] - counts[0], counts[2] - counts[1])


def _graphs() -> int:
    found: int = firebrick.stats()["counts"].get("graphs", 0)
    return found
