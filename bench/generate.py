"""Tokens of small models with growing and static caches: compiles, equal tokens, milliseconds a token.

    python bench/generate.py [--model llama qwen t5 whisper] [--cache growing static] [--tokens 40] [--torch]

Four prompts of other lengths each; the model's forward is compiled, and its tokens are compared with eager's.
"""

from __future__ import annotations

import argparse
import time
import warnings

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import firebrick

LENGTHS = (5, 8, 13, 21)


DECODER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 200,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def llama() -> torch.nn.Module:
    return LlamaForCausalLM(LlamaConfig(**DECODER)).eval()


def qwen() -> torch.nn.Module:
    return Qwen2ForCausalLM(Qwen2Config(**DECODER)).eval()


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


MODELS = {"llama": llama, "qwen": qwen, "t5": t5, "whisper": whisper}


def measure(name: str, cache: str, tokens: int, peer: bool) -> str:
    torch.manual_seed(0)
    model = MODELS[name]()
    inputs = [{"input_ids": torch.randint(2, 198, (1, n))} for n in LENGTHS]
    if name == "whisper":
        inputs = [{"input_features": torch.randn(1, 80, 100)} for _ in LENGTHS]
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    options |= {} if cache == "growing" else {"cache_implementation": cache}

    def run() -> tuple[list, float]:
        start = time.perf_counter()
        results = [model.generate(**prompt, **options) for prompt in inputs]
        return results, time.perf_counter() - start

    (expected, _), (_, eager), plain = run(), run(), model.forward
    before, model.forward = firebrick.graphs_compiled(), firebrick.compile(plain)
    results, first = run()
    equal = sum(map(torch.equal, results, expected))
    compiles, each = firebrick.graphs_compiled() - before, 1e3 / tokens / len(inputs)
    text = (
        f"{name}, {cache} cache: {compiles} compiles, {equal} of {len(inputs)} prompts equal, first run {first:.1f} s; "
        f"ms a token: eager {eager * each:.2f}, firebrick {run()[1] * each:.2f}"
    )
    firebrick.reset()
    if peer:
        model.forward = torch.compile(plain)
        first = run()[1]
        text += f", torch.compile {run()[1] * each:.2f} (first run {first:.1f} s)"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="*", default=[*MODELS])
    parser.add_argument("--cache", nargs="*", default=["growing", "static"])
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with torch.no_grad():
        for name in options.model:
            for cache in options.cache:
                print(measure(name, cache, options.tokens, options.torch), flush=True)


if __name__ == "__main__":
    main()
