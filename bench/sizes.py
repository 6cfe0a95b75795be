"""Batches and sequences of many sizes through one model: compiles, seconds, and time a call beside code for one size.

    python bench/sizes.py [--model bert gpt2] [--hidden 256] [--layers 4] [--sample 6] [--torch]

The model is called with 64 pairs of (batch 1 to 8, sequence 16 to 128) in random order, and every result is compared
with eager's. Of a sample of the pairs the time of a call is the least of several, taken in turns with a compile for
that pair alone, with eager mode and, with `--torch`, with torch.compile.
"""

from __future__ import annotations

import argparse
import random
import time

import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

import firebrick

PAIRS = [(batch, length) for batch in range(1, 9) for length in range(16, 129, 16)]
ROUNDS = 5


def make(name: str, hidden: int, layers: int) -> torch.nn.Module:
    heads = max(hidden // 64, 2)
    if name == "bert":
        config = BertConfig(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            vocab_size=1000,
        )
        return BertModel(config).eval()
    return GPT2Model(
        GPT2Config(n_embd=hidden, n_layer=layers, n_head=heads, vocab_size=1000, bos_token_id=0, eos_token_id=0)
    ).eval()


def least(calls: list, ids: torch.Tensor) -> list[float]:
    """Microseconds of each function on one input, taken in turns."""
    times = [float("inf")] * len(calls)
    for call in calls:
        call(ids), call(ids)
    for _ in range(ROUNDS * 4):
        for k, call in enumerate(calls):
            start = time.perf_counter()
            call(ids)
            times[k] = min(times[k], time.perf_counter() - start)
    return [t * 1e6 for t in times]


def measure(name: str, options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model, order = make(name, options.hidden, options.layers), random.Random(0)
    pairs = order.sample(PAIRS, len(PAIRS))
    many, before, worst, seconds = firebrick.compile(model), firebrick.graphs_compiled(), 0.0, []
    peers = [torch.compile(make(name, options.hidden, options.layers))] if options.torch else []
    for pair in pairs:
        ids = torch.randint(0, 1000, pair)
        start, graphs = time.perf_counter(), firebrick.graphs_compiled()
        found = many(ids).last_hidden_state
        if firebrick.graphs_compiled() > graphs:
            seconds.append(time.perf_counter() - start)
        worst = max(worst, (found - model(ids).last_hidden_state).abs().max().item())
    compiles = firebrick.graphs_compiled() - before
    print(f"{name}: {len(pairs)} pairs, {compiles} compiles of {', '.join(f'{s:.1f}' for s in seconds)} s, "
          f"largest difference from eager {worst:.1e}")  # fmt: skip
    for peer in peers:
        start = time.perf_counter()
        for pair in pairs[:4]:
            peer(torch.randint(0, 1000, pair))
        print(f"torch.compile: the first four pairs took {time.perf_counter() - start:.1f} s")
    ratios = []
    for pair in order.sample(PAIRS, options.sample):
        ids = torch.randint(0, 1000, pair)
        start = time.perf_counter()
        one = firebrick.compile(model, dynamic=False)
        one(ids)
        alone = time.perf_counter() - start
        times = least([one, many, model, *peers], ids)
        ratios.append(times[1] / times[0])
        names = ("one size", "many", "eager", "torch.compile")
        text = ", ".join(f"{name} {t:.0f}" for name, t in zip(names, times, strict=False))
        print(f"{pair}: us {text}; many / one {ratios[-1]:.2f}; compile for one {alone:.1f} s", flush=True)
    print(f"{name}: many / one at most {max(ratios):.2f}, median {sorted(ratios)[len(ratios) // 2]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=["bert", "gpt2"])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sample", type=int, default=6)
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    with torch.no_grad():
        for name in options.model:
            measure(name, options)


if __name__ == "__main__":
    main()
