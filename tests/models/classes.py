"""Every model class of transformers that builds small: its config is cut down by the names of its fields.

A row of `zoo.py` is written by hand; these are not, so classes whose configs want more than small sizes do not build.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

__all__ = ["build_class", "class_names"]

_SIZES: tuple[tuple[str, int], ...] = (
    (r"(num|n)_?(hidden|encoder|decoder|text|vision|audio|self_attention|attention)?_?(layers?|blocks?)|n_layer|depth|(en|de)coder_layers|.*_(num_)?layers|num_hidden_layers", 2),
    (r".*(key_value|kv)_?heads|n_head_kv", 2),
    (r".*(heads|n_head)", 4),
    (r".*vocab_size|n_tokens?|.*codebook_size", 100),
    (r".*(image|input|img)_size|.*resolution", 32),
    (r".*patch_size", 8),
    (r".*head_dim|d_kv|.*rope_head_dim|kv_channels|attention_head_size|d_head", 8),
    (r".*lora_rank|.*_rank", 8),
    (r"(num|n)_(local_|routed_)?experts|.*num_experts", 4),
    (r".*experts_per_tok(en)?|.*top_?k(_experts)?|n_shared_experts", 2),
    (r"(n|topk|num)_group", 1),
    (r".*(intermediate|ffn|inner|mlp|feed_forward).*(size|dim)|.*ffn_dim|d_ff|d_inner|n_inner", 64),
    (r".*(hidden_size|d_model|embed_dim|hidden_dim|n_embd|embedding_size|width|projection_dim|dim)|.*_dim", 32),
    (r"max_(position_embeddings|source_positions|target_positions|seq_len|sequence_length)|n_positions|n_ctx", 64),
    (r"num_queries|.*num_detection_tokens", 5),
    (r"attention_window|.*sliding_window|.*chunk_size(?<!forward)|block_size|local_attention", 8),
    (r"num_mel_bins", 16),
)  # fmt: skip
"""Names of a config's numbers -> what they become, where they are larger; the first that fits."""
_LISTS = {"hidden_sizes": 16, "embed_dims": 16, "depths": 1, "num_heads": 2, "num_attention_heads": 2, "dims": 16}
_TOKEN = re.compile(r"(.*)_(token_id|token_index|id|token)$")
_LIMIT = 40_000_000  # parameters of what still is not small


def class_names() -> list[str]:
    """The base classes of every kind of model, and those that generate text, in alphabetical order."""
    rows = (modeling_auto.MODEL_MAPPING_NAMES, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    names = {name for row in rows for value in row.values() for name in ((value,) if isinstance(value, str) else value)}
    return sorted(name for name in names if hasattr(transformers, name))


def _small(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, list, tuple)):
        return None
    if isinstance(value, (list, tuple)):
        if name in _LISTS and value and all(isinstance(n, int) for n in value):
            step = _LISTS[name]
            return type(value)(step * (i + 1) if step == 16 else step for i in range(len(value)))
        return None
    token = _TOKEN.match(name)
    if token is not None and value > 2 and "num" not in name:
        return 90 + sum(map(ord, name)) % 10
    for pattern, size in _SIZES:
        if re.fullmatch(pattern, name):
            return size if value > size else None
    return None


def _fields(cls: type) -> dict[str, Any]:
    given = {}
    for field in dataclasses.fields(cls):
        if field.init and field.name not in ("transformers_version", "architectures", "id2label", "label2id"):
            value = field.default
            if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
                value = field.default_factory()
            given[field.name] = value
    return given


def small_config(cls: Any) -> Any:
    """A config with small sizes, and small configs within it."""
    given: dict[str, Any] = {}
    for name, value in _fields(cls).items():
        small = _small(name, value)
        if small is not None:
            given[name] = small
    given.update({name: small_config(part) for name, part in cls.sub_configs.items() if dataclasses.is_dataclass(part)})
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if name in _fields(cls):
            given[name] = ("pad_token_id", "bos_token_id", "eos_token_id").index(name)
    return cls(**given)


def _inputs(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Arguments that may suit a model, by the names of its parameters: those of pictures, sounds, tokens."""
    names = inspect.signature(model.forward).parameters
    config = model.config
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", 32)
    height, width = (size, size) if isinstance(size, int) else size[:2] if isinstance(size, (list, tuple)) else (32, 32)
    channels = getattr(vision, "num_channels", 3)
    mel = getattr(config, "num_mel_bins", None) or 16
    ids = torch.randint(3, 80, (1, 8))
    one = {"input_ids": ids, "attention_mask": torch.ones(1, 8, dtype=torch.long)}
    every = {
        **one,
        "pixel_values": torch.randn(1, channels if isinstance(channels, int) else 3, height, width),
        "input_values": torch.randn(1, 1000),
        "input_features": torch.randn(1, mel, 100),
        "decoder_input_ids": ids[:, :4],
        "bbox": torch.zeros(1, 8, 4, dtype=torch.long),
    }
    fitting = {name: value for name, value in every.items() if name in names}
    if "input_ids" not in fitting:
        fitting.pop("attention_mask", None)
    tries = [fitting, {k: v for k, v in fitting.items() if k in ("input_ids", "attention_mask", "decoder_input_ids")}]
    tries += [{"input_ids": ids}, {"pixel_values": every["pixel_values"]}, {"input_values": every["input_values"]}]
    tries += [{"input_features": torch.randn(1, 100, mel)}, {"pixel_values": torch.randn(1, 2, 3, height, width)}]
    tries += [{"input_values": torch.randn(1, 1, 1000)}, {"input_features": torch.randn(1, mel, 100)}]
    return [one for one in tries if one and all(name in names for name in one)]


def build_class(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A small model of a class with random weights in evaluation mode, and keyword arguments that it takes.

    Raises:
        ValueError: it is not small, or takes none of the arguments that are tried.
    """
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    config = small_config(cls.config_class)
    with torch.device("meta"):
        count = sum(p.numel() for p in cls(config).parameters())
    if count > _LIMIT:
        raise ValueError(f"{count} parameters")
    model = cls(config).eval()
    error: Exception = ValueError("it takes other arguments")
    for inputs in _inputs(model):
        try:
            with torch.no_grad():
                model(**inputs)
        except Exception as raised:  # noqa: BLE001  the next arguments may suit
            error = raised
        else:
            return model, inputs
    raise ValueError(f"{type(error).__name__}: {error}") from error
