"""Models on one GPU in fp16 beside eager mode and torch.compile; each line is a process of its own.

Run: python bench/gpu.py [--models bert gpt2] [--batches 1 32] [--contenders eager ours default reduce-overhead]
"""

import argparse
import statistics
import subprocess
import sys
import time
import warnings

import torch

MODELS = ("bert", "gpt2", "llama", "resnet50", "mobilenet", "vit", "convnext")
CONTENDERS = ("eager", "ours", "default", "reduce-overhead", "max-autotune")


def build(name: str, batch: int):
    """A model of random weights and its arguments."""
    import torchvision.models as vision
    import transformers as text

    torch.manual_seed(0)
    images = {
        "resnet50": vision.resnet50,
        "mobilenet": vision.mobilenet_v3_large,
        "vit": vision.vit_b_16,
        "convnext": vision.convnext_tiny,
    }
    if name in images:
        return images[name](), torch.randn(batch, 3, 224, 224).half()
    model = {
        "bert": lambda: text.BertModel(text.BertConfig()),
        "gpt2": lambda: text.GPT2LMHeadModel(text.GPT2Config(use_cache=False)),
        "llama": lambda: text.LlamaForCausalLM(
            text.LlamaConfig(
                hidden_size=2048,
                intermediate_size=5504,
                num_hidden_layers=8,
                num_attention_heads=16,
                use_cache=False,
            )
        ),
    }[name]()
    return model, torch.randint(0, 30_000, (batch, 128))


def first(results) -> torch.Tensor:
    """The tensor that is compared."""
    return results if isinstance(results, torch.Tensor) else results[0]


def milliseconds(run, rounds: int = 5, calls: int = 8) -> float:
    """Median of the mean of a few calls, all of which the GPU has done."""
    for _ in range(calls):
        run()
    torch.cuda.synchronize()
    seen = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
        seen.append((time.perf_counter() - begin) / calls * 1e3)
    return statistics.median(seen)


@torch.no_grad()
def measure(name: str, batch: int, contender: str) -> None:
    """Print a line."""
    import firebrick

    warnings.filterwarnings("ignore")
    model, x = build(name, batch)
    model, x = model.cuda().half().eval(), x.cuda()
    want = first(model(x)).float()
    if contender == "ours":
        run = firebrick.compile(model)
    else:
        run = model if contender == "eager" else torch.compile(model, mode=contender)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    made = first(run(x)).float()
    torch.cuda.synchronize()
    cold = time.perf_counter() - begin
    error = ((made - want).norm() / want.norm()).item()
    torch.cuda.reset_peak_memory_stats()
    ms = milliseconds(lambda: run(x))
    peak = torch.cuda.max_memory_allocated() >> 20
    print(f"| {name} | {batch} | {contender} | {ms:.2f} | {cold:.1f} | {error:.1e} | {peak} |", flush=True)


def main() -> None:
    """Measure, each in a process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 32))
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS[:-1], choices=CONTENDERS)
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    if options.here:
        measure(options.models[0], options.batches[0], options.contenders[0])
        return
    print("| model | batch | | ms | first call s | against eager | peak MiB |\n|---|---|---|---|---|---|---|")
    for name in options.models:
        for batch in options.batches:
            for contender in options.contenders:
                words = ["--models", name, "--batches", str(batch), "--contenders", contender]
                subprocess.run([sys.executable, __file__, "--here", *words], check=False)


if __name__ == "__main__":
    main()
