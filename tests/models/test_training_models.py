"""Small configurations of three models are trained for some steps, beside eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import firebrick

transformers = pytest.importorskip("transformers")

IDS = torch.randint(0, 100, (2, 16), generator=torch.Generator().manual_seed(0))


def bert() -> tuple[torch.nn.Module, dict[str, Any]]:
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=100
    )
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    config.problem_type = "single_label_classification"
    return transformers.BertForSequenceClassification(config), {"input_ids": IDS, "labels": torch.tensor([0, 1])}


def gpt2() -> tuple[torch.nn.Module, dict[str, Any]]:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=4, vocab_size=100, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    config.bos_token_id = config.eos_token_id = 0
    return transformers.GPT2LMHeadModel(config), {"input_ids": IDS, "labels": IDS, "use_cache": False}


def resnet() -> tuple[torch.nn.Module, dict[str, Any]]:
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic")
    config.problem_type = "single_label_classification"
    pixels = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model = transformers.ResNetForImageClassification(config)
    return model, {"pixel_values": pixels, "labels": torch.tensor([0, 1, 0, 1])}


MODELS = {"bert": (bert, 1, 0.9), "gpt2": (gpt2, 2, 0.6), "resnet": (resnet, 1, 0.7)}
"""Name -> (maker, graphs, largest part of the bytes that eager saves for its backward)."""


def saved_by_eager(model: torch.nn.Module, inputs: dict[str, Any]) -> int:
    own = {
        t.untyped_storage().data_ptr()
        for t in (*model.parameters(), *model.buffers(), *inputs.values())
        if isinstance(t, torch.Tensor)
    }
    found = {}

    def note(t: torch.Tensor) -> torch.Tensor:
        found[t.untyped_storage().data_ptr()] = t.untyped_storage()  # kept: its address must stay its own
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        loss = model(**inputs).loss
    assert loss.requires_grad
    return sum(storage.nbytes() for place, storage in found.items() if place not in own)


@pytest.mark.parametrize("name", MODELS)
def test_steps_follow_eager(name: str) -> None:
    make, graphs, share = MODELS[name]
    torch.manual_seed(0)
    model, inputs = make()
    model.train()
    twin, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    compiled = firebrick.compile(model)
    before = dict(firebrick.stats()["counts"])
    sides: list[Any] = [(compiled, model, inputs), (twin, twin, inputs), (exact, exact, doubled(inputs))]
    optimizers = [torch.optim.SGD(module.parameters(), 0.05) for _, module, _ in sides]
    for _ in range(3):
        losses = []
        for (call, _, given), optimizer in zip(sides, optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(call(**given).loss)
            losses[-1].backward()
            optimizer.step()
        assert error(losses[0], losses[2]) <= max(1.1 * error(losses[1], losses[2]), 2e-6)
    ours, eager = (worst(module, exact) for module in (model, twin))
    assert ours <= 1.1 * eager + 1e-6
    after = firebrick.stats()["counts"]
    made = {k: after.get(k, 0) - before.get(k, 0) for k in after}
    assert made["graphs compiled"] == graphs
    # The logits are a result too, which the loss is made of: from the one to the other is a backward of its own.
    assert made["backward graphs compiled"] == graphs + 1
    assert made["bytes saved for backward"] <= share * saved_by_eager(twin, inputs)


def worst(model: torch.nn.Module, exact: torch.nn.Module) -> float:
    pairs = zip(model.state_dict().values(), exact.state_dict().values(), strict=True)
    return max(error(found, wanted) for found, wanted in pairs)


def doubled(inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in inputs.items()}


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    found, exact = found.detach().double(), exact.detach().double()
    return float((found - exact).abs().max() / exact.abs().max().clamp_min(1e-2))
