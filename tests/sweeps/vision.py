"""Every model builder of torchvision with random weights and small inputs: compiled and eager against float64.

    python tests/sweeps/vision.py [--kinds detection ...] [--only NAME ...] [--json] [--markdown FILE] [--list]

A model passes if its results are as near to float64's as 1.1 times eager's and a tolerance. Detectors choose boxes by
scores, and rounding may choose others: there a result counts as far off as its nearest box of the reference is.
A worker process runs the models, so that a crash is a result too. `make vision` brings torchvision along.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import subprocess
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("classification", "segmentation", "detection", "video", "optical_flow")
TOLERANCE = 2e-5
"""Of the largest number of a result: what float32 leaves in some fifty layers, beyond 1.1 times eager's error."""

OPTIONS = {
    **dict.fromkeys(("fcos", "retinanet"), {"score_thresh": 0.0}),  # untrained scores are small
    "vit_h_14": {"image_size": 56},
    "vit_": {"image_size": 64},
    "googlenet": {"init_weights": False, "aux_logits": True},
    "inception": {"init_weights": False, "aux_logits": True},
}
"""Start of a name -> further arguments of its builder."""
SIZES = {"inception": (96, 96), "maxvit": (224, 224), "vit_h_14": (56, 56), "alexnet": (80, 80), "mvit": (224, 224), "swin3d": (64, 64),
         "s3d": (224, 224), "raft": (128, 128), "ssd300": (120, 100), "ssdlite": (120, 100)}  # fmt: skip
"""Start of a name -> height and width, where 64 x 64 does not do."""
FRAMES = {"mvit": 16, "s3d": 14}


def by_start(table: dict, name: str, default: object) -> object:
    """The row of a table whose key a name starts with."""
    return next((row for start, row in table.items() if name.startswith(start)), default)


def names(kinds: list[str]) -> list[tuple[str, str]]:
    """(kind, model) of all builders."""
    from torchvision import models

    rooms = {kind: getattr(models, kind, models) for kind in kinds}
    rooms["classification"] = models
    return [
        (kind, name) for kind in kinds for name in models.list_models(module=rooms[kind]) if "quantized" not in name
    ]


# -- in the worker ------------------------------------------------------------------


def model_and_inputs(kind: str, name: str) -> tuple:
    """A model in eval mode, with weights whose sums stay in the range of numbers, and what to call it with."""
    import torch
    from torchvision import models

    torch.manual_seed(0)
    options = dict(by_start(OPTIONS, name, {}))
    if kind in ("detection", "segmentation"):
        options["weights_backbone"] = None
    if kind == "detection":
        options |= (
            {"num_classes": 5, "min_size": 96, "max_size": 128}
            if "ssd" not in name and "fcos" not in name
            else {"num_classes": 5}
        )
    model = models.get_model(name, weights=None, **options).eval()
    with torch.no_grad():
        for part in model.modules():
            if hasattr(part, "running_var") and part.running_var is not None:
                part.running_mean.normal_(0, 0.1)
                part.running_var.uniform_(0.7, 1.5)
    height, width = by_start(SIZES, name, (64, 64))
    if kind == "detection":
        return model, ([torch.rand(3, 96, 80), torch.rand(3, 72, 100)],)
    if kind == "video":
        return model, (torch.randn(1, 3, by_start(FRAMES, name, 8), height, width),)
    if kind == "optical_flow":
        return model, (torch.rand(1, 3, height, width), torch.rand(1, 3, height, width))
    return model, (torch.randn(2, 3, height, width),)


def errors(got: list, exact: list, kind: str) -> list[float]:
    """How far each result is from the reference, in parts of its largest number; infinite for other shapes."""
    if kind != "detection":
        return [
            (a.double() - b).abs().max().item() / max(b.abs().max().item(), 1e-30)
            if a.shape == b.shape
            else float("inf")
            for a, b in zip(got, exact, strict=True)
        ]
    return [max(_apart(a, b), _apart(b, a)) for a, b in zip(got, exact, strict=True)]


def _apart(some: dict, others: dict) -> float:
    """The largest distance of a detection of `some` from its nearest in `others`."""
    import torch

    def rows(found: dict) -> torch.Tensor:
        return torch.cat(
            [found["boxes"].double() / 100, found["scores"].double()[:, None], 10 * found["labels"].double()[:, None]],
            1,
        )

    a, b = rows(some), rows(others)
    if min(len(a), len(b)) == 0:
        return 0.0 if len(a) == len(b) else float("inf")
    return torch.cdist(a, b, p=float("inf")).amin(1).max().item()


