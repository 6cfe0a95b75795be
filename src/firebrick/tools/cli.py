"""The `firebrick` command."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import firebrick
from firebrick import runtime
from firebrick.config import MODES, Config, settings, unknown_variables
from firebrick.errors import ConfigError, FirebrickError
from firebrick.tools import bench as benchmark
from firebrick.tools import bisect as bisecting
from firebrick.tools import doctor as doctoring
from firebrick.tools import minify as minifying
from firebrick.tools import profile as profiling
from firebrick.tools import report_page as reporting
from firebrick.tools.graph_files import SUFFIXES, Views, check_suffix, view_files, wait_for_end
from firebrick.tools.models import MODELS, check_name
from firebrick.tools.subject import Target, capture

app = typer.Typer(
    help="Firebrick compiles PyTorch programs. Example: firebrick bench bert",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)
cache_app = typer.Typer(help="Look at and clear the disk cache. Example: firebrick cache ls", no_args_is_help=True)
app.add_typer(cache_app, name="cache")


def _in_a_folder(paths: Any) -> Any:
    """Make the folders of the files that a command is to write, before it begins."""
    for path in paths if isinstance(paths, list) else [paths] if paths is not None else []:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"can't write {path}: {error}") from error
    return paths


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
_TARGET = "A script, package.module:function, or a model's name; what follows a script is passed to it."
_REST = {"allow_extra_args": True, "ignore_unknown_options": True}
_OUT = {"callback": _in_a_folder, "dir_okay": False}
console = Console()
progress = Console(stderr=True)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"firebrick {firebrick.__version__}")
        raise typer.Exit


def _load(context: typer.Context, target: str) -> Target:
    if context.args and not target.endswith(".py"):
        raise ConfigError(f"{target} takes no {context.args[0]}", fix="leave it out, or see --help")
    return Target.load(target, *context.args)


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _say(text: str, to: Console = console, *, soft_wrap: bool = False) -> None:
    to.print(text, markup=False, highlight=False, soft_wrap=soft_wrap)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))


def _tell(as_json: bool, value: Any, text: Any) -> None:
    _print_json(value) if as_json else console.print(text, markup=False, highlight=False)


@app.command(epilog="Example: `firebrick bench my_package.my_module:my_function`, or `firebrick bench --gpu bert gpt2`")
def bench(
    targets: Annotated[list[str], typer.Argument(help=f"Scripts, package.module:function, or {', '.join(MODELS)}.")],
    seconds: Annotated[float, typer.Option(help="Measuring time a contender and target.")] = 6.0,
    contender: Annotated[list[str] | None, typer.Option(help="Who takes part; repeat the option.")] = None,
    warm: Annotated[bool, typer.Option(help="Also measure the warm start in a second process.")] = True,
    cold: Annotated[
        bool, typer.Option(help="Begin with empty caches; without, torch.compile may find its code of former runs.")
    ] = True,
    gpu: Annotated[bool, typer.Option("--gpu", help="On the GPU at hand, timed by its clock.")] = False,
    dtype: Annotated[
        str, typer.Option(help="With --gpu: of weights and inputs, float32, float16 or bfloat16.")
    ] = "float16",
    as_json: Json = False,
) -> None:
    """Compare eager, Firebrick and torch.compile side by side."""
    for name in targets:
        check_name(name)
    kinds, kind = contender or benchmark.CONTENDERS, benchmark.GpuContender if gpu else benchmark.Contender
    if unknown := set(kinds) - set(kind.KINDS):
        raise ConfigError(f"unknown contender {unknown.pop()!r}", fix=f"name {', '.join(kind.KINDS)}")
    if dtype not in (names := ("float32", "float16", "bfloat16")):
        raise ConfigError(f"unknown dtype {dtype!r}", fix=f"name {', '.join(names)}")
    if gpu and not torch.cuda.is_available():
        raise ConfigError("torch finds no GPU here", fix="leave out --gpu; `firebrick doctor` shows what there is")
    sizes, machine = ({"dtype": dtype}, f"{torch.cuda.get_device_name()}, {dtype}") if gpu else ({}, "")
    again = [k for k in kinds if warm and k != "eager"]
    make = partial(benchmark.Measure, warm=again, cold=cold, sizes=sizes, kind=kind)
    results = benchmark.measure_all(targets, kinds, make, seconds=seconds, console=progress)
    if as_json:
        typer.echo(benchmark.as_json(results, machine))
    else:
        console.print(benchmark.table(results, gpu=machine))
    if any(row.failed and row.contender == "firebrick" for row in results):
        raise typer.Exit(1)


@app.command(context_settings=_REST, epilog="Example: `firebrick explain bert --html report.html`")
def explain(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help=_TARGET)],
    html: Annotated[Path | None, typer.Option(help="Also write a page.", **_OUT)] = None,
    as_json: Json = False,
) -> None:
    """Show the graphs, graph breaks and guards of one call, and how much of it was captured."""
    explanation = firebrick.explain(_load(context, target))()
    if html:
        explanation.to_html(html)
    _tell(as_json, explanation.to_dict(), str(explanation))


@app.command(context_settings=_REST, epilog="Example: `firebrick profile bert --trace trace.json`")
def profile(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help=_TARGET)],
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace here (chrome://tracing).", **_OUT)] = None,
    top: Annotated[int, typer.Option(help="Rows a table.")] = 15,
    as_json: Json = False,
) -> None:
    """Show where time and memory go, eager beside compiled, against what the machine reaches."""
    with progress.status(f"profiling {target}"):
        result = profiling.profile_target(_load(context, target), trace=trace)
    if as_json:
        _print_json(asdict(result))
    else:
        for table in profiling.tables(result, top, console.width):
            console.print(table, width=None if console.is_terminal else 140)


@app.command(
    context_settings=_REST,
    epilog="Example: `firebrick graph bert --module bert.encoder.layer.0.attention -o attention.html`",
)
def graph(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help=_TARGET)],
    module: Annotated[str | None, typer.Option(help="Only the first call of this submodule.")] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option("-o", "--out", help=f"Write a file ({', '.join(SUFFIXES)}); repeat the option.", **_OUT),
    ] = None,
    view: Annotated[
        bool, typer.Option(help="Open it in Netron on localhost, or else the page in the browser.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the captured graph: which kernel or library call computes each op, what was not fused, which rules match."""
    for path in out or ():
        check_suffix(path)
    with progress.status(f"capturing {target}"):
        loaded = _load(context, target)
        views = Views(capture(loaded.submodule(module) if module else loaded))
    for path in out or ():
        for written in views.write(path):
            _say(f"wrote {written}", progress)
    if as_json:
        _print_json(views.to_dict())
    elif not out and not view:
        _say(views.text(), soft_wrap=True)
    if view:
        _say(f"open {view_files(views)}; Ctrl-C ends", progress)
        wait_for_end()


