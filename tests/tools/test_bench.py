"""`firebrick bench`: functions and scripts of the user's own, measured in processes of their own."""

import io
import json
import sys
import time

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from firebrick.errors import ConfigError
from firebrick.tools import bench as benchmark
from firebrick.tools.cli import app
from firebrick.tools.subject import Target

OWN = """
import torch

def f(x):
    return torch.tanh(x) * 2

def make():
    return f, (torch.rand(6),)
"""
SCRIPT = "import torch\n\ndef g(x):\n    return x.sin() + 1\n\nprint(g(torch.ones(3)))\n"


@pytest.fixture(autouse=True)
def _gradients_stay_on():
    """A contender switches them off for its process, which is the tests' own where its class is used here."""
    yield
    torch.set_grad_enabled(True)


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])


@pytest.mark.compiler
def test_a_function_is_measured_beside_eager(own):
    options = ["--seconds", "0.1", "--contender", "eager", "--contender", "firebrick", "--json"]
    done = CliRunner().invoke(app, ["bench", "own:make", *options])
    assert done.exit_code == 0, done.output
    eager, ours = json.loads(done.stdout)["results"]
    assert (eager["contender"], ours["contender"]) == ("eager", "firebrick")
    assert ours["run"] > 0 and ours["cold"] > 0 and ours["warm"] > 0 and ours["peak"] > 1
    assert ours["error"] < 1e-6 and eager["speedup"] == 1.0 and eager["warm"] is None
    assert ours["stats"]["counts"]["graphs"] == 1
    assert "own:make  firebrick: first call" in done.stderr


@pytest.mark.compiler
def test_a_script_is_measured_with_its_functions_compiled(own):
    done = CliRunner().invoke(app, ["bench", "script.py", "--seconds", "0.1", "--no-warm", "--json"])
    assert done.exit_code == 0, done.output
    rows = {row["contender"]: row for row in json.loads(done.stdout)["results"]}
    assert rows["firebrick"]["stats"]["counts"]["graphs"] == 1
    for row in rows.values():
        assert row["run"] > 0 and row["warm"] is None and row["error"] is None and not row["failed"]


def test_what_fails_is_a_row_and_an_exit_status(own, tmp_path):
    (tmp_path / "wrong.py").write_text("def make():\n    return (lambda x: x + 'a'), (1,)\n")
    done = CliRunner().invoke(app, ["bench", "wrong:make", "--contender", "firebrick", "--no-warm"])
    assert done.exit_code == 1
    assert "wrong:make: firebrick failed: TypeError" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("target", "text"),
    [("berd", "unknown target 'berd'"), ("no_module_here:make", "no module 'no_module_here'"), ("no.py", "no script")],
)
def test_targets_are_looked_up_before_anything_is_measured(monkeypatch, target, text):
    monkeypatch.setattr(benchmark, "measure_all", None)
    done = CliRunner().invoke(app, ["bench", "bert", target])
    assert isinstance(done.exception, ConfigError) and text in str(done.exception)


def test_a_machine_that_slows_down_between_rounds_changes_no_ratio():
    eager = [[2.0, 2.0], [4.0, 4.0], [8.0, 80.0, 8.0]]
    ours = [[1.0], [2.0, 2.0, 20.0], [4.0]]
    assert benchmark.ratio(eager, ours) == 2.0


class Answering:
    """Stands for a contender's process."""

    started = []  # noqa: RUF012

    def __init__(self, kind, caches, name, contender, sizes):
        self.contender = contender
        Answering.started.append((contender, caches))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def ask(self, command, *args):
        if self.contender == "torch.compile":
            raise RuntimeError("it broke")
        times = [0.5 if self.contender == "firebrick" else 1.0]
        return {"first": (2.0, {}), "time": (times, 1.0), "reference": None, "error": float("nan")}[command]


@pytest.fixture
def answering(monkeypatch):
    monkeypatch.setattr(Answering, "started", [])
    monkeypatch.setattr(benchmark, "Process", Answering)
    return Answering.started


def measured(**options):
    console = Console(file=io.StringIO(), width=200)

    def make(*args):
        return benchmark.Measure(*args, warm=["firebrick", "torch.compile"], **options)

    rows = benchmark.measure_all(["lstm"], benchmark.CONTENDERS, make, seconds=0.1, console=console)
    return rows, console.file.getvalue()


def test_a_line_is_printed_as_each_contender_is_compiled_and_measured(answering):
    _, text = measured()
    assert text.rstrip().splitlines() == [
        "lstm  eager: first call 2.00 s",
        "lstm  firebrick: first call 2.00 s, warm start 2.00 s",
        "lstm  torch.compile: failed: RuntimeError: it broke",
        "lstm  eager: 1000 ms, 1.00 x eager, error -",
        "lstm  firebrick: 500 ms, 2.00 x eager, error -",
    ]


