"""Tokens of small models with growing and static caches: compiles, equal tokens, milliseconds a token.

    python bench/generate.py [--model llama qwen t5 whisper] [--cache growing static] [--tokens 40] [--torch]

Four prompts of other lengths each; the model's forward is compiled, and its tokens are compared with eager's.
`--torch` also runs torch.compile, which gets `--limit` seconds a model; times are medians of `--rounds` taken in turns.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import sys
import time
import warnings
from typing import TYPE_CHECKING

import torch
from torch._dynamo.utils import counters
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

if TYPE_CHECKING:
    from collections.abc import Callable

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


class Limit(Exception):
    """The peer had its seconds."""


def limited(forward: Callable, seconds: float) -> Callable:
    """`forward` that shows its calls and compiles, and stops between two calls once its seconds are over."""
    counts, start, calls = counters["stats"], time.perf_counter(), itertools.count(1)

    @functools.wraps(forward)
    def call(*args: object, **kwargs: object) -> object:
        passed = time.perf_counter() - start
        if passed > seconds:
            raise Limit
        progress = f"torch.compile: call {next(calls)}, {counts['unique_graphs']} compiles, {passed:.0f} s"
        print(progress, end="\r", file=sys.stderr, flush=True)
        return forward(*args, **kwargs)

    return call


def first_of_peer(run: Callable, plain: Callable, seconds: float) -> tuple[Callable | None, str]:
    """torch.compile's forward if all its compiles end within `seconds`, and what to say of them."""
    torch.compiler.reset()
    counters.clear()
    compiled, start = torch.compile(plain), time.perf_counter()
    try:
        run(limited(compiled, seconds))
    except Limit:
        return None, f"torch.compile not done within {seconds:.0f} s, {counters['stats']['unique_graphs']} compiles"
    took = time.perf_counter() - start
    return compiled, f"torch.compile {counters['stats']['unique_graphs']} compiles, first run {took:.1f} s"


def measure(name: str, cache: str, tokens: int, limit: float, rounds: int) -> str:
    """A line on one model: compiles, equal tokens, and times of which each round takes all in turns."""
    torch.manual_seed(0)
    model = MODELS[name]()
    inputs = [{"input_ids": torch.randint(2, 198, (1, n))} for n in LENGTHS]
    if name == "whisper":
        inputs = [{"input_features": torch.randn(1, 80, 100)} for _ in LENGTHS]
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    options |= {} if cache == "growing" else {"cache_implementation": cache}

    def run(forward: Callable) -> tuple[list, float]:
        model.forward, start = forward, time.perf_counter()
        results = [model.generate(**prompt, **options) for prompt in inputs]
        return results, time.perf_counter() - start

    plain = model.forward
    expected, before, forwards = run(plain)[0], firebrick.graphs_compiled(), {"eager": plain}
    forwards["firebrick"] = firebrick.compile(plain)
    results, first = run(forwards["firebrick"])
    equal, compiles = sum(map(torch.equal, results, expected)), firebrick.graphs_compiled() - before
    texts = [
        f"{name}, {cache} cache: firebrick {compiles} compiles, {equal} of {len(inputs)} prompts equal, "
        f"first run {first:.1f} s"
    ]
    if limit:
        peer, text = first_of_peer(run, plain, limit)
        forwards |= {"torch.compile": peer} if peer else {}
        texts.append(text)
    times = [{label: run(forward)[1] for label, forward in forwards.items()} for _ in range(rounds)]
    for label in forwards:
        each = statistics.median(row[label] for row in times) * 1e3 / tokens / len(inputs)
        ratio = statistics.median(row[label] / row["eager"] for row in times)
        texts.append(f"{label} {each:.2f} ms a token ({ratio:.2f} of eager's)")
    firebrick.reset()
    return "; ".join(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="*", default=[*MODELS])
    parser.add_argument("--cache", nargs="*", default=["growing", "static"])
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--limit", type=float, default=300, help="seconds for torch.compile's first run of a model")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with torch.no_grad():
        for name in options.model:
            for cache in options.cache:
                print(measure(name, cache, options.tokens, options.limit * options.torch, options.rounds), flush=True)


if __name__ == "__main__":
    main()
