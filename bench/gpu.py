"""Models on one GPU in fp16 beside eager mode and torch.compile; each line is a process of its own.

Run: python bench/gpu.py [--models bert gpt2] [--batches 1 32] [--contenders eager ours default reduce-overhead]
     [--together: all start at once, and are measured one by one when all are warm; first calls take longer then]
     [--first-calls: seconds of first calls alone, one process after another, with empty caches and with kept ones]

"error" is the norm of the difference from the result in float64 (of float32 for models that run under autocast) over
the norm of that result.
"""

import argparse
import copy
import itertools
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import torch

import firebrick

MODELS = ("bert", "gpt2", "llama", "resnet50", "mobilenet", "vit", "convnext")
SEGMENTERS = ("segformer", "beit", "owlvit", "detr", "detr101", "conditional_detr", "maskformer", "mask2former")
"""Models of the talk on torch.compile that are not among the former."""
MIXED = ("maskformer", "mask2former")
"""Their own code makes float32 of halves, so that they run as float32 under autocast."""
OURS = {
    "ours": {},
    "ours-steps": {"options": {"graphs": False}},
    "ours-always": {"mode": "reduce-overhead"},
    "ours-max-autotune": {"mode": "max-autotune"},
}
CONTENDERS = ("eager", *OURS, "default", "reduce-overhead", "max-autotune")


def build(name: str, batch: int):
    """A model of random weights and its arguments."""
    if name in SEGMENTERS:
        torch.manual_seed(0)
        return segmenter(name), torch.randn(batch, 3, 768, 768).half() if name == "owlvit" else images_of(batch)
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
        return images[name](), images_of(batch)
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


def images_of(batch: int) -> torch.Tensor:
    """Images of 224 x 224 pixels."""
    return torch.randn(batch, 3, 224, 224).half()


def segmenter(name: str) -> torch.nn.Module:
    """A model that finds objects or says what each pixel is, of its configuration's own size."""
    import transformers as models

    def resnet(*depths: int):
        return {
            "backbone_config": models.ResNetConfig(depths=depths, out_features=["stage4"]),
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
        }

    swin = {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
    return {
        "segformer": lambda: models.SegformerForSemanticSegmentation(models.SegformerConfig()),
        "beit": lambda: models.BeitModel(models.BeitConfig()),
        "owlvit": lambda: models.OwlViTVisionModel(models.OwlViTVisionConfig()),
        "detr": lambda: models.DetrForObjectDetection(models.DetrConfig(**resnet(3, 4, 6, 3))),
        "detr101": lambda: models.DetrForObjectDetection(models.DetrConfig(**resnet(3, 4, 23, 3))),
        "conditional_detr": lambda: models.ConditionalDetrForObjectDetection(
            models.ConditionalDetrConfig(**resnet(3, 4, 6, 3))
        ),
        "maskformer": lambda: models.MaskFormerForInstanceSegmentation(
            models.MaskFormerConfig(backbone_config=models.SwinConfig(**swin))
        ),
        "mask2former": lambda: models.Mask2FormerForUniversalSegmentation(
            models.Mask2FormerConfig(backbone_config=models.SwinConfig(**swin))
        ),
    }[name]()


def first(results) -> torch.Tensor:
    """The tensor that is compared."""
    return results if isinstance(results, torch.Tensor) else results[0]


def exact_result(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What the model gives in float64."""
    return first(copy.deepcopy(model).double()(x.double() if x.is_floating_point() else x))


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


def enqueueing(run, calls: int = 20) -> float:
    """Milliseconds that a call keeps the host, with a GPU that is idle."""
    seen = []
    for _ in range(calls):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        seen.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(seen)


def compiled(model, contender: str):
    """The model, or an optimizer's step, as a contender runs it."""
    if contender in OURS:
        return firebrick.compile(model, **OURS[contender])
    return model if contender == "eager" else torch.compile(model, mode=contender)


def tell_graphs() -> None:
    """What became of our recordings, and what was left to eager mode."""
    for kind, texts in firebrick.stats()["reasons"].items():
        for text in texts:
            print(text if kind == "CUDA graphs" else f"{kind}: {text}", file=sys.stderr, flush=True)


def measure_training(name: str, batch: int, contender: str) -> None:
    """Print a line on a step of training: bf16 autocast, AdamW, a loss of all results."""
    warnings.filterwarnings("ignore")
    model, x = build(name, batch)
    model, x = model.cuda(), x.cuda()
    x = x.float() if x.is_floating_point() else x
    run, optimizer = compiled(model, contender), torch.optim.AdamW(model.parameters(), lr=1e-6)
    update = compiled(optimizer.step, contender)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = first(run(x)).float().square().mean()
        loss.backward()
        update()
        optimizer.zero_grad()

    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    cold = time.perf_counter() - begin
    for _ in range(30):
        step()
    torch.cuda.synchronize()
    print("warm", flush=True)
    sys.stdin.readline()
    torch.cuda.reset_peak_memory_stats()
    ms, host = milliseconds(step), enqueueing(step)
    peak, reserved = torch.cuda.max_memory_allocated() >> 20, torch.cuda.memory_reserved() >> 20
    figures = f"{ms:.3f} | {host:.3f} | {cold:.1f} | | {peak} | {reserved}"
    print(f"| {name} | {batch} | {contender}, training | {figures} |", flush=True)
    tell_graphs()


def subject(name: str, batch: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """A model on the GPU for inference, in fp16 but for those that run under autocast, and its input."""
    warnings.filterwarnings("ignore")
    model, x = build(name, batch)
    model, x = model.cuda().eval(), x.cuda()
    return (model, x.float()) if name in MIXED else (model.half(), x)


@torch.no_grad()
def measure(name: str, batch: int, contender: str, together: bool) -> None:
    """Print a line. Inputs are in turn two tensors."""
    model, x = subject(name, batch)
    exact = exact_result(model, x) if name not in MIXED else first(model(x)).double()
    torch.cuda.empty_cache()
    run = compiled(model, contender)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with torch.autocast("cuda", torch.float16, enabled=name in MIXED):
        result = first(run(x)).double()
        torch.cuda.synchronize()
        cold = time.perf_counter() - begin
        error = ((result - exact).norm() / exact.norm()).item()
        del exact, result
        measure_calls(name, batch, contender, together, run, x, cold, error)


@torch.no_grad()
def measure_first_call(name: str, batch: int, contender: str, caches: str) -> None:
    """Print a line. Eager mode runs before, so that libraries are there."""
    model, x = subject(name, batch)
    with torch.autocast("cuda", torch.float16, enabled=name in MIXED):
        for _ in range(2):
            model(x)
        torch.cuda.synchronize()
        print("ready", flush=True)
        sys.stdin.readline()
        begin, seen = time.perf_counter(), []
        run = compiled(model, contender)
        for _ in range(4):
            run(x)
            torch.cuda.synchronize()
            seen.append(time.perf_counter() - begin)
    print(f"| {name} | {batch} | {contender} | {caches} | {seen[0]:.2f} | {seen[-1]:.2f} |", flush=True)


def first_calls(options: argparse.Namespace) -> None:
    """Processes get ready at once and compile one after another; each pair of them shares caches of its own."""
    titles = ("model", "batch", "", "caches", "first call s", "four calls s")
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|", flush=True)
    waiting = []
    with tempfile.TemporaryDirectory() as folder:
        for row in itertools.product(options.contenders, options.models, options.batches, ("empty", "kept")):
            contender, name, batch, caches = row
            words = ["--models", name, "--batches", str(batch), "--contenders", contender, "--here"]
            kept = os.path.join(folder, f"{contender}-{name}-{batch}")
            folders = {f"{k}_CACHE_DIR": f"{kept}/{k}" for k in ("FIREBRICK", "TORCHINDUCTOR", "TRITON")}
            command, pipe = [sys.executable, __file__, *words, "--first-calls", caches], subprocess.PIPE
            waiting.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **folders}))
        for process in waiting:
            process.stdout.readline()
        for process in waiting:
            print(process.communicate("go\n")[0], end="", flush=True)


