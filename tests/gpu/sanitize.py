"""Kernels of every kind touch the memory that they are given, and no other.

    python tests/gpu/sanitize.py

Inputs lie between elements that are no numbers, and results are written between marks that have to stay. Where
`compute-sanitizer` (of CUDA's toolkit) is found, the same calls run under its memcheck too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

import torch
import torch.nn.functional as F

import firebrick

AROUND = 4096
"""Elements before and behind a tensor that nothing may read or write."""
H = torch.float16


def between(t: torch.Tensor, mark: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy of a tensor with marks around it, and all of its memory."""
    room = torch.full((t.numel() + 2 * AROUND,), mark, dtype=t.dtype, device="cuda")
    inside = room[AROUND : AROUND + t.numel()].view(t.shape)
    return inside.copy_(t), room


def places(high, *shape):
    return torch.randint(0, high, shape)


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


KINDS = {
    "pointwise": (lambda x: F.gelu(x) * 2, rand(1003)),
    "pointwise of rows": (lambda x, w: x * w + x, rand(37, 131), rand(131)),
    "transposed": (lambda x: x.t() + 1, rand(67, 131)),
    "short rows": (lambda x: x.softmax(-1), rand(1001, 7)),
    "rows": (lambda x: F.layer_norm(x, (769,)), rand(33, 769, dtype=H)),
    "long rows": (lambda x: x.softmax(-1), rand(5, 33_333)),
    "columns": (lambda x: x.sum(0), rand(1237, 67)),
    "one number": (lambda x: x.sum()[None], rand(300_007)),
    "split rows": (lambda x: x.log_softmax(1), rand(2, 300_001)),
    "scan": (lambda x: x.cumsum(1), rand(13, 5003)),
    "places of maxima": (lambda x: x.argmax(1).float(), rand(101, 1003)),
    "gather": (lambda x, i: x.gather(1, i), rand(50, 37), places(37, 50, 91)),
    "lookup": (lambda w, i: F.embedding(i, w), rand(101, 67), places(101, 303)),
    "updates": (lambda x, i, s: x.index_add(0, i, s), rand(53, 67), places(53, 303), rand(303, 67)),
    "parts side by side": (lambda x, y: torch.cat([x, y, x], 1), rand(37, 17), rand(37, 91)),
    "padded": (lambda x: F.pad(x, (1, 2, 3, 0)), rand(37, 17)),
    "pooled": (lambda x: F.max_pool2d(x, 3, 2, 1), rand(2, 5, 17, 19)),
    "loss": (lambda x, y: F.cross_entropy(x, y, reduction="none"), rand(67, 1003), places(1003, 67)),
    "dropout": (lambda x: F.dropout(x, 0.5, True) * 0 + 1, rand(37, 131)),
    "dropout of fours": (lambda x: F.dropout(x, 0.5, True) * 0 + 1, rand(37, 132)),
    "a row by a matrix": (lambda x, w: x @ w.t(), rand(1, 256, dtype=H), rand(131, 256, dtype=H)),
    "a matmul of an odd width": (lambda x, w: x @ w.t(), rand(67, 64, dtype=H), rand(1003, 64, dtype=H)),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q), rand(1, 2, 77, 64, dtype=H)),
    "windows": (
        lambda x, w: F.conv2d(x, w, padding=1, groups=5),
        rand(1, 5, 17, 19, dtype=H),
        rand(5, 1, 3, 3, dtype=H),
    ),
}
"""Name -> a function and its arguments."""


def wrong_with(name: str) -> str:
    """What is wrong with a kind; nothing if all is right."""
    fn, *given = KINDS[name]
    inputs = [between(t, float("nan") if t.is_floating_point() else 1 << 40) for t in given]
    args = [inside for inside, _ in inputs]
    want = fn(*args)
    torch.cuda.synchronize()

    def into(out, *args):
        out.copy_(fn(*args))

    run = firebrick.compile(into)
    for _ in range(3):
        out, room = between(torch.zeros_like(want, memory_format=torch.contiguous_format), 77.0)
        before = [memory.clone() for _, memory in inputs]
        run(out, *args)
        torch.cuda.synchronize()
        marks = torch.cat([room[:AROUND], room[-AROUND:]])
        if not (marks == 77.0).all():
            return "memory around the result was written"
        if any(
            not torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, (_, b) in zip(before, inputs, strict=True)
        ):
            return "an input was written"
        if "dropout" in name:
            want = out.nan_to_num(7.0).where(out == 1, 7.0) if not (out == 1).all() else out
        slack = 2e-2 if out.dtype == H else 1e-3
        if not torch.allclose(out.float(), want.float(), rtol=slack, atol=slack):
            return f"another result: {(out.float() - want.float()).abs().max().item()} off"
    return ""


def main() -> int:
    """Print a line a kind; the number of those that are wrong."""
    wrong = 0
    for name in KINDS:
        text = wrong_with(name)
        wrong += bool(text)
        print(f"{name}: {text or 'ok'}", flush=True)
    tool = shutil.which("compute-sanitizer")
    if "--inside" in sys.argv or tool is None:
        print("" if tool else "no compute-sanitizer here: marks alone")
        return wrong
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, __file__, "--inside"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout[-3000:])
    return wrong + done.returncode


if __name__ == "__main__":
    sys.exit(min(main(), 1))
