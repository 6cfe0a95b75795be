"""Matmuls of models under max-autotune on one GPU: the library and the forms that were measured, and their errors.

Run: python bench/gpu_matmuls.py
"""

import time
import warnings

import torch
import torch.nn.functional as F

import firebrick

SHAPES = [
    *[(128, 768, 2304, ""), (128, 768, 768, "norm"), (128, 768, 3072, "gelu"), (128, 3072, 768, "norm")],
    *[(197, 768, 3072, "gelu"), (197, 3072, 768, "add"), (128, 2048, 5504, "silu"), (128, 5504, 2048, "add")],
    *[(4096, 768, 3072, "gelu"), (4096, 3072, 768, "norm"), (4096, 2048, 5504, "silu"), (6304, 768, 768, "add")],
    *[(2, 4096, 4096, ""), (4, 4096, 4096, "add"), (8, 4096, 11008, "silu"), (16, 4096, 4096, "norm")],
    *[(4, 11008, 4096, "add"), (16, 11008, 4096, ""), (8, 768, 3072, "gelu"), (16, 4096, 32000, "")],
]
"""Rows, depth, columns and what follows: of BERT, GPT-2, ViT and Llama at batches of 1 and 32, and tokens of a few."""


class Layer(torch.nn.Module):
    """A linear layer and what follows it."""

    def __init__(self, rows: int, depth: int, columns: int, then: str) -> None:
        super().__init__()
        self.linear, self.then = torch.nn.Linear(depth, columns), then
        self.norm = torch.nn.LayerNorm(columns) if then == "norm" else None
        self.register_buffer("rest", torch.randn(rows, columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What a model does."""
        y = self.linear(x)
        if self.then in ("gelu", "silu"):
            return F.gelu(y) if self.then == "gelu" else F.silu(y) * self.rest
        y = y + self.rest if self.then else y
        return self.norm(y) if self.norm is not None else y


@torch.no_grad()
def main() -> None:
    """Print a line for each shape and dtype."""
    warnings.filterwarnings("ignore")
    told: set[str] = set()
    for dtype, shapes in ((torch.float16, SHAPES), (torch.bfloat16, SHAPES[2:3]), (torch.float32, SHAPES[2:3])):
        torch.manual_seed(0)
        layers = torch.nn.ModuleList([Layer(*row) for row in shapes]).cuda().to(dtype)
        inputs = [torch.randn(rows, depth, device="cuda", dtype=dtype) for rows, depth, *_ in shapes]

        def run(xs: list[torch.Tensor], layers: torch.nn.ModuleList = layers) -> list[torch.Tensor]:
            return [layer(x) for layer, x in zip(layers, xs, strict=True)]

        begin = time.perf_counter()
        made, eager = firebrick.compile(run, mode="max-autotune")(inputs), run(inputs)
        torch.cuda.synchronize()
        print(f"{dtype}: {time.perf_counter() - begin:.1f} s", flush=True)
        exact = run([x.double() for x in inputs], layers.double())
        for shape, ours, theirs, right in zip(shapes, made, eager, exact, strict=True):
            ours, theirs = (((t - right).norm() / right.norm()).item() for t in (ours, theirs))
            print(f"{shape}: error {ours:.1e}, eager {theirs:.1e}", flush=True)
        for kind in ("tuned", "not tuned"):
            for text in set(firebrick.stats()["reasons"].get(kind, ())) - told:
                told.add(text)
                print(f"{kind}: {text}", flush=True)


if __name__ == "__main__":
    main()