def measure_calls(
    name: str, batch: int, contender: str, together: bool, run, x: torch.Tensor, cold: float, error: float
) -> None:
    """Print the line of what is compiled."""
    torch.cuda.reset_peak_memory_stats()
    inputs = itertools.cycle((x, x.clone()))
    for _ in range(30):
        run(next(inputs))
    torch.cuda.synchronize()
    if together:
        print("warm", flush=True)
        sys.stdin.readline()
    ms, host = milliseconds(lambda: run(next(inputs))), enqueueing(lambda: run(next(inputs)))
    peak, reserved = torch.cuda.max_memory_allocated() >> 20, torch.cuda.memory_reserved() >> 20
    figures = f"{ms:.3f} | {host:.3f} | {cold:.1f} | {error:.1e} | {peak} | {reserved}"
    print(f"| {name} | {batch} | {contender} | {figures} |", flush=True)
    tell_graphs()


def main() -> None:
    """Measure, each in a process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS + SEGMENTERS)
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 32))
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS[:-1], choices=CONTENDERS)
    parser.add_argument("--here", action="store_true", help="in this process")
    parser.add_argument("--train", action="store_true", help="steps of training; with --together")
    parser.add_argument("--first-calls", nargs="?", const="both", choices=("both", "empty", "kept"))
    parser.add_argument("--together", action="store_true", help="processes start at once")
    parser.add_argument("--patience", type=float, default=1e6, help="seconds; what is not warm then is left out")
    options = parser.parse_args()
    if options.here:
        one = options.models[0], options.batches[0], options.contenders[0]
        if options.first_calls:
            measure_first_call(*one, options.first_calls)
        else:
            measure_training(*one) if options.train else measure(*one, options.together)
        return
    if options.first_calls:
        first_calls(options)
        return
    titles = ("model", "batch", "", "ms", "host ms", "first call s", "error", "peak MiB", "reserved MiB")
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|", flush=True)
    waiting = []
    for name, batch, contender in itertools.product(options.models, options.batches, options.contenders):
        words = ["--models", name, "--batches", str(batch), "--contenders", contender, "--here"]
        words += ["--together"] * options.together + ["--train"] * options.train
        command, pipe = [sys.executable, __file__, *words], subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        waiting.append(process)
        if not options.together:
            print(process.communicate()[0], end="", flush=True)
    end = time.perf_counter() + options.patience
    cold = [
        p
        for p in waiting * options.together
        if not select.select([p.stdout], [], [], max(0, end - time.perf_counter()))[0]
    ]
    for process in cold:
        os.killpg(process.pid, signal.SIGKILL)  # torch.compile's processes too, which would work on
        print("not warm in time:", *process.args[2:], file=sys.stderr)
    for process in cold:
        process.wait()
    time.sleep(5.0 if cold else 0.0)  # the driver takes their memory back, which calls of others wait for
    for process in [p for p in waiting * options.together if p not in cold]:
        process.stdout.readline()
        print(process.communicate("go\n")[0], end="", flush=True)


if __name__ == "__main__":
    main()
