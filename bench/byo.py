"""Every method of "bring your own" on the real MiniLM model and on BERT-base: what matched, error, speed.

Run: python bench/byo.py [minilm bert] [--layers N] [--markdown FILE]       (or: make byo)
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table

import firebrick
from firebrick import passes, torchscript
from firebrick.backends.engines import engine_backend
from firebrick.errors import FirebrickError
from firebrick.extend import SubgraphCompiler, call_of, registry
from firebrick.passes import rules
from firebrick.passes.modules import call_with, output_error, tensors_of
from firebrick.report import recorder
from firebrick.tools.models import build_model

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).parent.parent / "examples"
sys.path += [str(EXAMPLES / "blas"), str(EXAMPLES / "firebrick_simchip" / "src")]


@dataclass
class Row:
    """One line of the table; times in milliseconds."""

    method: str
    matched: str
    error: float
    before: float
    after: float

    @property
    def cells(self) -> list[str]:
        """As text."""
        speed = self.before / self.after if self.after else float("nan")
        return [
            self.method,
            self.matched,
            f"{self.error:.1e}",
            f"{self.before:.1f}",
            f"{self.after:.1f}",
            f"{speed:.2f}",
        ]


def pairs_of_times(a: Callable[[], Any], b: Callable[[], Any], runs: int) -> tuple[float, float]:
    """Median times of two calls that take turns, so that both see the same machine."""
    times: tuple[list[float], list[float]] = ([], [])
    a(), b()
    for _ in range(runs):
        for call, found in zip((a, b), times, strict=True):
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
    return sorted(times[0])[runs // 2] * 1e3, sorted(times[1])[runs // 2] * 1e3


class Bench:
    """One model and its methods."""

    def __init__(self, name: str, runs: int, **sizes: Any) -> None:
        self.name, self.runs = name, runs
        self.model, self.inputs = build_model(name, **sizes)
        self.config = getattr(self.model, "config", None)
        self.wanted = tensors_of(call_with(self.model, self.inputs))
        self.rows: list[Row] = []

    def compare(self, method: str, matched: str, call: Callable[..., Any]) -> None:
        """Add a row: `call(model inputs)` beside the plain model."""
        found = tensors_of(call_with(call, self.inputs))[: len(self.wanted)]
        error = output_error([self.wanted[: len(found)]], [found])
        before, after = pairs_of_times(
            lambda: call_with(self.model, self.inputs), lambda: call_with(call, self.inputs), self.runs
        )
        self.rows.append(Row(method, matched, error, before, after))

    def swaps(self) -> None:
        """The module swaps."""
        samples = [self.inputs]
        for name, swap in {
            "GELU -> in-place ReLU": lambda m: passes.gelu_to_relu(m, samples=samples),
            "LayerNorm -> BatchNorm": lambda m: passes.layernorm_to_batchnorm(m, samples),
            "fused QKV": lambda m: passes.fuse_qkv(m, self.inputs),
            "int8 linears": lambda m: passes.quantize_linear(m, samples=samples),
        }.items():
            model = copy.deepcopy(self.model)
            report = swap(model)
            self.compare(f"swap: {name}", f"{len(report.swaps)} modules", model)

    def rewrites(self) -> None:
        """The rewrite rules, over FX; matches are counted from the passes' own reports."""
        written_out = copy.deepcopy(self.model)
        if self.config is not None:
            written_out.config._attn_implementation = "eager"
        for name, chosen in {
            "attention -> SDPA": rules.ATTENTION,
            "constants into matmuls": rules.FOLD_INTO_MATMUL,
            "three linears -> one": rules.MERGE_LINEARS,
            "firebrick alone": (),
        }.items():
            recorder.reset()
            model = written_out if "SDPA" in name or "constants" in name else self.model
            compiled = firebrick.compile(model, passes=list(chosen))
            # The scale of the scores would go into SDPA before it can go into a matmul.
            with registry.disabled(*(["attention_div", "attention_mul"] if "constants" in name else [])):
                call_with(compiled, self.inputs)
            mine = {step.name for step in chosen}
            count = sum(data["applied"] for kind, data in recorder.events if kind == "pass" and data["name"] in mine)
            self.compare(f"FX rule: {name}", f"{count} places" if chosen else "-", compiled)

    def scripts(self) -> None:
        """The TorchScript path: passes, and matmul + division as one group."""
        plain = copy.deepcopy(self.model)
        plain.config.return_dict = False
        plain.config._attn_implementation = "eager"
        args = tuple(self.inputs.values())
        with torch.no_grad():
            script = torch.jit.trace(plain, args, strict=False)
        made = torchscript.optimize(script, [torchscript.script_rule(_add_div, _addcdiv, name="addcdiv")])
        hits = sum(r.changed for r in made.reports)
        self.compare("TorchScript: passes, frozen", f"{hits} passes", lambda **kw: made(*kw.values()))
        grouped, report = torchscript.compile_subgraphs(script, [MatmulDiv()], args)
        text = f"{report.percent:.0f} % of ops, {len(report.claims)} groups"
        self.compare("TorchScript: matmul + div groups", text, lambda **kw: grouped(*kw.values()))

    def engines(self) -> None:
        """Every engine as a subgraph compiler."""
        for name, make in ENGINES.items():
            try:
                compiler = make()
                texts: list[str] = []
                compiled = firebrick.compile(self.model, backend=engine_backend(compiler, report=texts.append))
                call_with(compiled, self.inputs)
            except (FirebrickError, ImportError) as error:
                print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
                continue
            share = texts[0].split("(")[1].split(")")[0] if texts else "?"
            self.compare(f"engine: {name}", f"{share} of ops", compiled)