@app.command(context_settings=_REST, epilog="Example: `firebrick report bert -o report.html`")
def report(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help=_TARGET)],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write a page.", **_OUT)] = None,
    as_json: Json = False,
) -> None:
    """Compile with an empty cache and again with a filled one, and report on all of it."""
    with progress.status(f"compiling {target}"):
        page = reporting.make_report(_load(context, target), Config.from_env())
    if out:
        out.write_text(page.to_html(), encoding="utf-8")
        _say(f"wrote {out}", progress)
    if as_json:
        _print_json(page.to_dict())
    elif not out:
        console.print(page.show(), width=None if console.is_terminal else 140)


@app.command(context_settings=_REST, epilog="Example: `firebrick minify bert -o repro.py`")
def minify(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help=_TARGET)],
    out: Annotated[Path, typer.Option("-o", "--out", help="Write the script here.", **_OUT)] = Path("repro.py"),
    module: Annotated[str | None, typer.Option(help="Only the first call of this submodule.")] = None,
    backend: Annotated[str, typer.Option(help="A backend's name, or package.module:function.")] = "firebrick",
    seconds: Annotated[float, typer.Option(help="Stop shrinking after this time.")] = 600.0,
    timeout: Annotated[float, typer.Option(help="A try that takes longer hangs.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Cut what compiles wrongly (raises, differs from eager, dies or hangs) down to a small script."""
    with progress.status(f"minifying {target}"):
        loaded = _load(context, target)
        captured = capture(loaded.submodule(module) if module else loaded, stages=False, errors=False)
        small = minifying.minify(captured, backend, seconds=seconds, timeout=timeout)
    small.write(out)
    summary = {"problem": asdict(small.problem), "before": small.before, "after": small.after, "script": str(out)}
    text = f"{small.problem}\n{small.before} ops cut down to {small.after} in {small.tries} tries; run: python {out}"
    _tell(as_json, summary, text)


@app.command(context_settings=_REST, epilog="Example: `firebrick bisect train.py --epochs 1`")
def bisect(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script; what follows is passed to it.", exists=True)],
    seconds: Annotated[float, typer.Option(help="Begin no further run after this time.")] = 600.0,
    timeout: Annotated[float, typer.Option(help="A run that takes longer hangs.")] = 300.0,
    as_json: Json = False,
) -> None:
    """Find the stage, graph, pass, kernel, guard or frame that makes a script differ from plain Python, or fail.

    The script runs as it is, in processes of its own; what it prints, how it ends and its variables are compared. Where
    it does not use Firebrick itself, all of it is compiled, as by `firebrick run`. Status 1: something is at fault.
    """
    with progress.status(f"bisecting {script}") as status:

        def tell(name: str) -> None:
            status.update(f"bisecting {script}: {name}")
            if not progress.is_terminal:
                _say(name, progress)

        search = bisecting.Bisection(script, context.args, seconds=seconds, timeout=timeout, on_run=tell)
        try:
            culprit = search.find()
        except KeyboardInterrupt:
            _say(f"interrupted after: {', '.join(search.done)}", progress)
            raise typer.Exit(130) from None
    if as_json:
        _print_json(culprit and culprit.to_dict())
    elif culprit is None:
        _say(f"{script} does what it does in plain Python")
    else:
        _say(f"{culprit}", soft_wrap=True)
    if culprit is not None:
        raise typer.Exit(1)


@app.command(epilog="Example: `firebrick doctor --json`")
def doctor(as_json: Json = False) -> None:
    """Show versions, compiler, machines and cache state, and what is missing."""
    facts = doctoring.examine(Config.from_env())
    _tell(as_json, [asdict(fact) for fact in facts], doctoring.show(facts))
    if not all(fact.ok for fact in facts):
        raise typer.Exit(1)


@app.command(epilog="Example: `FIREBRICK_FUSE=0 firebrick options`")
def options(as_json: Json = False) -> None:
    """List the settings: for `firebrick.compile(options=...)` by name, for all compiles as FIREBRICK_NAME=value."""
    rows = settings(Config.from_env())
    if as_json:
        _print_json([asdict(row) for row in rows])
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for head in ("option", "value", "what it does"):
        table.add_column(head, overflow="fold")
    for row in rows:
        mark = "" if row.value == row.default else f"\n(default: {row.default})"
        table.add_row(row.name, Text(f"{row.value}{mark}", style="bold" if mark else ""), Text(row.text))
    console.print(table)
    for mode, changes in MODES.items():
        text = ", ".join(f"{name}={value}" for name, value in changes.items()) or "the defaults"
        _say(f"mode={mode!r}: {text}")
    for sentence in unknown_variables():
        _say(sentence, progress, soft_wrap=True)


@app.command(context_settings=_REST, epilog="Example: `firebrick run train.py --epochs 3`")
def run(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script; what follows is passed to it.", exists=True)],
    backend: Annotated[str, typer.Option(help="Backend that compiles the graphs.")] = "firebrick",
) -> None:
    """Run a script with every frame of it offered to the compiler; the script is not changed."""
    sys.argv = [str(script), *context.args]
    sys.path.insert(0, str(script.resolve().parent))
    with firebrick.optimize(backend):
        runpy.run_path(str(script), run_name="__main__")


@cache_app.command("ls", epilog="Example: `firebrick cache ls`")
def cache_ls(as_json: Json = False) -> None:
    """List the entries, latest first."""
    rows = runtime.cache_entries(Config.from_env())
    lines = [f"{row['key'][:16]}  {row['bytes'] / 1024:8.0f} KiB  {row['age']:>8}  {row['name']}" for row in rows]
    _tell(as_json, rows, "\n".join([*lines, f"{len(rows)} entries"]))


@cache_app.command("clear", epilog="Example: `firebrick cache clear`")
def cache_clear(as_json: Json = False) -> None:
    """Remove every entry."""
    count = runtime.clear_cache(Config.from_env())
    _tell(as_json, {"removed": count}, f"removed {count} entries")


@cache_app.command("why", epilog="Example: `firebrick cache why 3fa9`")
def cache_why(
    key: Annotated[str, typer.Argument(help="Only misses whose key begins like this.")] = "", as_json: Json = False
) -> None:
    """Say why the last compiles found nothing: what differed from the entry nearest to each."""
    rows = runtime.why_miss(Config.from_env(), key)
    lines = ["\n    ".join([f"{row['key'][:16]}  {row['age']:>8}  {row['name']}", *row["why"]]) for row in rows]
    _tell(as_json, rows, "\n".join([*lines, f"{len(rows)} misses"]))


def main() -> None:
    """Run the command; a Firebrick error prints as one message and ends with status 2."""
    try:
        app()
    except FirebrickError as error:
        lines = [("error: ", "red", error.what)]
        lines += [("  at ", "", str(error.where))] if error.where is not None else []
        lines += [("  fix: ", "yellow", error.fix)] if error.fix else []
        text = Text("\n").join(Text.assemble((head, style), rest) for head, style, rest in lines)
        Console(stderr=True).print(text, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
