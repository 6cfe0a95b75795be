"""Llama of 7B widths in bf16 on one GPU: a token with a static cache, and a prompt, beside torch.compile.

Run: python -m bench.gpu_decode [--layers 32] [--contenders eager ours ours-always reduce-overhead]

Each contender is a process with the whole model; they run one after another. A token is decoded at a place that a
tensor on the GPU holds, with a cache of 2,304 places after a prompt of 2,048 tokens; the prompt fills the cache.
"""

import argparse
import subprocess
import sys
import time
import warnings

import torch
import transformers

from bench.gpu import compiled, milliseconds, tell_graphs

CONTENDERS = ("eager", "ours", "ours-always", "default", "reduce-overhead")


def build(options: argparse.Namespace):
    """A model of random weights on the device."""
    small = options.small
    config = transformers.LlamaConfig(
        hidden_size=64 if small else 4096,
        intermediate_size=172 if small else 11008,
        num_hidden_layers=options.layers,
        num_attention_heads=4 if small else 32,
        vocab_size=1000 if small else 32000,
        max_position_embeddings=4096,
    )
    with torch.device(options.device):
        model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    return model.eval()


@torch.no_grad()
def measure(options: argparse.Namespace) -> None:
    """Print a line."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    model, device = build(options), options.device
    name, prompt = options.contenders[0], options.prompt
    ids = torch.randint(0, 900, (1, prompt), device=device)
    cache = transformers.StaticCache(config=model.config, max_cache_len=prompt + 256)
    places = torch.arange(prompt, device=device)

    def run(tokens: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        made = model(
            input_ids=tokens,
            position_ids=at[None],
            past_key_values=cache,
            cache_position=at,
            use_cache=True,
            logits_to_keep=1,
        )
        return made.logits

    def reset(length: int) -> None:
        torch._foreach_copy_(
            [layer.cumulative_length for layer in cache.layers], [torch.tensor(length)] * options.layers
        )

    fill, decode = (run, run) if name == "eager" else (compiled(run, name), compiled(run, name))
    at, token = torch.tensor([prompt], device=device), torch.tensor([[7]], device=device)
    want = run(ids, places).float(), run(token, at).float()
    reset(0)
    sync = torch.cuda.synchronize if device != "cpu" else lambda: None
    sync()
    begin = time.perf_counter()
    made = fill(ids, places).float()
    sync()
    cold_fill = time.perf_counter() - begin
    begin = time.perf_counter()
    next_one = decode(token, at).float()
    sync()
    cold = time.perf_counter() - begin
    errors = [((a - b).norm() / b.norm()).item() for a, b in zip((made, next_one), want, strict=True)]
    if device != "cpu":
        for _ in range(24):
            decode(token, at)
        token_ms = milliseconds(lambda: decode(token, at))
        fill_ms = milliseconds(lambda: (reset(0), fill(ids, places)), rounds=3, calls=8)
        peak = torch.cuda.max_memory_allocated() >> 20
        figures = f"{token_ms:.2f} | {fill_ms:.2f} | {cold:.1f} | {cold_fill:.1f}"
        print(f"| {name} | {figures} | {errors[1]:.1e} | {errors[0]:.1e} | {peak} |", flush=True)
    else:
        print(name, errors, flush=True)
    tell_graphs()


def main() -> None:
    """Measure, each in a process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="narrow, to see that it runs")
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    if options.here:
        measure(options)
        return
    titles = (
        "",
        "ms a token",
        "ms a prompt",
        "first call s",
        "of the prompt",
        "against eager",
        "of the prompt",
        "peak MiB",
    )
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|", flush=True)
    words = ["--layers", str(options.layers), "--prompt", str(options.prompt), "--device", options.device]
    words += ["--small"] * options.small
    for name in options.contenders:
        subprocess.run([sys.executable, __file__, *words, "--contenders", name, "--here"], check=False)


if __name__ == "__main__":
    main()
