"""`python -m bench.byo [MODEL ...]`: every way to bring an optimization of one's own: what matched, error, speed.

The methods are those of docs/tutorial.md. Engines that live in `examples/` take part where that folder is, or where
their packages are installed.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib
import importlib.util
import json
import statistics
import sys
import time
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

import firebrick
from firebrick import passes, torchscript
from firebrick.backends.engines import engine_backend
from firebrick.errors import FirebrickError
from firebrick.extend import SubgraphCompiler, apply_passes, call_of, graph_pass, registry, trace_torch
from firebrick.passes import rules
from firebrick.passes.modules import call_with, output_error, tensors_of
from firebrick.report import recorder
from firebrick.tools.models import build_model
from firebrick.torchscript.extension import build_extension

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import fx

__all__ = ["Row", "byo", "markdown", "tables"]

_EXAMPLES = Path(__file__).parents[1] / "examples"
_LEAST_RUNS = 3


@dataclass(slots=True)
class Row:
    """One method. Times in milliseconds; `before` is the plain program in the same rounds; failed says why not."""

    model: str
    method: str
    matched: str = ""
    error: float = float("nan")
    before: float = float("nan")
    after: float = float("nan")
    failed: str = ""

    @property
    def cells(self) -> list[str]:
        """As text."""
        if self.failed:
            return [self.method, self.failed, "", "", "", ""]
        error = "equal" if self.error == 0 else f"{self.error:.1e}"
        if self.after != self.after:
            return [self.method, self.matched, error, "", "", ""]
        speed = f"{self.before / self.after:.2f}"
        return [self.method, self.matched, error, _digits(self.before), _digits(self.after), speed]


def _digits(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 1000 else f"{milliseconds:.3g}"


_HEAD = ("method", "matched", "error", "before ms", "after ms", "speed")


@dataclass(slots=True)
class _Bench:
    """One model and its methods. seconds: time for the interleaved rounds of one method."""

    name: str
    model: torch.nn.Module
    inputs: dict[str, Any]
    seconds: float
    step: Callable[[str], None]
    rows: list[Row] = field(default_factory=list)
    wanted: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.wanted = tensors_of(call_with(self.model, self.inputs))

    def method(self, name: str, make: Callable[[], tuple[str, Callable[..., Any]]]) -> None:
        """Add a row: `make` gives what matched and the changed program, which is run beside the plain one."""
        self.step(f"{self.name}: {name}")
        row = Row(self.name, name)
        self.rows.append(row)
        try:
            row.matched, call = make()
            found = tensors_of(call_with(call, self.inputs))[: len(self.wanted)]
            row.error = output_error([self.wanted[: len(found)]], [found])
            row.before, row.after = _rounds(
                lambda: call_with(self.model, self.inputs), lambda: call_with(call, self.inputs), self.seconds
            )
        except (FirebrickError, ImportError) as error:
            row.failed = str(error).splitlines()[0][:60]
        gc.collect()

    # ------------------------------------------------------------ methods

    def swaps(self) -> None:
        """Modules exchanged."""
        samples = [self.inputs]
        table: dict[str, Callable[[Any], Any]] = {
            "GELU -> in-place ReLU": lambda m: passes.gelu_to_relu(m, samples=samples),
            "LayerNorm -> BatchNorm": lambda m: passes.layernorm_to_batchnorm(m, samples),
            "fused QKV": lambda m: passes.fuse_qkv(m, self.inputs),
            "int8 linears": lambda m: passes.quantize_linear(m, samples=samples),
        }
        for name, swap in table.items():

            def make(swap: Callable[[Any], Any] = swap) -> tuple[str, Any]:
                model = copy.deepcopy(self.model)
                return f"{len(swap(model).swaps)} modules", model

            self.method(f"swap: {name}", make)

    def rewrites(self) -> None:
        """Rules over FX graphs; matches are counted from the passes' own reports."""
        for name, chosen, written_out in (
            ("attention -> SDPA", rules.ATTENTION, True),
            ("constants into matmul", rules.FOLD_INTO_MATMUL, True),
            ("three linears -> one", rules.MERGE_LINEARS, False),
        ):
            self.method(f"FX rule: {name}", partial(self._rewritten, chosen, written_out))
        self.method("Firebrick alone", lambda: ("-", self._compiled(self.model)))

    def _compiled(self, model: Any, **options: Any) -> Any:
        # No disk cache, so that every pass runs and reports; `check` has it do so in each of many equal layers.
        return firebrick.compile(model, options={"cache": False, "check": True}, **options)

    def _rewritten(self, chosen: Sequence[Any], written_out: bool) -> tuple[str, Any]:
        model = self._plain_attention() if written_out else self.model
        recorder.reset()
        compiled = self._compiled(model, passes=list(chosen))
        # The scale of the scores would go into SDPA before it can go into a matmul.
        without = ("attention_div", "attention_mul") if chosen is rules.FOLD_INTO_MATMUL else ()
        with registry.disabled(*without):
            call_with(compiled, self.inputs)
        mine = {step.name for step in chosen}
        found = [data for kind, data in recorder.events if kind == "pass" and data["name"] in mine]
        return f"{sum(data['applied'] for data in found)} places", compiled

    def _plain_attention(self) -> torch.nn.Module:
        model = copy.deepcopy(self.model)
        if hasattr(model, "config"):
            model.config._attn_implementation = "eager"  # type: ignore[union-attr]
        return model

    def subgraphs(self) -> None:
        """A compiler for part of the graph, and a compiler function for the whole."""

        def groups() -> tuple[str, Any]:
            texts: list[str] = []
            compiled = firebrick.compile(
                self._plain_attention(), backend=engine_backend(_MatmulDiv(), report=texts.append)
            )
            call_with(compiled, self.inputs)
            return _share(texts), compiled

        self.method("FX subgraphs: matmul + div", groups)
        seen: list[int] = []

        def own(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            del example_inputs
            seen.append(sum(n.op.startswith("call") for n in gm.graph.nodes))
            return gm.forward

        def whole(make: Callable[[Any], Any]) -> tuple[str, Any]:
            seen.clear()
            compiled = make(self.model)
            call_with(compiled, self.inputs)
            return f"{len(seen)} graph, {sum(seen)} ops", compiled

        self.method("own compiler function", lambda: whole(lambda m: firebrick.compile(m, backend=own)))
        self.method("functorch-style aot", lambda: whole(lambda m: firebrick.aot(m, own)))

    def scripts(self) -> None:
        """TorchScript: passes in Python and C++, groups, optimize_for_inference, and the way to FX."""
        plain = self._plain_attention()
        plain.config.return_dict = False  # type: ignore[union-attr]
        args = tuple(self.inputs.values())
        self.step(f"{self.name}: tracing for TorchScript")
        with torch.no_grad():
            script = torch.jit.trace(plain, args, strict=False)  # type: ignore[no-untyped-call]
        inlined = torchscript.optimize(script)

        def by_position(call: Callable[..., Any]) -> Callable[..., Any]:
            return lambda **given: call(*given.values())

        def passes_in_python() -> tuple[str, Any]:
            made = torchscript.optimize(script, [torchscript.script_rule(_scaled_scores, _scaled_query)])
            return f"{_scalings(inlined) - _scalings(made)} places", by_position(made)

        def passes_in_cpp() -> tuple[str, Any]:
            folder = _EXAMPLES / "torchscript_pass"
            if not folder.exists():
                raise FirebrickError("examples/torchscript_pass is not here")
            demo = _example("torchscript_pass", "torchscript_pass_demo")
            extension = build_extension(
                "torchscript_pass", demo.SOURCES, demo.BUILD, include_dirs=[str(folder / "csrc")]
            )
            steps = [torchscript.ScriptPass(n, getattr(extension, n)) for n in ("fuse_add_div", "make_groups")]
            made = torchscript.optimize(script, steps)
            return f"{_new_nodes(made, inlined)} places", by_position(made)

        def groups() -> tuple[str, Any]:
            made, report = torchscript.compile_subgraphs(script, [_MatmulDiv()], args)
            return f"{report.percent:.0f} % in {len(report.claims)} groups", by_position(made)

        def to_fx() -> tuple[str, Any]:
            return "the whole module", by_position(self._compiled(torchscript.to_module(script)))

        self.method("TorchScript: scale into matmul", passes_in_python)
        self.method("TorchScript: C++ passes", passes_in_cpp)
        self.method("TorchScript: matmul + div", groups)
        self.method("TorchScript -> FX -> Firebrick", to_fx)
        self.method(
            "optimize_for_inference",
            lambda: ("the whole graph", firebrick.compile(self.model, backend="torchscript")),
        )

    def engines(self) -> None:
        """Every engine as a subgraph compiler."""
        for name, make in ENGINES.items():

            def build(make: Callable[[], SubgraphCompiler] = make) -> tuple[str, Any]:
                texts: list[str] = []
                compiled = firebrick.compile(self.model, backend=engine_backend(make(), report=texts.append))
                call_with(compiled, self.inputs)
                return _share(texts), compiled

            self.method(f"engine: {name}", build)


METHODS = ("swaps", "rewrites", "subgraphs", "scripts", "engines")
"""Parts of a model's table, in order."""


class _MatmulDiv(SubgraphCompiler):
    """The tutorial's: matmul with a constant division."""

    name = "matmul_div"

    def supports(self, node: Any) -> bool | str:
        """Matmuls, and division or multiplication by a number."""
        call = call_of(node)
        if call is None:
            return "no op"
        scales = call.name in ("div", "mul") and isinstance(call.arguments.get("other"), (int, float))
        return call.name in ("matmul", "linear", "mm", "bmm", "addmm") or scales or "no matmul"

    def compile(self, graph: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """Run the group as it is."""
        del example_inputs
        return graph.forward


def _scaled_scores(q: torch.Tensor, k: torch.Tensor, c: float) -> torch.Tensor:
    return torch.matmul(q, k) * c


def _scaled_query(q: torch.Tensor, k: torch.Tensor, c: float) -> torch.Tensor:
    return torch.matmul(q * c, k)


def _scalings(script: torchscript.OptimizedScript) -> int:
    """How many matmuls have their result multiplied."""
    products = torchscript.nodes_of(script.graph, "aten::mul")
    return sum(next(iter(n.inputs())).node().kind() == "aten::matmul" for n in products)


def _new_nodes(made: torchscript.OptimizedScript, plain: torchscript.OptimizedScript) -> int:
    """How many nodes there are of kinds that passes brought in."""
    kinds = [Counter(n.kind() for n in torchscript.nodes_of(script.graph)) for script in (made, plain)]
    more = kinds[0] - kinds[1]
    return sum(count for kind, count in more.items() if not kind.startswith("prim::"))


def _share(texts: Sequence[str]) -> str:
    """ "77 of 90 ops claimed (86 %) in 3 groups\n..." -> "86 % in 3 groups" """
    if not texts:
        return "no graph"
    first = texts[0].splitlines()[0]
    return f"{first.partition('(')[2].partition(')')[0]} in {first.rpartition(' in ')[2]}"


def _example(folder: str, module: str) -> Any:
    place = _EXAMPLES / folder
    if place.exists() and str(place) not in sys.path:
        sys.path.append(str(place))
    return importlib.import_module(module)


def _simchip() -> SubgraphCompiler:
    module = _example("firebrick_simchip/src", "firebrick_simchip")
    made: SubgraphCompiler = module.SimChip(module.Chip(memory=1 << 30))
    return made


def _shipped(module: str, name: str) -> SubgraphCompiler:
    made: SubgraphCompiler = getattr(importlib.import_module(f"firebrick.backends.{module}"), name)()
    return made


ENGINES: dict[str, Callable[[], SubgraphCompiler]] = {
    "ONNX Runtime": lambda: _shipped("onnxruntime", "OnnxRuntime"),
    "OpenVINO": lambda: _shipped("openvino", "OpenVino"),
    "TVM": lambda: _shipped("tvm", "Tvm"),
    "OpenBLAS": lambda: _example("blas", "blas_engine").Blas("openblas"),
    "Eigen": lambda: _example("blas", "blas_engine").Blas("eigen"),
    "simulated chip": _simchip,
}
"""Name in the table -> a new subgraph compiler."""


_WARM_UP = 1.5
"""Seconds of calls before any is timed: TorchScript optimizes in its first calls, weights are packed after them."""


def _rounds(a: Callable[[], Any], b: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Median milliseconds of two calls that take turns, so that both see the same machine."""
    times: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    a(), b()
    while time.perf_counter() - start < _WARM_UP:
        a(), b()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < _LEAST_RUNS:
        for call, found in zip((a, b), times, strict=True):
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
        if time.perf_counter() > end + 2 * seconds:
            break  # a slow engine: one round says enough
    return statistics.median(times[0]) * 1e3, statistics.median(times[1]) * 1e3


# ------------------------------------------------------------------ wrong passes


def _first(gm: fx.GraphModule, name: str) -> fx.Node:
    return next(n for n in gm.graph.nodes if n.op.startswith("call") and (c := call_of(n)) and c.name == name)


def _sign_flipped(gm: fx.GraphModule) -> bool:
    node = _first(gm, "add")
    node.target = torch.sub
    return True


def _dtype_changed(gm: fx.GraphModule) -> bool:
    node = gm.graph.output_node().all_input_nodes[0]
    with gm.graph.inserting_after(node):
        made = gm.graph.call_method("double", (node,))
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
    return True


def _aliasing_broken(gm: fx.GraphModule) -> bool:
    node = _first(gm, "clone")
    node.replace_all_uses_with(node.all_input_nodes[0])
    gm.graph.erase_node(node)
    return True


def _victim(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    kept = x.clone()
    kept.mul_(2)
    return torch.relu(kept + y)


def _wrong_passes() -> Iterator[Row]:
    """Passes that are wrong on purpose: verification names and skips them, and the result stays right."""
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    for wrong in (_sign_flipped, _dtype_changed, _aliasing_broken):
        step = graph_pass(wrong, level="torch")
        gm = trace_torch(_victim, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (report,) = apply_passes(gm, [step], verify=True, example_inputs=[x, y])
        found = gm(x.clone(), y)
        error = float((found - _victim(x, y)).abs().max())
        name = step.name.strip("_").replace("_", " ")
        verdict = f"skipped: {report.skipped.rpartition(': ')[2]}" if report.skipped else "not caught"
        yield Row("wrong passes", f"verify: {name}", verdict, error)


# ------------------------------------------------------------------ silero-vad


def _silero(seconds: float) -> Row:
    """The TorchScript file of silero-vad on generated audio, plain beside converted and compiled."""
    row = Row("silero-vad", "script file -> Firebrick")
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or spec.origin is None:
        row.failed = "silero-vad is not installed"
        return row
    file = Path(spec.origin).parent / "data" / "silero_vad.jit"
    scripts = [torch.jit.load(str(file)).eval() for _ in range(2)]  # type: ignore[no-untyped-call]
    compiled = firebrick.compile(torchscript.to_module(scripts[1]))
    chunks = _audio(32)
    row.error = 0.0
    for chunk in chunks:
        wanted, found = scripts[0](chunk, 16000), compiled(chunk, 16000)
        row.error = max(row.error, float((wanted - found).abs().max()))
    row.matched = f"{len(chunks)} chunks, 32 ms"

    def all_of(call: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: [call(chunk, 16000) for chunk in chunks]

    before, after = _rounds(all_of(scripts[0]), all_of(compiled), seconds)
    row.before, row.after = before / len(chunks), after / len(chunks)
    return row


def _audio(count: int, size: int = 512) -> list[torch.Tensor]:
    """A voice-like sound: a buzz that comes and goes, on noise."""
    generator = torch.Generator().manual_seed(0)
    moment = torch.arange(count * size) / 16000
    buzz = torch.stack([torch.sin(2 * torch.pi * 120 * k * moment) / k for k in range(1, 20)]).sum(0)
    sound = buzz * (torch.sin(2 * torch.pi * 2 * moment) > 0) + 0.05 * torch.randn(len(moment), generator=generator)
    return list((sound * 0.1).view(count, 1, size))


# ------------------------------------------------------------------ all of it


def byo(
    models: Sequence[str],
    *,
    seconds: float = 1.5,
    layers: int | None = None,
    methods: Sequence[str] = METHODS,
    step: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Measure every method on each model, then the wrong passes and silero-vad.

    Args:
        seconds: measuring time of one method.
        step: is told what runs now.
    """
    rows: list[Row] = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in models:
            step(f"{name}: building")
            sizes = {"layers": layers} if layers and name != "minilm" else {}
            bench = _Bench(name, *build_model(name, **sizes), seconds, step)
            for method in methods:
                getattr(bench, method)()
            rows += bench.rows
        step("wrong passes")
        rows += _wrong_passes()
        step("silero-vad")
        rows.append(_silero(seconds))
    return rows


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """One table a model; each fits 80 columns."""
    for name in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == name]
        timed = any(row.after == row.after for row in mine)
        table = Table(
            title=f"bring your own: {name}, {torch.get_num_threads()} threads",
            caption="milliseconds of interleaved calls; error relative to the plain output" if timed else None,
            box=box.SIMPLE_HEAD,
            padding=0,
            pad_edge=False,
        )
        for head in ("method", "matched", "error", *(("before", "after", "speed") if timed else ())):
            left = head in ("method", "matched")
            table.add_column(
                head, justify="left" if left else "right", no_wrap=head != "matched", min_width=18 if left else 5
            )
        for row in mine:
            table.add_row(*row.cells[: len(table.columns)])
        yield table


def markdown(rows: Sequence[Row], command: str) -> str:
    """The tables as a page headed by the command that makes it."""
    lines = ["# Bring your own", "", f"Made by `{command}`. Medians of interleaved rounds in one process; `before` is"]
    lines += ["the plain program (of silero-vad, the TorchScript file). Error is relative to the plain output.", ""]
    for name in dict.fromkeys(row.model for row in rows):
        lines += [f"## {name}", "", "| " + " | ".join(_HEAD) + " |", "|---|---|---|---|---|---|"]
        lines += ["| " + " | ".join(row.cells) + " |" for row in rows if row.model == name]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Measure the models that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["minilm", "bert"])
    parser.add_argument("--seconds", type=float, default=1.5, help="measuring time of a method")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--markdown", type=Path, help="write the results to this file")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with Console(stderr=True).status("starting") as status:
        rows = byo(given.models, seconds=given.seconds, layers=given.layers, step=status.update)
    if given.markdown:
        given.markdown.write_text(markdown(rows, "python -m bench.byo " + " ".join(sys.argv[1:])))
    if given.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        for table in tables(rows):
            Console().print(table)


if __name__ == "__main__":
    main()