def since(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """What was added to counts."""
    return {k: v - before.get(k, 0) for k, v in now.items() if v != before.get(k, 0)}


def run(kind: str, name: str) -> dict:
    """One model: eager, compiled twice, in float64, and what firebrick says of itself."""
    import torch
    from torch.utils import _pytree as pytree

    import firebrick

    model, inputs = model_and_inputs(kind, name)
    flat = (lambda out: list(out)) if kind == "detection" else pytree.tree_leaves
    firebrick.reset()
    before = firebrick.stats()
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        eager = flat(model(*inputs))
        compiled = firebrick.compile(model)
        start = time.perf_counter()
        ours = [flat(compiled(*inputs)) for _ in range(2)]
        seconds = time.perf_counter() - start
        stats = firebrick.stats()
        exact = flat(model.double()(*pytree.tree_map(lambda t: t.double(), inputs)))
    mine = [max(pair) for pair in zip(*(errors(out, exact, kind) for out in ours), strict=True)]
    theirs = errors(eager, exact, kind)
    wrong = [k for k, (a, b) in enumerate(zip(mine, theirs, strict=True)) if not a <= 1.1 * b + TOLERANCE]
    strides = [
        k
        for k, (a, b) in enumerate(zip(ours[0], eager, strict=True))
        if kind != "detection" and a.stride() != b.stride()
    ]
    counts = since(before["counts"], stats["counts"])
    reasons = {k: since(before["reasons"].get(k, {}), stats["reasons"].get(k, {})) for k in ("break", "recompile")}
    messages = sorted({str(w.message)[:300] for w in caught if "firebrick" in str(w.category) + str(w.message)})
    return {
        "graphs": counts.get("graphs", 0), "breaks": reasons["break"], "recompiles": reasons["recompile"],
        "ops": counts.get("ops", 0), "error": max(mine, default=0.0), "eager": max(theirs, default=0.0), "wrong": wrong, "strides": strides,
        "warnings": messages, "compile_seconds": round(seconds, 2), "results": len(exact),
        "detections": [len(d["boxes"]) for d in exact] if kind == "detection" else [],
    }  # fmt: skip


def work() -> None:
    """Read models from stdin, write one line of JSON for each to the real stdout."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        kind, name = json.loads(line)
        start = time.perf_counter()
        try:
            row = run(kind, name)
        except Exception as error:
            row = {"failed": f"{type(error).__name__}: {error}"[:600]}
        out.write(
            json.dumps({"kind": kind, "name": name, **row, "seconds": round(time.perf_counter() - start, 1)}) + "\n"
        )


# -- in the parent ------------------------------------------------------------------


def run_all(todo: list[tuple[str, str]], options: argparse.Namespace) -> list[dict]:
    """A row for each model."""
    from rich.console import Console
    from rich.progress import Progress

    console, rows, child = Console(stderr=True), [], None
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with Progress(console=console) as progress:
        task = progress.add_task("models", total=len(todo))
        for kind, name in todo:
            if child is None or child.poll() is not None:
                child = subprocess.Popen(
                    [sys.executable, __file__, "--worker"],
                    env=env,
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            child.stdin.write(json.dumps([kind, name]) + "\n")
            child.stdin.flush()
            line = ""
            if select.select([child.stdout], [], [], options.timeout)[0]:
                line = child.stdout.readline()
            else:
                child.kill()
            row = (
                json.loads(line)
                if line
                else {"kind": kind, "name": name, "failed": f"the process ended with {child.wait()}"}
            )
            rows.append(row)
            progress.update(task, advance=1, description=f"{sum(bad(r) for r in rows)} wrong; {name}")
            if bad(row) or not console.is_terminal:
                console.print(told(row), markup=False, soft_wrap=True)
    if child is not None:
        child.stdin.close()
        child.wait()
    return rows


def bad(row: dict) -> bool:
    """Whether results were wrong or missing."""
    return "failed" in row or bool(row["wrong"] or row["strides"])


def told(row: dict) -> str:
    """A row in a line."""
    if "failed" in row:
        return f"{row['kind']:14} {row['name']:32} failed: {row['failed']}"
    verdict = "WRONG" if row["wrong"] else "strides" if row["strides"] else "right"
    return (f"{row['kind']:14} {row['name']:32} {verdict:7} error {row['error']:.1e} (eager {row['eager']:.1e})  graphs {row['graphs']:3} "
            f"breaks {sum(row['breaks'].values()):2}  warnings {len(row['warnings'])}  {row['seconds']:.0f} s")  # fmt: skip


def table(rows: list[dict]) -> str:
    """Sums by kind, breaks and warnings by reason, then what is wrong."""
    lines = [
        "| kind | models | right | wrong | failed | in one graph | breaks | warned |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(r["kind"] for r in rows):
        chosen = [r for r in rows if r["kind"] == kind]
        fine = [r for r in chosen if "failed" not in r]
        wrong = sum(bad(r) for r in fine)
        lines.append(f"| {kind} | {len(chosen)} | {len(fine) - wrong} | {wrong} | {len(chosen) - len(fine)} | {sum(r['graphs'] == 1 for r in fine)} "
                     f"| {sum(sum(r['breaks'].values()) for r in fine)} | {sum(bool(r['warnings']) for r in fine)} |")  # fmt: skip
    for word in ("breaks", "recompiles", "warnings"):
        seen: dict[str, list[str]] = {}
        for row in rows:
            for reason in dict.fromkeys(re.sub(r"\d+, now \d+", "one size, now another", r) for r in row.get(word, ())):
                seen.setdefault(reason, []).append(row["name"])
        lines += ["", f"{word}:"] if seen else []
        lines += [
            f"- {reason}: {', '.join(where[:4])}{' ...' if len(where) > 4 else ''}" for reason, where in seen.items()
        ]
    lines += ["", *(told(r) for r in rows if bad(r))]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", nargs="*", help="models by the start of their name")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one model")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--list", action="store_true", help="list the models")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return 0
    todo = [m for m in names(options.kinds) if not options.only or m[1].startswith(tuple(options.only))]
    if options.list:
        print("\n".join(f"{kind:14} {name}" for kind, name in todo))
        return 0
    rows = run_all(todo, options)
    print(json.dumps(rows) if options.json else table(rows))
    if options.markdown:
        options.markdown.write_text(
            f"# Models of torchvision\n\n{__doc__.partition(chr(10) * 2)[0]}\n\n{table(rows)}\n"
        )
    return int(any(bad(r) for r in rows))


if __name__ == "__main__":
    sys.exit(main())
