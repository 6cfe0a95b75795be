"""Models over many sizes: how many compiles they take, and how far results and gradients are from eager's.

    python bench/varying.py [--only NAME ...] [--torch]

Images of ten sizes through vision models, twenty lengths through an LSTM, twenty graphs through a GNN, images with
other numbers of boxes through a detector, and training steps of BERT over twenty sizes; `--torch` counts the graphs of
torch.compile too. `memory` calls one function with a thousand sizes.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import transformers as hf
from torch import nn

import firebrick

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Case(NamedTuple):
    """A model and its calls; `training`: gradients of its parameters are compared as well."""

    model: nn.Module
    calls: Sequence[tuple[torch.Tensor, ...]]
    training: bool = False


SIDES = (64, 96, 128, 160, 192, 224, 112, 80, 144, 176)


class Graphs(nn.Module):
    """Two layers of attention over edges, with means over the nodes of each graph of a batch."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.project = nn.ModuleList([nn.Linear(8, width), nn.Linear(width, width)])
        self.score = nn.ModuleList([nn.Linear(2 * width, 1) for _ in range(2)])

    def forward(self, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        source, target = edges
        keep = source != target
        source, target = source[keep], target[keep]
        for project, score in zip(self.project, self.score, strict=True):
            x = project(x)
            weight = score(torch.cat([x[source], x[target]], -1)).exp()
            total = torch.zeros(x.shape[0], 1).index_add(0, target, weight)
            x = torch.relu(x + torch.zeros_like(x).index_add(0, target, x[source] * weight / total[target]))
        graphs = int(batch.max()) + 1
        sums = torch.zeros(graphs, x.shape[1]).index_add(0, batch, x)
        return sums / torch.bincount(batch, minlength=graphs)[:, None]


class Detector(nn.Module):
    """A convolutional backbone with a box and a score at each place; boxes below a score are dropped, the others are
    clipped, and decayed by their overlap with better ones."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 5, 3, 2, 1)
        )

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.body(image[None])[0].flatten(1).t()
        scores, boxes = found[:, 4].sigmoid(), found[:, :4].cumsum(1)
        high = scores > scores.mean()
        scores, boxes = scores[high], boxes[high].clamp(0, image.shape[-1])
        wide = (boxes[:, 2] > boxes[:, 0]).nonzero().squeeze(1)
        scores, order = scores[wide].sort(descending=True, stable=True)
        boxes = boxes[wide][order]
        if boxes.numel() == 0:
            return boxes, scores
        low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
        high_ = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        both = (high_ - low).clamp(min=0).prod(-1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
        overlap = (both / (area[:, None] + area[None] - both + 1)).tril(-1).amax(1)
        scores = scores * (1 - overlap)
        return boxes[scores > 0.3], scores[scores > 0.3]


class Loss(nn.Module):
    """BERT's loss of masked words."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
        dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        self.model = hf.BertForMaskedLM(hf.BertConfig(**sizes, **dropouts, vocab_size=500))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, labels=labels).loss


def images(model: nn.Module) -> Case:
    return Case(Last(model.eval()), [(torch.randn(2, 3, side, side + 32 * (k % 2)),) for k, side in enumerate(SIDES)])


class Last(nn.Module):
    """A model's first result."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.model(*args, **self.options)[0]


def vit() -> Case:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    model = Last(hf.ViTModel(hf.ViTConfig(**sizes, image_size=224)).eval(), interpolate_pos_encoding=True)
    return Case(model, [(torch.randn(2, 3, side, side),) for side in SIDES])


def segformer() -> nn.Module:
    return hf.SegformerModel(hf.SegformerConfig(depths=[1] * 4, hidden_sizes=[16, 32, 64, 128]))


def lstm() -> Case:
    model = Last(nn.LSTM(32, 64, 2, batch_first=True, bidirectional=True).eval())
    return Case(model, [(torch.randn(4, length, 32),) for length in range(5, 65, 3)])


def gnn() -> Case:
    calls = []
    for k in range(20):
        nodes = 10 + 7 * k
        batch = torch.arange(nodes) * (2 + k % 4) // nodes
        calls.append((torch.randn(nodes, 8), torch.randint(0, nodes, (2, 5 * nodes)), batch))
    return Case(Graphs().eval(), calls)


def detector() -> Case:
    return Case(Detector().eval(), [(torch.randn(3, side, side + 32),) for side in SIDES])


def bert() -> Case:
    sizes = [(2 + k % 7, 16 + 5 * k) for k in range(20)]
    return Case(Loss(), [(torch.randint(0, 500, size), torch.randint(0, 500, size)) for size in sizes], training=True)


CASES: dict[str, Callable[[], Case]] = {
    "resnet": lambda: images(hf.ResNetModel(hf.ResNetConfig(depths=[1, 1, 1, 1]))),
    "mobilenet": lambda: images(hf.MobileNetV2Model(hf.MobileNetV2Config(depth_multiplier=0.35))),
    "convnext": lambda: images(hf.ConvNextModel(hf.ConvNextConfig(depths=[1] * 4, hidden_sizes=[32, 64, 96, 128]))),
    "segformer": lambda: images(segformer()),
    "vit": vit,
    "lstm": lstm,
    "gnn": gnn,
    "detector": detector,
    "bert, training": bert,
}


def outcome(function: Callable[..., Any], case: Case, call: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Results of a call, and the gradients of the parameters."""
    case.model.zero_grad()
    with torch.set_grad_enabled(case.training):
        results = function(*call)
    if not case.training:
        return [*results] if isinstance(results, tuple) else [results]
    results.backward()
    return [results.detach(), *(p.grad.clone() for p in case.model.parameters() if p.grad is not None)]


def measure(name: str, with_torch: bool) -> str:
    torch.manual_seed(0)
    case = CASES[name]()
    compiled, frames, worst, seconds = firebrick.compile(case.model), [0], 0.0, time.perf_counter()
    for call in case.calls:
        ours, expected = outcome(compiled, case, call), outcome(case.model, case, call)
        if [r.shape for r in ours] != [r.shape for r in expected]:
            raise AssertionError("results of other sizes")
        for one, other in zip(ours, expected, strict=True):
            scale = max(other.abs().max().item() if other.numel() else 0.0, 1e-3)
            worst = max(worst, (one - other).abs().max().item() / scale if other.numel() else 0.0)
        frames.append(firebrick.stats()["counts"]["frames"])
    compiles = [k for k, (a, b) in enumerate(itertools.pairwise(frames)) if b > a]
    counts = firebrick.stats()["counts"]
    text = (
        f"{name}: {len(case.calls)} calls, compiles at calls {compiles}, {counts.get('breaks', 0)} breaks, "
        f"{time.perf_counter() - seconds:.0f} s, largest difference {worst:.1e}"
    )
    firebrick.reset()
    if with_torch:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        peer, start = torch.compile(case.model), time.perf_counter()
        for call in case.calls:
            outcome(peer, case, call)
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        text += f"; torch.compile: {graphs} graphs, {time.perf_counter() - start:.0f} s"
    return text


def resident() -> float:
    """MiB of memory that the process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def memory() -> str:
    """A thousand sizes."""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    compiled, marks = firebrick.compile(model), []
    for n in range(2, 1002):
        compiled(torch.randn(n, 64)).sum().backward()
        if n in (100, 1001):
            marks.append(resident())
    return f"memory: {marks[0]:.0f} MiB after 100 sizes, {marks[1]:.0f} MiB after 1,000"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[*CASES, "memory"])
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.only:
        print(memory() if name == "memory" else measure(name, options.torch), flush=True)


if __name__ == "__main__":
    main()