class MatmulDiv(SubgraphCompiler):
    """The tutorial's: matmul with a constant division."""

    name = "matmul_div"

    def supports(self, node: Any) -> bool | str:
        """Matmuls, and division or multiplication by a number."""
        call = call_of(node)
        scales = call.name in ("div", "mul") and isinstance(call.arguments.get("other"), (int, float))
        return call.name in ("matmul", "linear") or scales or "no matmul"

    def compile(self, graph: Any, example_inputs: Any) -> Callable[..., Any]:
        """Run the group as it is."""
        return graph.forward


def _add_div(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return x + y / z


def _addcdiv(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.addcdiv(x, y, z)


def _simchip() -> SubgraphCompiler:
    module = __import__("firebrick_simchip")
    return module.SimChip(module.Chip(memory=1 << 30))


def _tvm() -> SubgraphCompiler:
    return __import__("firebrick.backends.tvm", fromlist=["Tvm"]).Tvm()


ENGINES: dict[str, Callable[[], SubgraphCompiler]] = {
    "ONNX Runtime": lambda: __import__("firebrick.backends.onnxruntime", fromlist=["OnnxRuntime"]).OnnxRuntime(),
    "OpenVINO": lambda: __import__("firebrick.backends.openvino", fromlist=["OpenVino"]).OpenVino(),
    "TVM, untuned": _tvm,
    "OpenBLAS": lambda: __import__("blas_engine").Blas("openblas"),
    "Eigen": lambda: __import__("blas_engine").Blas("eigen"),
    "simulated chip": _simchip,
}


def main() -> None:
    """Print the table of each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["minilm", "bert"])
    parser.add_argument("--layers", type=int, help="fewer layers, for a quick look")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--only", nargs="*", default=["swaps", "rewrites", "scripts", "engines"])
    options = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)
    console = Console(width=110)
    texts = []
    for name in options.models:
        sizes = {"layers": options.layers} if options.layers and name != "minilm" else {}
        bench = Bench(name, options.runs, **sizes)
        for part in options.only:
            getattr(bench, part)()
        table = Table(title=f"bring your own: {name}, {torch.get_num_threads()} threads")
        heads = ["method", "matched", "error", "before ms", "after ms", "speed"]
        for i, head in enumerate(heads):
            table.add_column(head, justify="left" if i < 2 else "right")
        for row in bench.rows:
            table.add_row(*row.cells)
        console.print(table)
        lines = ["| " + " | ".join(heads) + " |", "|---|---|---|---|---|---|"]
        texts.append("\n".join([f"## {name}", "", *lines, *("| " + " | ".join(r.cells) + " |" for r in bench.rows)]))
    if options.markdown:
        options.markdown.write_text("# Bring your own\n\n" + "\n\n".join(texts) + "\n")


if __name__ == "__main__":
    main()
