"""Tokens of small models with growing and static caches: compiles, equal tokens, seconds.

    python bench/generate.py [--model qwen t5 whisper] [--tokens 40]

Four prompts of other lengths each; the model's forward is compiled, and its tokens are compared with eager's.
"""

from __future__ import annotations

import argparse
import time
import warnings

import torch
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import firebrick

LENGTHS = (5, 8, 13, 21)


def qwen() -> torch.nn.Module:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = {"vocab_size": 200, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    return Qwen2ForCausalLM(Qwen2Config(num_key_value_heads=2, max_position_embeddings=512, **sizes, **tokens)).eval()


def t5() -> torch.nn.Module:
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    tokens = {"vocab_size": 200, "decoder_start_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    return T5ForConditionalGeneration(T5Config(**sizes, **tokens)).eval()


def whisper() -> torch.nn.Module:
    half = {"layers": 2, "attention_heads": 4, "ffn_dim": 128}
    sizes = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in half.items()}
    tokens = {"vocab_size": 200, "decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 199, "pad_token_id": 0}
    rest = {"d_model": 64, "max_source_positions": 50, "max_target_positions": 200}
    plain = {"suppress_tokens": None, "begin_suppress_tokens": None}
    return WhisperForConditionalGeneration(WhisperConfig(**sizes, **tokens, **rest, **plain)).eval()


MODELS = {"qwen": qwen, "t5": t5, "whisper": whisper}


def measure(name: str, cache: str | None, tokens: int) -> str:
    torch.manual_seed(0)
    model = MODELS[name]()
    inputs = [{"input_ids": torch.randint(2, 198, (1, n))} for n in LENGTHS]
    if name == "whisper":
        inputs = [{"input_features": torch.randn(1, 80, 100)} for _ in LENGTHS]
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    options |= {} if cache is None else {"cache_implementation": cache}
    start = time.perf_counter()
    wanted = [model.generate(**given, **options) for given in inputs]
    eager, before = time.perf_counter() - start, firebrick.graphs_compiled()
    model.forward = firebrick.compile(model.forward)
    start = time.perf_counter()
    equal = [torch.equal(model.generate(**g, **options), w) for g, w in zip(inputs, wanted, strict=True)]
    first, compiles = time.perf_counter() - start, firebrick.graphs_compiled() - before
    start = time.perf_counter()
    for given in inputs:
        model.generate(**given, **options)
    again = time.perf_counter() - start
    firebrick.reset()
    return (
        f"{name}, {cache or 'growing'} cache: {compiles} compiles, {sum(equal)} of {len(equal)} prompts equal; "
        f"seconds eager {eager:.1f}, compiled first {first:.1f}, again {again:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="*", default=[*MODELS])
    parser.add_argument("--tokens", type=int, default=40)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with torch.no_grad():
        for name in options.model:
            for cache in (None, "static"):
                print(measure(name, cache, options.tokens), flush=True)


if __name__ == "__main__":
    main()