def test_who_fails_while_it_is_measured_stops_nobody(answering, monkeypatch):
    ask = Answering.ask

    def fails(self, command, *args):
        if command == "time" and self.contender == "firebrick":
            raise NameError("gone")
        return ask(self, command, *args)

    monkeypatch.setattr(Answering, "ask", fails)
    (eager, ours, _), _ = measured()
    assert ours.failed == "NameError: gone" and ours.run != ours.run
    assert eager.run == 1.0 and not eager.failed


def test_cold_starts_can_be_left_out(answering):
    (_, ours, _), _ = measured(cold=False)
    assert ours.cold != ours.cold and ours.warm == 2.0 and ours.run == 0.5
    assert ("firebrick", None) in answering, "the caches that there are"
    assert ours.cells[4] == "-"


def test_an_interrupted_bench_keeps_the_targets_before():
    class Measure(benchmark.Measure):
        def run(self, seconds):
            if self.model == "b":
                raise KeyboardInterrupt
            for row in self.rows:
                row.run = 1.0

    def run(*names):
        return benchmark.measure_all(
            names, ["eager", "firebrick"], lambda *args: Measure(*args, warm=()), seconds=1, console=console
        )

    console = Console(file=io.StringIO())
    assert [(row.model, row.contender) for row in run("a", "b", "c")] == [("a", "eager"), ("a", "firebrick")]
    assert "interrupted while measuring b" in console.file.getvalue()
    with pytest.raises(KeyboardInterrupt):
        run("b", "c")


def test_table_fits_80_columns_with_names_whole():
    figures = {"run": 0.12345, "speedup": 12.34, "cold": 123.45, "warm": 12.34, "error": 1.2e-7, "peak": 12345.0}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(benchmark.table([benchmark.Figures("segformer", name, **figures) for name in benchmark.CONTENDERS]))
    text = console.export_text()
    assert "…" not in text
    for word in (*benchmark.CONTENDERS, "segformer", "123.5", "12.34", "123.45", "1.2e-07", "12345", "contender"):
        assert word in text


def test_json_has_null_for_what_was_not_measured():
    good = benchmark.Figures("m", "firebrick", speedup=2.0)
    data = json.loads(benchmark.as_json([good, benchmark.Figures("m", "x", failed="broke")]))["results"]
    assert data[0]["cold"] is None
    assert data[0]["speedup"] == 2.0
    assert data[1]["failed"] == "broke"


class Clock:
    """A card's event, whose clock runs with the host's twice as fast."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, later):
        return 2e3 * (later.at - self.at)


@pytest.fixture
def card(monkeypatch):
    """This machine in a GPU's place."""
    waits = []
    for name, value in {
        "Event": Clock,
        "synchronize": lambda: waits.append(1),
        "reset_peak_memory_stats": lambda: None,
        "max_memory_allocated": lambda: 3 << 20,
        "is_available": lambda: True,
        "get_device_name": lambda: "A card",
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(benchmark.GpuContender, "DEVICE", "cpu")
    return waits


def test_on_a_gpu_its_clock_tells_the_times(own, card):
    eager = benchmark.GpuContender("own:make", "eager", {"dtype": "bfloat16"})
    assert eager.target.args[0].dtype == torch.bfloat16
    seconds, _ = eager.first()
    assert seconds > 0 and card
    start = time.perf_counter()
    times, peak = eager.time(0.05)
    spent = time.perf_counter() - start
    assert peak == 3 and len(times) > 1
    assert 0.1 * spent < sum(times) * benchmark._TOGETHER < 2 * spent


def test_modules_and_floats_move_and_integers_stay(card, monkeypatch):
    net = torch.nn.Embedding(5, 3)
    target = Target("net", net, (torch.tensor([1, 2]),))
    monkeypatch.setattr(Target, "load", lambda name, **sizes: target)
    here = benchmark.GpuContender("net", "eager", {"dtype": "float16"})
    assert here.call().dtype == torch.float16
    assert here.target.args[0].dtype == torch.int64


def test_a_table_and_json_name_the_gpu(own, card, monkeypatch):
    started = []

    class Measure(benchmark.Measure):
        def run(self, seconds):
            started.append((self.kind, self.sizes))

    monkeypatch.setattr(benchmark, "Measure", Measure)
    options = ["bench", "--gpu", "own:make", "--dtype", "bfloat16", "--contender", "reduce-overhead"]
    done = CliRunner().invoke(app, [*options, "--json"])
    assert json.loads(done.stdout)["gpu"] == "A card, bfloat16"
    assert started == [(benchmark.GpuContender, {"dtype": "bfloat16"})]
    assert "A card, bfloat16, torch" in " ".join(CliRunner().invoke(app, options).stdout.split())


def test_without_a_gpu_that_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = CliRunner().invoke(app, ["bench", "bert", "--gpu"])
    assert isinstance(done.exception, ConfigError) and "no GPU here" in str(done.exception)
    done = CliRunner().invoke(app, ["bench", "bert", "--gpu", "--dtype", "float63"])
    assert isinstance(done.exception, ConfigError) and "float63" in str(done.exception)
