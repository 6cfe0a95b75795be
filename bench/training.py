"""Trainings compiled and in eager mode: loss curves beside float64's, time and memory of a step, and memory budgets.

    python -m bench.training [NAME...] [--steps 200] [--torch-compile] [--optimizers] [--budgets] [--markdown FILE]

Losses are compared over all steps, from equal weights and data. A step is forward, backward and AdamW; `ms` is the
median of the last half of the steps, contenders taking turns. `peak` is what a step's tensors take above those that
live between steps, by torch's own allocator. `--optimizers` has the compilers compile `optimizer.step` too, which eager
mode runs one operator and one parameter at a time. `--budgets` runs GPT-2 under `memory_budget` and with checkpoints.
Losses with gradients in them are those of `examples/higher_gradients.py`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers as text
from torch import nn
from torch.nn import functional as F

import firebrick
from bench import turns
from bench.programs import UNet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Batch = Callable[[int, torch.dtype], tuple[torch.Tensor, ...]]

WORDS, LENGTH, CLASSES = 256, 32, 10
SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}


class Task(nn.Module):
    """A model and the loss of what it returns."""

    def __init__(self, model: nn.Module, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """The loss of a batch."""
        return self.loss(self.model, *batch)


class WordModel(nn.Module):
    """A language model of two LSTM layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn, self.out = (
            nn.Embedding(WORDS, 64),
            nn.LSTM(64, 64, 2, batch_first=True),
            nn.Linear(64, WORDS),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next words."""
        return self.out(self.rnn(self.words(tokens))[0])


def sentences(step: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Words that follow one another by a rule, with noise."""
    draw = torch.Generator().manual_seed(step)
    start, noise = torch.randint(WORDS, (8, 1), generator=draw), torch.rand(8, LENGTH, generator=draw) < 0.1
    words = (start + 3 * torch.arange(LENGTH)) % WORDS
    return (torch.where(noise, torch.randint(WORDS, (8, LENGTH), generator=draw), words),)


def pictures(step: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Noise around a mean that tells the class."""
    draw = torch.Generator().manual_seed(step)
    kinds = torch.randint(CLASSES, (8,), generator=draw)
    noise = torch.randn(8, 3, 32, 32, generator=draw)
    return (noise * 0.5 + kinds[:, None, None, None] / CLASSES).to(dtype), kinds


def next_word(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each next word."""
    return F.cross_entropy(model(tokens)[:, :-1].reshape(-1, WORDS), tokens[:, 1:].reshape(-1))


def _bert() -> Task:
    config = text.BertConfig(
        vocab_size=WORDS,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **SMALL,
    )
    return Task(text.BertForMaskedLM(config), lambda m, x: m(input_ids=x * (x % 7 > 0), labels=x).loss)


def _gpt2() -> Task:
    config = text.GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=64,
        n_layer=4,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return Task(text.GPT2LMHeadModel(config), lambda m, x: m(input_ids=x, labels=x, use_cache=False).loss)


def _llama() -> Task:
    config = text.LlamaConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, num_key_value_heads=2, **SMALL)
    return Task(text.LlamaForCausalLM(config), lambda m, x: m(input_ids=x, labels=x, use_cache=False).loss)


def _vit() -> Task:
    config = text.ViTConfig(
        image_size=32,
        patch_size=4,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **SMALL,
    )
    return Task(text.ViTForImageClassification(config), lambda m, x, y: m(pixel_values=x, labels=y).loss)


def _resnet50() -> Task:
    config = text.ResNetConfig(hidden_sizes=[64, 128, 256, 512], num_labels=CLASSES)
    return Task(text.ResNetForImageClassification(config), lambda m, x, y: m(pixel_values=x, labels=y).loss)


def _unet() -> Task:
    return Task(UNet(), lambda m, x, y: F.mse_loss(m(x), x.mean(1, keepdim=True) * (y[:, None, None, None] / CLASSES)))


TRAININGS: dict[str, tuple[Callable[[], Task], Batch]] = {
    "bert": (_bert, sentences),
    "gpt2": (_gpt2, sentences),
    "llama": (_llama, sentences),
    "lstm": (lambda: Task(WordModel(), next_word), sentences),
    "vit": (_vit, pictures),
    "resnet50": (_resnet50, pictures),
    "unet": (_unet, pictures),
}


class Run:
    """One training of one contender, a step at a time."""

    def __init__(
        self, name: str, compiled: Callable[[Any], Callable[..., Any]], dtype: torch.dtype, *, optimizers: bool = False
    ) -> None:
        torch.manual_seed(0)
        make, self.batch = TRAININGS[name]
        self.dtype, self.task = dtype, make().to(dtype)
        self.optimizer = torch.optim.AdamW(self.task.parameters(), 1e-3, eps=1e-6)
        self.call = compiled(self.task)
        self.update = compiled(self.optimizer.step) if optimizers else self.optimizer.step
        self.losses: list[float] = []
        self.times: list[float] = []

    def step(self) -> None:
        """One step."""
        batch = self.batch(len(self.losses), self.dtype)
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.call(*batch)
        loss.backward()
        self.update()
        self.times.append(time.perf_counter() - begin)
        self.losses.append(loss.item())

    def ms(self) -> float:
        """Median of the last half of the steps."""
        return 1e3 * statistics.median(self.times[len(self.times) // 2 :])

    def peak(self) -> int:
        """Bytes of a step's tensors at their most, above what lives before it."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            self.step()
        events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        held = highest = 0
        for event in sorted(events, key=lambda e: e.start_ns()):
            held += event.nbytes()
            highest = max(highest, held)
        return highest


def compiled_counts() -> Iterator[dict[str, int]]:
    """What was counted since the last time."""
    last: dict[str, int] = {}
    while True:
        now = firebrick.stats()["counts"]
        yield {name: count - last.get(name, 0) for name, count in now.items()}
        last = dict(now)


def measured(name: str, steps: int, *, torch_compile: bool, optimizers: bool = False) -> str:
    """A row of the table."""
    counts = compiled_counts()
    next(counts)
    runs = {
        "eager": Run(name, lambda task: task, torch.float32),
        "firebrick": Run(name, firebrick.compile, torch.float32, optimizers=optimizers),
        "float64": Run(name, lambda task: task, torch.float64),
    }
    if torch_compile:
        torch.compiler.reset()  # all trainings share Task's code: what it learned of the last one's sizes goes
        runs["torch.compile"] = Run(name, torch.compile, torch.float32, optimizers=optimizers)
    for k in range(steps):
        if k == min(3, steps - 1):
            turns.wait()
        for run in runs.values():
            run.step()
    made = next(counts)
    exact, size = runs["float64"].losses, max(map(abs, runs["float64"].losses))
    apart = {kind: max(abs(a - b) for a, b in zip(run.losses, exact, strict=True)) / size for kind, run in runs.items()}
    eager = runs["eager"]
    cells: list[Any] = [
        name,
        f"{exact[0]:.4f}",
        *(f"{runs[kind].losses[-1]:.4f}" for kind in ("firebrick", "eager", "float64")),
    ]
    cells += [f"{apart[kind]:.1e}" for kind in ("firebrick", "eager")]
    cells += [made.get("graphs compiled", 0), made.get("breaks", 0)]
    cells += [f"{runs[kind].ms():.2f}" for kind in ("firebrick", "eager")] + [
        f"{eager.ms() / runs['firebrick'].ms():.2f}"
    ]
    cells += [f"{runs[kind].peak() / 2**20:.2f}" for kind in ("firebrick", "eager")]
    if torch_compile:
        cells += [f"{runs['torch.compile'].ms():.2f}", f"{runs['torch.compile'].peak() / 2**20:.2f}"]
    return f"| {' | '.join(map(str, cells))} |"


def budget_rows(steps: int) -> Iterator[str]:
    """GPT-2 with less and less memory: bytes saved for the backward, a step's peak and time."""
    ways: dict[str, Callable[[nn.Module], Callable[..., torch.Tensor]]] = {"eager": lambda task: task}
    for budget in (1.0, 0.75, 0.5, 0.25, 0.0):
        ways[f"memory_budget={budget}"] = lambda task, b=budget: firebrick.compile(task, options={"memory_budget": b})  # type: ignore[misc]

    def checkpointed(task: nn.Module) -> Callable[..., torch.Tensor]:
        task.model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator, union-attr]
        return firebrick.compile(task)

    ways["checkpointed layers"] = checkpointed
    for way, compiled in ways.items():
        before = firebrick.stats()["counts"].get("bytes saved for backward", 0)
        run = Run("gpt2", compiled, torch.float32)
        for _ in range(steps):
            run.step()
        saved = firebrick.stats()["counts"].get("bytes saved for backward", 0) - before
        yield f"| {way} | {saved / 2**20:.2f} | {run.peak() / 2**20:.2f} | {run.ms():.2f} |"
        firebrick.reset()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("names", nargs="*", choices=[*TRAININGS, []])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--torch-compile", action="store_true")
    parser.add_argument("--optimizers", action="store_true", help="the compilers compile the optimizer's step too")
    parser.add_argument("--budgets", action="store_true", help="memory budgets alone")
    parser.add_argument("--markdown", type=Path, help="append the tables to a file")
    options = parser.parse_args()
    text.logging.set_verbosity_error()
    columns = [
        "training",
        "first loss",
        "last, Firebrick",
        "eager",
        "float64",
        "farthest from float64, Firebrick",
        "eager",
    ]
    columns += ["graphs", "breaks", "step ms, Firebrick", "eager", "x eager", "peak MiB, Firebrick", "eager"]
    columns += ["torch.compile ms", "peak MiB"] if options.torch_compile else []
    if options.budgets:
        columns = ["GPT-2", "saved for backward MiB", "peak MiB", "step ms"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    print("\n".join(lines))
    rows = (
        budget_rows(options.steps)
        if options.budgets
        else (
            measured(name, options.steps, torch_compile=options.torch_compile, optimizers=options.optimizers)
            for name in options.names or TRAININGS
        )
    )
    for row in rows:
        lines.append(row)
        print(row, flush=True)
    if options.markdown:
        with options.markdown.open("a") as file:
            file.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
